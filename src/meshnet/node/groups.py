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
WORTH_DIVIDING = 0.98
"""One more group is worth it if a turn of all then takes at most so many times as long."""
MOST_AWAY = 64.0
"""So many steps away count at most: a session may also have waited for its reader."""


@dataclass(frozen=True, slots=True)
class Away:
    """How long a session is away from the head between two steps, learned from those it made."""

    steps: float | None = None
    """In steps of the head with as many rows: a running mean that leans to short times, since
    waiting behind others is part of what is seen. None if nothing is known."""

    def seen(self, away_nanos: int, step_nanos: int) -> Away:
        """With one more measurement: the time from a step's end, and what that step took."""
        new = min(max(away_nanos, 0) / max(step_nanos, 1), MOST_AWAY)
        old = new if self.steps is None else self.steps
        # One that waited for something else must not count for many.
        new = min(new, 2 * old + 1)
        weight = FASTER if new < old else SLOWER
        return Away(old + weight * (new - old))


def most_decode_rows(
    bound: int, talkers: int, stages: int, costs: StepCosts, away: Away, *, prompt: bool
) -> int:
    """Rows of a head's decode step, at most ``bound``, where ``talkers`` sessions generate.

    On a chain of one node all of them. Beside a prompt no node waits, and what the sessions save by
    sharing a step is the prompt's.
    """
    if stages == 1:
        return bound
    fewest = max(1, min(stages, talkers))
    if not prompt:
        return _rows(bound, talkers, _groups(talkers, fewest, costs, away))
    group = _rows(bound, talkers, fewest)
    one, all_ = costs.seconds(group), costs.seconds(min(talkers, bound))
    merges = one is not None and all_ is not None and all_ <= WORTH_MERGING * one
    return bound if merges else group


def _rows(bound: int, talkers: int, groups: int) -> int:
    return max(1, min(bound, math.ceil(talkers / groups)))


def _groups(talkers: int, fewest: int, costs: StepCosts, away: Away) -> int:
    """As few as a turn of all takes hardly longer with than with more."""
    best, chosen = _turn_seconds(talkers, fewest, costs, away), fewest
    for groups in range(fewest + 1, talkers + 1):
        takes = _turn_seconds(talkers, groups, costs, away)
        if best is not None and takes is not None and takes <= WORTH_DIVIDING * best:
            best, chosen = takes, groups
    return chosen


def _turn_seconds(talkers: int, groups: int, costs: StepCosts, away: Away) -> float | None:
    """From one step of a group to its next; None if too little is known.

    The head computes all groups one after the other, or waits for the first one to come back.
    """
    rows, larger_ones = divmod(talkers, groups)
    small, large = costs.seconds(max(rows, 1)), costs.seconds(rows + 1)
    if small is None or large is None or away.steps is None:
        return None
    busy = larger_ones * large + (groups - larger_ones) * small
    longest = large if larger_ones else small
    return max(busy, longest * (1 + away.steps))
