"""How far to guess ahead: decided from how often guesses are right and what they cost.

Guesses are made all the time and cost nothing until rows are sent for them, so it is known whether
they would have been right. Rows of guesses pay where steps of several rows take little longer than
steps of one, and where the way through the chain takes longer than the slowest node's step: then
several steps can be on their way. Pure: times come in as numbers.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from meshnet.domain.generation import Speculation
from meshnet.node.track import MAX_ROWS_IN_FLIGHT, PLAIN, Plan

SIZES = (1, 2, 4, 8, 16, 32)
MEMORY = 0.95
"""What a guess counts after the next one; about the last twenty decide."""
ENOUGH = 5.0
"""Guesses, so counted, before a share of right ones is believed."""
NEWS = 4
"""After so many guesses the plan is thought over."""
CLEAR_GAIN = 1.15
"""How much faster a plan must promise to be than no guesses."""
WORTH_MORE = 1.05
"""How much faster a plan with more steps or rows must be than one with fewer."""
ROW_SHARE = 0.4
"""What one more row is taken to cost, in single steps, until it was measured."""
SMOOTHING = 0.2
TRIAL_TOKENS = 16
"""After so many tokens with guesses it is looked whether they were worth it."""
CLEAR_LOSS = 1.05
"""How many times as long as without guesses tokens must take for a trial to have failed: less is
chance, or a passage that the text had never before."""
FIRST_REST, LONGEST_REST = 32, 4096
"""Tokens without guesses after a trial that failed; doubled each time."""
DETERMINED = 0.8
"""The share of right guesses that is acted on where guessing was asked for."""


@dataclass(slots=True)
class Average:
    """A mean that follows change; None before the first value."""

    value: float | None = None

    def add(self, value: float) -> None:
        """Take one more value in."""
        old = self.value
        self.value = value if old is None else old + SMOOTHING * (value - old)


@dataclass(slots=True)
class SpeculationControl:
    """One generation's decisions, at its head. Times are in nanoseconds."""

    mode: Speculation
    max_rows: int
    """Rows of one step that are exact on every node; 0 where steps can't be taken back."""
    nodes: int
    plan: Plan = PLAIN
    proposed: int = 0
    """Guesses whose rows were sent and whose turn came."""
    accepted: int = 0
    """Those of them that were right."""
    _right: float = 0.0
    _all: float = 0.0
    _trips: dict[int, Average] = field(default_factory=dict)
    _steps: dict[int, Average] = field(default_factory=dict)
    _news: int = 0
    """Guesses decided since the plan was thought over."""
    _trial: tuple[int, int] | None = None
    """When the trial began, and how many tokens came since."""
    _rest: int = 0
    _next_rest: int = FIRST_REST

    @property
    def possible(self) -> bool:
        """Whether guesses are of any use."""
        return self.mode is not Speculation.OFF and self.max_rows > 0

    def guessed(self, *, right: bool, sent: bool) -> None:
        """A guess was decided; ``sent``: rows had been sent for it."""
        self.proposed += sent
        self.accepted += sent and right
        self._right = self._right * MEMORY + right
        self._all = self._all * MEMORY + 1.0
        self._news += 1

    def stepped(self, rows: int, nanos: int) -> None:
        """The head's engine took this long for a step."""
        self._steps.setdefault(rows, Average()).add(nanos)

    def travelled(self, rows: int, nanos: int) -> None:
        """A step with no other before it took this long from its start to its first token."""
        self._trips.setdefault(rows, Average()).add(nanos)

    def token(self, now: int) -> None:
        """A token is certain: think again, if there is news, once in a while."""
        if self._rest:
            self._rest -= 1
        if self._trial is not None:
            self._judge(now)
        if self._news >= NEWS or (self.mode is Speculation.ON and self.plan is PLAIN):
            self._news = 0
            self._decide(now)

    def interrupted(self) -> None:
        """The time that passes now isn't the chain's: its reader keeps it waiting."""
        self._trial = None if self._trial is None else (0, 0)

    def _judge(self, now: int) -> None:
        """After a stretch of guessing, compare it with what was measured without."""
        began, tokens = self._trial or (0, 0)
        if not began:
            self._trial = (now, 0)
            return
        tokens += 1
        self._trial = (began, tokens)
        alone = self._trip(1)
        if tokens < TRIAL_TOKENS or alone is None:
            return
        self._trial = (now, 0)
        if (now - began) / tokens < CLEAR_LOSS * alone or self.mode is Speculation.ON:
            self._next_rest = FIRST_REST
            return
        self._rest = self._next_rest
        self._next_rest = min(2 * self._next_rest, LONGEST_REST)
        self.plan, self._trial = PLAIN, None

    def _decide(self, now: int) -> None:
        alone = self._trip(1)
        if not self.possible or alone is None or self._rest:
            self.plan = PLAIN
        elif self.mode is Speculation.ON:
            self.plan = self._best(DETERMINED, alone)[0]
        elif self._all < ENOUGH:
            self.plan = PLAIN
        else:
            # As if one more had been wrong: a short run of luck mustn't decide.
            plan, gain = self._best(self._right / (self._all + 1.0), alone)
            self.plan = plan if gain >= CLEAR_GAIN else PLAIN
        if self.plan is PLAIN:
            self._trial = None
        elif self._trial is None:
            self._trial = (now, 0)

    def _best(self, share: float, alone: float) -> tuple[Plan, float]:
        """The plan that promises most, and how many times as fast it is as no guesses."""
        best, gain = PLAIN, 1.0
        # Few steps of many rows first: each step costs every node some work besides its rows.
        for steps, rows in itertools.product(SIZES, SIZES):
            if rows > self.max_rows or rows * steps > MAX_ROWS_IN_FLIGHT or rows * steps == 1:
                continue
            promised = alone * self._rate(share, Plan(rows, steps))
            if promised > gain * WORTH_MORE:
                best, gain = Plan(rows, steps), promised
        return best, gain

    def _rate(self, share: float, plan: Plan) -> float:
        """Tokens a nanosecond, if each guess is right with probability ``share``.

        A run of right guesses, and the token that ends it, takes one way through the chain for its
        first step, then one interval for each step more. The interval is that of the slowest node,
        or what the steps on their way leave of a whole trip. The step after the run waits for a
        void one that was begun.
        """
        trip, step = self._trip(plan.rows) or 1.0, self._step(plan.rows)
        if plan.steps == 1:
            return (1 - share**plan.rows) / (1 - share) / trip
        run = min(1 / (1 - share), 4.0 * MAX_ROWS_IN_FLIGHT)
        interval = max(step, trip / plan.steps)
        more = max(run / plan.rows - 0.5, 0.0)
        return run / (trip + more * interval + step)

    def _step(self, rows: int) -> float:
        """A node's time for a step of so many rows; the head's is taken for all."""
        measured = self._steps.get(rows)
        if measured is not None and measured.value is not None:
            return measured.value
        one = self._steps.get(1)
        single = one.value if one is not None and one.value is not None else 0.0
        return single * (1 + ROW_SHARE * (rows - 1))

    def _trip(self, rows: int) -> float | None:
        measured = self._trips.get(rows)
        if measured is not None and measured.value is not None:
            return measured.value
        one = self._trips.get(1)
        if one is None or one.value is None:
            return None
        return one.value + self.nodes * (self._step(rows) - self._step(1))
