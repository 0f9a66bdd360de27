"""Into how many groups a chain's head divides its sessions. Pure: values in and out.

All in one step would leave every node but one idle, and a step each would give up what they save by
sharing one. In between, the head waits while all groups are away. How long a group is away it sees:
hardly longer than the other nodes compute where they are near, several steps where they are far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshnet.node.schedule import FASTER, SLOWER, StepCosts

WORTH_MERGING = 1.75
"""Beside a prompt a chain's groups of sessions go in one step if it takes at most so many times as
long as one group's: twice would be what the groups take one after the other."""
WORTH_DIVIDING = 0.92
"""More groups are worth it if a turn of all then takes at most so many times as long. One that
seems hardly shorter may turn out longer: where a later node is the slowest, smaller groups wait
there for one another, and it has more steps to do."""
HARDLY_AWAY_SECONDS = 0.001
"""Beyond twice the usual time away and this, it doesn't matter how long."""


@dataclass(frozen=True, slots=True)
class Away:
    """How long a session is away from the head between two steps, learned from those it made."""

    seconds: float | None = None
    """On the way, in the other nodes' steps and waiting for them: a running mean that leans to
    short times. None if nothing is known."""

    def seen(self, seconds: float) -> Away:
        """With one more measurement: the time from a step's end to the next one's arrival."""
        old = seconds if self.seconds is None else self.seconds
        # One that waited for its reader, say, must not count for many.
        new = min(max(seconds, 0.0), 2 * old + HARDLY_AWAY_SECONDS)
        weight = FASTER if new < old else SLOWER
        return Away(max(old + weight * (new - old), 0.0))


def most_decode_rows(
    bound: int, talkers: int, stages: int, costs: StepCosts, away: Away, *, prompt: bool
) -> int:
    """Rows of a head's decode step, at most ``bound``, where ``talkers`` sessions generate.

    On a chain of one node all of them. Beside a prompt no node waits, and what the sessions save by
    sharing a step is the prompt's.
    """
    if stages == 1:
        return bound
    group = max(1, min(bound, math.ceil(talkers / stages)))
    if not prompt:
        return _divided(group, talkers, costs, away)
    one, all_ = costs.seconds(group), costs.seconds(min(talkers, bound))
    merges = one is not None and all_ is not None and all_ <= WORTH_MERGING * one
    return bound if merges else group


def _divided(most: int, talkers: int, costs: StepCosts, away: Away) -> int:
    """The most rows with which a turn of all is hardly longer than with any fewer."""
    turns = {rows: _turn_seconds(rows, talkers, costs, away) for rows in range(most, 0, -1)}
    known = {rows: seconds for rows, seconds in turns.items() if seconds is not None}
    if len(known) < len(turns):
        return most
    shortest = min(known.values())
    return next(rows for rows, seconds in known.items() if WORTH_DIVIDING * seconds <= shortest)


def _turn_seconds(rows: int, talkers: int, costs: StepCosts, away: Away) -> float | None:
    """From one step of a group of so many rows to its next; None if too little is known.

    The head computes all groups one after the other, or waits for the first one to come back: not
    sooner than now, though smaller groups take the other nodes less.
    """
    groups, rest = divmod(talkers, rows)
    one, last = costs.seconds(rows), costs.seconds(max(rest, 1))
    if one is None or last is None or away.seconds is None:
        return None
    return max(groups * one + (last if rest else 0.0), one + away.seconds)
