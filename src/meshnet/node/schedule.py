"""Which of the waiting steps the engine runs next, and how much of them. Pure: values in and out.

Tokens first: a step is all decode steps that wait, or else a piece of one prompt's chunk. Both take
turns when both wait, so that neither starves, and a piece is so small that it delays others' tokens
by a bounded time. A chunk's rows never share a step with others': libllama would compute the rows
of sequences of unequal length in several runs anyway.
"""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import SessionKey

PIECE_OF_DECODE = 1.65
"""How many times as long as a step of others' tokens a piece of a prompt takes, by default.

A token that just missed its turn waits for a piece and then for its own step, so that with twice
the time a chain of busy nodes triples its gaps; the rest is for what the estimate misses.
"""
REMEMBERED_TURNS = 64
"""A prompt whose next chunk is on its way keeps its place behind those that waited longer."""
HARDLY_MORE = 1.1
"""Two steps that differ by this factor take equally long as far as anybody can tell."""
MOST_DECODES = 4
"""A prompt gets its turn after so many decode steps, however long its piece takes."""
FASTER, SLOWER = 0.25, 0.05
"""Weights of a new measurement in the running mean of its number of rows. A step that took longer
than usual was often held up by something else on the machine, and says little."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A step that waits."""

    session: SessionKey
    rows: int
    """That are left to compute."""
    prefill: bool = False
    least_piece: int = 0
    """It may be computed in several steps if each has so many rows, so that no bit of them changes;
    0: only whole."""


@dataclass(frozen=True, slots=True)
class Turn:
    """What the scheduler remembers from step to step."""

    decodes: int = 1
    """Decode steps since the last step of a prompt."""
    served: tuple[SessionKey, ...] = ()
    """The sessions whose prompts had the last steps, the latest last."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One step of the engine."""

    indices: tuple[int, ...]
    """Into the waiting steps."""
    rows: int
    """To be computed; of a prompt's chunk perhaps fewer than are left."""
    turn: Turn

    @property
    def prefill(self) -> bool:
        """Whether it is a prompt's; it is the only one in the step then."""
        return self.turn.decodes == 0


@dataclass(frozen=True, slots=True)
class Cut:
    """How prompts make way for tokens while somebody generates."""

    rows: int
    """Of a piece of a chunk that can be cut."""
    decodes: int = 1
    """Decode steps that go before the next piece, if they wait."""


def choose_step(waiting: Sequence[Ready], turn: Turn, decode_rows: int, cut: Cut | None) -> Choice:
    """The next step: as many decode steps as ``decode_rows`` allows, or a piece of a chunk.

    ``waiting`` is in the order of arrival and not empty; of each session only the first one may
    run. Without a ``cut`` chunks are taken whole, and take turns with decode steps.
    Of the sessions with chunks, the one runs whose last piece was the longest ago.
    """
    first: dict[SessionKey, int] = {}
    for index, ready in enumerate(waiting):
        first.setdefault(ready.session, index)
    chunks = [index for index in first.values() if waiting[index].prefill]
    decodes = _fitting(waiting, [i for i in first.values() if not waiting[i].prefill], decode_rows)
    if not chunks or (decodes and turn.decodes < (1 if cut is None else cut.decodes)):
        rows = sum(waiting[index].rows for index in decodes)
        return Choice(tuple(decodes), rows, Turn(turn.decodes + 1, turn.served))
    last_served = {session: place for place, session in enumerate(turn.served)}
    index = min(chunks, key=lambda chunk: (last_served.get(waiting[chunk].session, -1), chunk))
    ready = waiting[index]
    rows = ready.rows
    if ready.least_piece and cut is not None:
        piece = max(ready.least_piece, cut.rows)
        rows = piece if rows - piece >= ready.least_piece else rows
    others = [each for each in turn.served if each != ready.session]
    served = (*others[-REMEMBERED_TURNS:], ready.session)
    return Choice((index,), rows, Turn(0, served))


def lone_decode(rows: int, turn: Turn) -> Choice:
    """What :func:`choose_step` chooses where a decode step of so many rows is all that waits."""
    return Choice((0,), rows, Turn(turn.decodes + 1, turn.served))


def _fitting(waiting: Sequence[Ready], indices: Sequence[int], limit: int) -> list[int]:
    """The steps from the oldest on that together have at most ``limit`` rows; one at least."""
    taken: list[int] = []
    rows = 0
    for index in indices:
        rows += waiting[index].rows
        if taken and rows > limit:
            break
        taken.append(index)
    return taken


@dataclass(frozen=True, slots=True)
class StepCosts:
    """How long steps take by their number of rows, learned from those that ran."""

    means: dict[int, float] = field(default_factory=dict)
    """Seconds by number of rows: running means."""

    def seen(self, rows: int, seconds: float) -> StepCosts:
        """With one more measurement."""
        old = self.means.get(rows, seconds)
        weight = FASTER if seconds < old else SLOWER
        return StepCosts({**self.means, rows: old + weight * (seconds - old)})

    def seconds(self, rows: int) -> float | None:
        """What a step of ``rows`` would take: between the nearest known numbers, or in proportion.

        One row more than were ever tried is hoped to cost nothing, so that it is tried. None if
        nothing is known.
        """
        exact = self.means.get(rows)
        if exact is not None or not self.means:
            return exact
        known = sorted(self.means)
        place = bisect(known, rows)
        if place == 0:
            return self.means[known[0]] * rows / known[0]
        below = known[place - 1]
        if place == len(known):
            return self.means[below] * max(rows - 1, below) / below
        above = known[place]
        share = (rows - below) / (above - below)
        return self.means[below] + share * (self.means[above] - self.means[below])

    def rows_within(self, seconds: float, most: int) -> int:
        """The most rows, up to ``most``, that take at most ``seconds``; 1 at least."""
        for rows in range(most, 1, -1):
            estimate = self.seconds(rows)
            if estimate is None or estimate <= seconds:
                return rows
        return 1


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a prompt may delay others' tokens, on one node."""

    max_gap_seconds: float = 0.0
    """A piece of a prompt takes at most this long while other sessions generate; 0 means
    :data:`PIECE_OF_DECODE` times as long as their own steps."""
    talking_seconds: float = 5.0
    """A session generates if it had a decode step within this time."""

    def __post_init__(self) -> None:
        if not 0 <= self.max_gap_seconds < float("inf"):
            raise InvalidArgumentError(
                "max_gap_seconds", f"{self.max_gap_seconds} must be 0 or more, and finite"
            )
        if not 0 < self.talking_seconds < float("inf"):
            raise InvalidArgumentError(
                "talking_seconds", f"{self.talking_seconds} must be positive and finite"
            )

    def cut(self, costs: StepCosts, decode_rows: int, least: int, most: int) -> Cut:
        """How chunks of ``most`` rows are cut while others' decode steps have ``decode_rows`` rows.

        A piece has ``least`` rows whatever they take, and by default those along that cost hardly
        more. One that takes longer than it should lets more decode steps go first.
        """
        if self.max_gap_seconds:
            return Cut(max(least, costs.rows_within(self.max_gap_seconds, most)))
        allowed = (costs.seconds(decode_rows) or 0.0) * PIECE_OF_DECODE
        smallest = (costs.seconds(least) or 0.0) * HARDLY_MORE
        rows = max(least, costs.rows_within(max(allowed, smallest), most))
        takes = costs.seconds(rows) or 0.0
        return Cut(rows, min(math.ceil(takes / allowed), MOST_DECODES) if allowed else 1)
