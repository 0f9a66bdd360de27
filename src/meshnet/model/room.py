"""How many positions libllama really gives each session."""

from __future__ import annotations

from typing import Final

_CELLS: Final = 256
"""libllama rounds contexts up to a multiple of this."""


def session_positions(context_length: int, sessions: int) -> int:
    """Positions of each session's cache, at least ``context_length``.

    All sessions' positions are rounded up together, and then each one's share of them, as
    ``llama_context``'s constructor does it (``llama-context.cpp``).
    """
    return _rounded(_rounded(context_length * sessions) // sessions)


def _rounded(positions: int) -> int:
    return -(-positions // _CELLS) * _CELLS
