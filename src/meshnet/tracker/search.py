"""Finds the best placement: exactly by dynamic programming, or well where there is too much to try.

Machines that nobody can tell apart (equal memory, speed and links) form a kind, and a state of the
exact search is how many of each kind are in use, which was the last one, and up to where layers are
placed. With too many states, one label is kept for each machine and place in the model: the best
way there that uses no machine twice. Both walk the model from its first layer to its last.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.tracker.placement import (
    Costs,
    Demand,
    Machine,
    Matrix,
    ModelShape,
    Objective,
    Placement,
    Speeds,
    costs_of,
    placement_of,
)

MAX_EXACT_OPERATIONS: Final = 300_000_000
"""Elementary steps the exact search may take; about a second's."""

MAX_PREDECESSORS: Final = 128
"""Of the labels at an edge, this many of the best are gone on from where the search isn't exact."""

Combine = Callable[[Matrix, Matrix], Matrix]
Chosen = list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class _Task:
    """Machines with what each range takes on them. ``limit`` bounds a single stage or link."""

    costs: Costs
    machines: Sequence[Machine]
    memory: Matrix
    speeds: Speeds
    links: Matrix
    combine: Combine
    limit: float = np.inf

    def stage(self, machine: int) -> Matrix:
        """Seconds of each range on a machine, shape (edges, edges); infinite if it doesn't fit."""
        seconds = self.costs.seconds(self.machines[machine].speed)
        fits = (self.costs.need <= self.memory[machine]) & (seconds <= self.limit)
        return np.where(fits, seconds, np.inf)

    def stages_from(self, edge: int) -> Matrix:
        """Seconds of the ranges that begin at an edge, shape (machines, edges)."""
        seconds = self.costs.seconds_from(edge, self.speeds)
        fits = (self.costs.need[edge][None, :] <= self.memory[:, None]) & (seconds <= self.limit)
        return np.where(fits, seconds, np.inf)


def place(
    shape: ModelShape, machines: Sequence[Machine], links: Matrix, demand: Demand
) -> Placement:
    """The best chain over some of ``machines``.

    ``links[i, j]`` is how many seconds a boundary row takes from machine i to j. Raises
    ``ResourceExhaustedError`` if the model fits on no chain of them, saying what is missing.
    """
    if links.shape != (len(machines), len(machines)):
        raise InvalidArgumentError("links", f"{links.shape} isn't a square over the machines")
    costs = costs_of(shape, demand)
    kinds = _kinds(machines, links, len(costs.edges) - 1)
    first: Chosen | None = None
    limit = np.inf
    if demand.objective is Objective.THROUGHPUT:
        first, _ = _search(_task(costs, machines, links, np.maximum), kinds)
        limit = _require(first, costs, machines, links, demand).bottleneck_seconds
    found, optimal = _search(_task(costs, machines, links, np.add, limit * (1 + 1e-12)), kinds)
    # An inexact search may miss within the limit what it found without.
    return _require(found or first, costs, machines, links, demand, optimal=optimal)


def _task(
    costs: Costs,
    machines: Sequence[Machine],
    links: Matrix,
    combine: Combine,
    limit: float = np.inf,
) -> _Task:
    memory = np.array([machine.memory_bytes for machine in machines], dtype=np.float64)
    usable = np.where(links <= limit, links, np.inf)
    return _Task(costs, machines, memory, Speeds.of(machines), usable, combine, limit)


def _require(
    found: Chosen | None,
    costs: Costs,
    machines: Sequence[Machine],
    links: Matrix,
    demand: Demand,
    *,
    optimal: bool = False,
) -> Placement:
    if found is not None:
        return placement_of(costs, machines, links, found, optimal=optimal)
    whole, more = costs.need[0, -1], demand.overhead_bytes * (1 + demand.headroom)
    held = sum(machine.memory_bytes for machine in machines)
    raise ResourceExhaustedError(
        f"the model doesn't fit: with {demand.context_tokens} tokens of context for "
        f"{demand.sessions} sessions it needs {whole / 2**30:.2f} GiB on one node, headroom "
        f"included, and {more / 2**20:.0f} MiB more for each further node; {len(machines)} "
        f"machines have {held / 2**30:.2f} GiB"
    )


def _kinds(machines: Sequence[Machine], links: Matrix, most: int) -> list[tuple[int, ...]]:
    """Machines in groups whose members can be exchanged without changing anything.

    Where all links are equal, machines that can't be in any best chain are left out: a chain has at
    most ``most`` of them, so one that as many others match or outdo is never needed.
    """
    if not _is_uniform(links):
        return [(number,) for number in range(len(machines))]
    memory = np.array([machine.memory_bytes for machine in machines], dtype=np.float64)
    merits = np.concatenate([[memory], Speeds.of(machines).merits()])
    # By just what is compared: two groups that are equal in it would each outdo the other.
    groups: dict[tuple[float, ...], list[int]] = {}
    for number, figures in enumerate(merits.T.tolist()):
        groups.setdefault(tuple(figures), []).append(number)
    ordered = sorted(groups.values(), key=lambda members: -machines[members[0]].bytes_per_second)
    merits = merits[:, [members[0] for members in ordered]]
    counts = np.array([len(members) for members in ordered])
    kinds: list[tuple[int, ...]] = []
    for number, members in enumerate(ordered):
        outdo = np.all(merits >= merits[:, number : number + 1], axis=0)
        outdo[number] = False
        room = min(len(members), max(most - int(counts[outdo].sum()), 0))
        if room:
            kinds.append(tuple(members[:room]))
    return kinds


def _is_uniform(links: Matrix) -> bool:
    apart = links[~np.eye(len(links), dtype=bool)]
    return bool(apart.size == 0 or (apart == apart[0]).all())


def _search(task: _Task, kinds: list[tuple[int, ...]]) -> tuple[Chosen | None, bool]:
    """The best chain and whether it is known to be; None if there is none."""
    states = float(np.prod([len(kind) + 1.0 for kind in kinds]))
    if states * len(kinds) ** 2 * len(task.costs.edges) ** 2 <= MAX_EXACT_OPERATIONS:
        return _Exact(task, kinds).best(), True
    return _Labels(task, np.array(sorted(itertools.chain.from_iterable(kinds)))).best(), False


class _Exact:
    """Dynamic programming over how many machines of each kind are in use."""

    def __init__(self, task: _Task, kinds: list[tuple[int, ...]]) -> None:
        self._task = task
        self._kinds = kinds
        self._stages = [task.stage(kind[0]) for kind in kinds]
        firsts = [kind[0] for kind in kinds]
        self._links = task.links[np.ix_(firsts, firsts)]
        for number, kind in enumerate(kinds):
            # To another machine of the same kind; the time to itself is never asked for.
            self._links[number, number] = task.links[kind[0], kind[1]] if len(kind) > 1 else np.inf

    def best(self) -> Chosen | None:
        """The best chain; None if no chain holds the model."""
        found: tuple[float, Chosen | None] = (np.inf, None)
        for head in range(len(self._kinds)):
            found = min(found, self._from(head), key=lambda way: way[0])
        return found[1]

    def _from(self, head: int) -> tuple[float, Chosen | None]:
        """The best chain whose head is of a kind."""
        count = len(self._kinds)
        start = tuple(int(kind == head) for kind in range(count))
        first = np.full((count, len(self._task.costs.edges)), np.inf)
        first[head] = self._stages[head][0]
        reached = {start: first}
        before: dict[tuple[tuple[int, ...], int], tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        best, end = float(first[head, -1]), (start, head)
        queue = [start]
        for used in queue:
            for kind in range(count):
                if used[kind] == len(self._kinds[kind]):
                    continue
                more = (*used[:kind], used[kind] + 1, *used[kind + 1 :])
                arrive = self._task.combine(reached[used], self._links[:, kind][:, None])
                last = arrive.argmin(axis=0)
                totals = self._task.combine(arrive.min(axis=0)[:, None], self._stages[kind])
                totals[0] = np.inf
                if more not in reached:
                    reached[more] = np.full_like(first, np.inf)
                    queue.append(more)
                reached[more][kind] = totals.min(axis=0)
                before[more, kind] = (last, totals.argmin(axis=0))
                back = self._links[kind, head]
                value = float(self._task.combine(reached[more][kind, -1], back))
                if value < best:
                    best, end = value, (more, kind)
        return best, self._walked(before, *end) if np.isfinite(best) else None

    def _walked(
        self,
        before: dict[tuple[tuple[int, ...], int], tuple[NDArray[np.intp], NDArray[np.intp]]],
        used: tuple[int, ...],
        kind: int,
    ) -> Chosen:
        """The way to the model's end, from its last step back."""
        chosen: Chosen = []
        edge = len(self._task.costs.edges) - 1
        while True:
            number = self._kinds[kind][used[kind] - 1]
            if (used, kind) not in before:
                return [(number, 0, edge), *reversed(chosen)]
            last, starts = before[used, kind]
            start = int(starts[edge])
            chosen.append((number, start, edge))
            used = (*used[:kind], used[kind] - 1, *used[kind + 1 :])
            kind, edge = int(last[start]), start


class _Labels:
    """One label for each machine and edge: the best way found there that repeats no machine.

    The way back to the head isn't looked at while searching.
    """

    def __init__(self, task: _Task, numbers: NDArray[np.intp]) -> None:
        self._numbers = numbers
        chosen = [task.machines[number] for number in numbers]
        self._task = replace(
            task, machines=chosen, memory=task.memory[numbers], speeds=Speeds.of(chosen)
        )
        self._links = task.links[np.ix_(numbers, numbers)]
        shape = (len(task.costs.edges), len(numbers))
        self._value = np.full(shape, np.inf)
        self._before = np.zeros((*shape, 2), dtype=np.intp)
        self._used = np.zeros((*shape, -(-len(numbers) // 8)), dtype=np.uint8)

    def best(self) -> Chosen | None:
        """The best chain found; None if none was."""
        for edge in range(len(self._value) - 1):
            self._extend(edge)
        machine = int(self._value[-1].argmin())
        if not np.isfinite(self._value[-1, machine]):
            return None
        chosen: Chosen = []
        edge = len(self._value) - 1
        while edge:
            start, last = map(int, self._before[edge, machine])
            chosen.append((int(self._numbers[machine]), start, edge))
            machine, edge = last, start
        return chosen[::-1]

    def _extend(self, edge: int) -> None:
        """Try every machine from an edge on, behind the best way to that edge it isn't part of."""
        machines = np.arange(len(self._numbers))
        if edge == 0:
            arrive, last = np.zeros(len(machines)), machines
        else:
            reached = np.argsort(self._value[edge])[:MAX_PREDECESSORS]
            reached = reached[np.isfinite(self._value[edge, reached])]
            if reached.size == 0:
                return
            self._note_used(edge, reached)
            part = np.unpackbits(self._used[edge, reached], axis=1, count=len(machines))
            ways = self._task.combine(self._value[edge, reached][:, None], self._links[reached])
            ways[part.astype(bool)] = np.inf
            last = reached[ways.argmin(axis=0)]
            arrive = ways.min(axis=0)
        totals = self._task.combine(arrive[:, None], self._task.stages_from(edge)).T
        better = totals < self._value
        self._value[better] = totals[better]
        ends, which = np.nonzero(better)
        self._before[ends, which, 0] = edge
        self._before[ends, which, 1] = last[which]

    def _note_used(self, edge: int, reached: NDArray[np.intp]) -> None:
        """Which machines the ways to an edge use; final, since all its labels are."""
        starts, last = self._before[edge, reached].T
        self._used[edge, reached] = np.where(
            starts[:, None] > 0, self._used[starts, last], np.uint8(0)
        )
        self._used[edge, reached, reached // 8] |= (128 >> (reached % 8)).astype(np.uint8)
