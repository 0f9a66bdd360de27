"""Which rows are on their way along the chain, and what a token that comes back means for them.

The head sends the row of a token that the tail chose, and may send rows of guesses behind it before
their turn has come. A token that comes back confirms the guess at its position or refutes it; then
everything sent from there on is void, and the next step cuts the nodes' caches back. Pure
bookkeeping: no clock, no I/O.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from meshnet.domain.errors import InternalError
from meshnet.domain.generation import GeneratedToken

MAX_ROWS_IN_FLIGHT = 64
"""Rows that may be on their way at once; a tail keeps more tokens than that for a broken stream."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How far to go ahead: rows of one step, and steps on their way at once."""

    rows: int
    steps: int


PLAIN = Plan(1, 1)
"""No guesses."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """A step to compute: consecutive rows, the first of a chosen token or of a guess."""

    number: int
    position: int
    tokens: tuple[int, ...]
    truncate: bool
    """Whether the nodes may hold void rows from the position on."""
    alone: bool
    """Whether no other step is on its way."""


@dataclass(frozen=True, slots=True)
class Taken:
    """What a token that came back was."""

    guessed: bool | None
    """Whether the guess at its position was right; None if there was none."""
    first_of: NextStep | None
    """The step whose first token it is."""


class DecodeTrack:
    """One generation's rows."""

    def __init__(self, prompt_tokens: int, limit: int, ends: frozenset[int]) -> None:
        """No row is needed from position ``limit`` on, nor after a token in ``ends``."""
        self._known = prompt_tokens
        """Tokens that are certain; also the position of the next one."""
        self._last = 0
        self._sent = prompt_tokens
        """Rows below this position were sent, or belong to the prompt."""
        self._limit = limit
        self._ends = ends
        self._pending: deque[int] = deque()
        """The guesses at the positions from ``known`` on that were sent."""
        self._steps: deque[NextStep] = deque()
        self._valid_from = 0
        """Tokens of earlier steps are void."""
        self._void_rows = False
        self.next_number = 0

    @property
    def pending(self) -> Sequence[int]:
        """Guesses that were sent and aren't decided."""
        return self._pending

    def number(self) -> int:
        """A number for a step, of a chunk too."""
        self.next_number += 1
        return self.next_number - 1

    def live(self, step: int) -> bool:
        """Whether a step's tokens are still wanted."""
        return step >= self._valid_from

    def take(self, step: int, token: GeneratedToken) -> Taken | None:
        """Enter a token that came back; None for one that is void or came before.

        Raises :class:`InternalError` for one that can't be: nothing was sent that it is due to.
        """
        if step >= self.next_number:
            raise InternalError(f"a token of step {step} came back before the step was sent")
        if step < self._valid_from or token.position < self._known:
            return None
        if token.position > self._known:
            raise InternalError(
                f"the token at position {token.position} came back, but {self._known} is due"
            )
        first = self._steps[0] if self._steps and self._steps[0].number == step else None
        if first is not None and first.position + 1 != token.position:
            first = None
        self._known += 1
        self._last = token.token_id
        while self._steps and self._steps[0].position + len(self._steps[0].tokens) < self._known:
            self._steps.popleft()
        if not self._pending:
            return Taken(None, first)
        right = self._pending.popleft() == token.token_id
        if not right:
            self._pending.clear()
            self._steps.clear()
            self._sent = self._known - 1
            self._valid_from = self.next_number
            self._void_rows = True
        return Taken(right, first)

    def due(
        self, plan: Plan, guesses: int, guess: Callable[[Sequence[int]], int | None]
    ) -> NextStep | None:
        """The next step to send, with ``guesses`` guesses at most; None if it isn't time for one.

        ``guess`` is asked for the token after the pending ones.
        """
        tokens: list[int] = []
        if self._sent < self._known:
            tokens.append(self._last)
        elif len(self._steps) >= plan.steps:
            return None
        room = min(
            plan.rows - len(tokens),
            guesses,
            self._limit - self._sent - len(tokens),
            MAX_ROWS_IN_FLIGHT - len(self._pending) - 1,
        )
        for _ in range(room if plan is not PLAIN else 0):
            if self._pending and self._pending[-1] in self._ends:
                break
            guessed = guess(self._pending)
            if guessed is None:
                break
            self._pending.append(guessed)
            tokens.append(guessed)
        if not tokens:
            return None
        alone = not self._steps
        step = NextStep(self.number(), self._sent, tuple(tokens), self._void_rows, alone)
        self._sent += len(tokens)
        self._void_rows = False
        self._steps.append(step)
        return step
