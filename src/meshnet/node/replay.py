"""Tokens that a lost chain generated, computed once more before a generation goes on.

They are what the tail will choose again, so the head sends their rows as it sends right guesses:
many at once, in steps of as many rows as are exact, without waiting for any token. Every one that
comes back is held against what was chosen before. Pure bookkeeping.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from meshnet.domain.errors import FingerprintMismatchError
from meshnet.domain.generation import GeneratedToken
from meshnet.node.track import MAX_ROWS_IN_FLIGHT, PLAIN, Plan

MOST_STEPS = 32
"""On their way at once, beside the prompt's chunks that a node hasn't computed yet."""


class Replay:
    """What is left to be computed again, first token first."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self._left = deque(tokens)

    @property
    def left(self) -> int:
        """Tokens that haven't come back."""
        return len(self._left)

    def guess(self, pending: Sequence[int]) -> int | None:
        """The token after those that came back and the pending ones; None behind the last."""
        return self._left[len(pending)] if len(pending) < len(self._left) else None

    def confirm(self, token: GeneratedToken) -> None:
        """Take the token that came back for the first one left.

        Raises :class:`FingerprintMismatchError` if it is another one: this chain computes other
        numbers than the one before it.
        """
        before = self._left.popleft()
        if token.token_id != before:
            raise FingerprintMismatchError(
                f"computed once more, the token at position {token.position} came out as "
                f"{token.token_id} instead of {before}",
                here=str(token.token_id),
                there=str(before),
            )


def replay_plan(step_tokens: int, nodes: int) -> Plan:
    """How far to go ahead on a chain whose steps may have ``step_tokens`` rows.

    Steps for every node and one on its way at once; where steps can't be taken back (0), one row
    after the other.
    """
    if step_tokens < 1:
        return PLAIN
    rows = max(1, min(step_tokens, MAX_ROWS_IN_FLIGHT // (nodes + 1)))
    return Plan(rows, min(MOST_STEPS, MAX_ROWS_IN_FLIGHT // rows))
