"""Which of its two sets of rotary factors a model uses."""

from __future__ import annotations

from typing import Final

from meshnet.model.gguf import GgufIndex
from meshnet.model.room import session_positions

_LONG_FACTORS: Final = "rope_factors_long.weight"


def uses_long_factors(index: GgufIndex, context_length: int, sessions: int) -> bool:
    """Whether a node of that context computes with the factors for long ones.

    Models such as Phi-3 have one set for contexts up to what they were first trained on, and one
    for longer ones. libllama chooses by the context it was given room for, not by the text's
    length (``get_rope_factors`` of ``llama-model.cpp``), so that two nodes with contexts on either
    side of the border compute different numbers. Raises
    :class:`~meshnet.domain.errors.ModelFileError` for a header without a context length.
    """
    if not any(name.endswith(_LONG_FACTORS) for name in index.tensors):
        return False
    trained = index.integer(index.key("context_length"))
    border = index.integer(index.key("rope.scaling.original_context_length"), trained)
    return session_positions(context_length, sessions) > border
