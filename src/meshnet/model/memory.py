"""How much memory a model takes on a node, from its header alone."""

from __future__ import annotations

from fractions import Fraction
from typing import Final

from meshnet.model.description import ModelInfo
from meshnet.model.room import session_positions

_VALUE_BYTES: Final = {
    "f32": Fraction(4),
    "f16": Fraction(2),
    "bf16": Fraction(2),
    "q8_0": Fraction(34, 32),
    "q5_1": Fraction(24, 32),
    "q5_0": Fraction(22, 32),
    "q4_1": Fraction(20, 32),
    "q4_0": Fraction(18, 32),
    "iq4_nl": Fraction(18, 32),
}
"""Bytes a value of each type of KV cache, after the blocks of ``ggml-common.h``."""


def layer_cache_bytes(
    info: ModelInfo, context_length: int, sessions: int, key_type: str, value_type: str
) -> int:
    """Bytes of one layer's KV cache, at most: counted as if all layers were like the largest.

    Sliding layers count in full, since a node keeps all their positions, to roll back exactly.
    """
    cells = session_positions(context_length, sessions) * sessions
    key, value = _VALUE_BYTES[key_type] * info.key_size, _VALUE_BYTES[value_type] * info.value_size
    return int(cells * info.kv_heads * (key + value))


def fitting_layers(info: ModelInfo, cache_bytes: int, memory_bytes: int) -> int:
    """How many of the model's first layers a node of ``memory_bytes`` holds.

    ``cache_bytes`` is a layer's KV cache. Besides its layers a node needs the model's other
    tensors and the embeddings, or the output matrix if it holds all layers.
    """
    left = memory_bytes - info.other_bytes - info.embedding_bytes
    for number, size in enumerate(info.layer_bytes):
        left -= size + cache_bytes
        last = number == info.total_layers - 1 and not info.tied_embeddings
        if left - (info.output_bytes if last else 0) < 0:
            return number
    return info.total_layers
