"""What should change in a cluster, given what it is and what its nodes say now. Pure.

The rules, in order:

1. A node keeps its layers as long as it is there and has room for them.
2. Layers that nobody holds, or only nodes that are to leave, go to one machine that has room for
   just them; else to several. Machines that hold nothing are taken first, then those whose layers
   others are ready with too. If it takes another one's, somebody gets ready in its place before.
   Only where nobody holds layers any more is the model placed anew, whoever serves.
3. Of two models the larger one is looked after first. If one that nobody holds can't be placed on
   what the others don't need, all are packed anew, each on as few of the largest machines as it
   takes.
4. Machines that are left hold what others hold too, where that helps most.
5. If a machine has room for nothing that is held, the model is placed anew with it, where that is
   better by :data:`WORTH_MOVING` and takes nothing from a machine that serves alone.

A node that is drained, or whose owner wants it back soon, keeps its layers until others are ready
with all of the model's, and can be reached. One that is silent keeps them until others are told to
hold them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.chains import (
    Machines,
    Seats,
    Task,
    best_chain,
    gaps,
    is_complete,
    machine_of,
    quickest,
    seconds_of,
)
from meshnet.tracker.events import Event, Placed, Seat
from meshnet.tracker.mending import MOST_GAPS, mended, on_the_fewest, placed_anew, placed_ideally
from meshnet.tracker.observed import Observed
from meshnet.tracker.overdue import overdue
from meshnet.tracker.replicas import replicas
from meshnet.tracker.served import Served
from meshnet.tracker.state import ClusterState, apply_all, seats_of

WORTH_MOVING: Final = 1.25
"""Machines that hold layers load others only where a token then takes so much less time."""
_ROUNDS: Final = 4


def plan(
    state: ClusterState,
    observed: Observed,
    now: float,
    unix: float,
    unreachable: Collection[NodeId] = (),
) -> tuple[Event, ...]:
    """The events that should happen now; none where all is well.

    ``now`` is that of ``observed``; ``unix`` decides owners' hours and how long tokens are good.
    No chain goes over ``unreachable`` nodes, ready or not.
    Applying them and planning again gives nothing new. May take a second where hundreds of machines
    that differ have to be placed, so callers on an event loop use a thread.
    """
    events = overdue(state, observed, now, unix)
    state = apply_all(state, events)
    for _ in range(_ROUNDS):
        board = _Board(Draft(state, observed, now, unix, frozenset(unreachable)))
        board.settle()
        changes = board.changes()
        if not changes:
            break
        # What was just moved serves nothing, by which others may be needed or not.
        events += changes
        state = apply_all(state, changes)
    return tuple(events)


@dataclass(frozen=True, slots=True)
class Draft:
    """The cluster at a moment, from which the next changes are planned."""

    state: ClusterState
    observed: Observed
    """Nobody changes this one."""
    now: float
    unix: float
    """The same moment by the wall clock."""
    unreachable: frozenset[NodeId] = frozenset()
    """Nodes that no chain can use, though they may be ready: see :mod:`meshnet.tracker.reach`."""

    def events(self) -> tuple[Event, ...]:
        """What is to be changed; may take a second where there are many machines."""
        return plan(self.state, self.observed, self.now, self.unix, self.unreachable)


class _Board:
    """The cluster while it is planned: seats of the machines that may be used."""

    def __init__(self, draft: Draft) -> None:
        self._state, self._observed = draft.state, draft.observed
        self._now, self._unix, self._unreachable = draft.now, draft.unix, draft.unreachable
        state = draft.state
        self._lent: Machines = {
            node: machine_of(member.resources, draft.observed.speeds(node))
            for node, member in sorted(state.members.items())
            if member.resources is not None
        }
        self._machines: Machines = {
            node: machine for node, machine in self._lent.items() if self._is_usable(node)
        }
        """Those that may be used."""
        tasks = (Task.of(key, offer.shape, offer.demand) for key, offer in state.models.items())
        self._tasks = sorted(tasks, key=lambda task: (-sum(task.shape.layer_bytes), task.digest))
        self._before = {task.digest: seats_of(state, task.digest) for task in self._tasks}
        self._seats: dict[Digest, Seats] = {
            task.digest: {
                node: layers
                for node, layers in self._before[task.digest].items()
                if node in self._machines and task.keeps(layers, self._machines[node])
            }
            for task in self._tasks
        }
        self._kept = {digest: dict(seats) for digest, seats in self._seats.items()}
        """Those of the seats before that nothing forces to be given up."""
        self._served: dict[Digest, Served] = {}
        self._recut: set[Digest] = set()
        """Models whose layers aren't held by the same machines any more."""

    def settle(self) -> None:
        """Bring every model's layers onto machines, by the rules above."""
        for task in self._tasks:
            if not self._holds(task):
                self._restore(task)
        if len(self._tasks) > 1 and not all(map(self._is_held, self._tasks)):
            self._repack()
        for _ in range(_ROUNDS):
            whole = [task for task in self._tasks if self._holds(task)]
            given = replicas(whole, self._seats, self._spare(), self._machines)
            for digest, seats in given.items():
                self._seats[digest].update(seats)
            if not (self._spare() and any(map(self._improve, whole))):
                return

    def changes(self) -> list[Placed]:
        """A placement for every model whose seats aren't what they were."""
        placed: list[Placed] = []
        for task in self._tasks:
            seats = self._with_leaving(task)
            if seats != self._before[task.digest]:
                ordered = sorted((layers, node) for node, layers in seats.items())
                epoch = self._state.epoch + len(placed) + 1
                held = tuple(Seat(node, layers) for layers, node in ordered)
                placed.append(Placed(task.digest, epoch, held))
        return placed

    def _restore(self, task: Task) -> None:
        """Bring layers onto machines that nobody holds, or only nodes that are to leave."""
        seats, spare = self._seats[task.digest], self._spare()
        unneeded = [*spare, *self._unneeded()]
        for free in (spare, unneeded, [*spare, *self._movable()]):
            if self._mend(task, free):
                return
        anew = self._anew(task, unneeded)
        if anew is not None and self._move(task, {**seats, **anew}):
            return
        if self._is_held(task):
            self._make_way(task)
            return
        # No request is served, and none will be before somebody has moved.
        doubled = filter(self._is_eligible, Served(task, {}).movable(seats))
        if self._mend(task, [*spare, *doubled], is_forced=True):
            return
        anew = self._anew(task, [*unneeded, *seats])
        if anew is not None:
            self._move(task, anew, is_forced=True)

    def _mend(self, task: Task, free: Sequence[NodeId], *, is_forced: bool = False) -> bool:
        """Give the layers that are missing to some of these, where the others keep theirs."""
        more = mended(task, self._seats[task.digest], free, self._machines, self._observed)
        if more is None:
            return False
        seats = {**self._seats[task.digest], **more}
        return is_complete(task, seats.values()) and self._move(task, seats, is_forced=is_forced)

    def _make_way(self, task: Task) -> None:
        """Let a machine hold what another one does, so that this can take what is missing.

        That one is moved once the other is ready.
        """
        seats = self._seats[task.digest]
        free = sorted(
            [*self._spare(), *self._unneeded()],
            key=lambda node: (-self._machines[node].bytes_per_second, node),
        )
        held = Counter(seats.values())
        able = [
            node
            for gap in gaps(task, held)[:MOST_GAPS]
            for node in sorted(seats.keys() - set(free))
            if self._is_eligible(node) and self._machines[node].memory_bytes >= task.need(gap)
        ]
        if any(held[seats[node]] > 1 for node in able):
            return
        for node in able:
            need = task.need(seats[node])
            for other in free:
                is_able = self._machines[other].memory_bytes >= need
                if is_able and self._move(task, {**seats, other: seats[node]}):
                    return

    def _repack(self) -> None:
        """Place all models anew, if more of them are whole then."""
        left, packed = set(filter(self._is_eligible, self._machines)), dict[Digest, Seats]()
        for task in self._tasks:
            seats = on_the_fewest(task, left, self._machines)
            if seats is not None:
                packed[task.digest] = seats
                left -= seats.keys()
        if len(packed) > sum(map(self._is_held, self._tasks)):
            for task in self._tasks:
                self._give(task, packed.get(task.digest, {}))

    def _improve(self, task: Task) -> bool:
        """Place a model anew with the spare machines, if that is worth its moves."""
        seats = self._seats[task.digest]
        nodes = [*seats, *self._spare()]
        ideal = placed_ideally(task, nodes, self._machines)
        if ideal is None or not self._is_worth(task, seats, ideal):
            return False
        anew = self._anew(task, nodes)
        if anew is None or not self._is_worth(task, seats, anew):
            return False
        if self._move(task, anew) or self._move(task, {**seats, **anew}):
            return True
        unneeded = seats.keys() & set(self._unneeded())
        beside = self._anew(task, [*self._spare(), *unneeded])
        if beside is None:
            return False
        beside = {**seats, **beside}
        return self._is_worth(task, seats, beside) and self._move(task, beside)

    def _move(self, task: Task, seats: Seats, *, is_forced: bool = False) -> bool:
        """Seat a model on these machines, unless that takes what a model needs or is served by.

        ``is_forced``: whatever is served of this model.
        """
        for each in self._tasks:
            before = self._seats[each.digest]
            after = {node: layers for node, layers in before.items() if node not in seats}
            if each is task:
                after = seats
            if self._holds(each) and not is_complete(each, after.values()):
                return False
            kept = self._kept[each.digest].items()
            moved = {node for node, layers in kept if after.get(node) != layers}
            if not ((is_forced and each is task) or self._served_of(each).bears(moved)):
                return False
        self._give(task, seats)
        return True

    def _give(self, task: Task, seats: Seats) -> None:
        """Seat a model on these machines, whatever they held."""
        for other in self._seats.values():
            for node in seats.keys() & other.keys():
                del other[node]
        self._seats[task.digest] = dict(seats)
        self._recut.add(task.digest)

    def _anew(self, task: Task, nodes: Iterable[NodeId]) -> Seats | None:
        current = self._before[task.digest]
        return placed_anew(task, set(nodes), self._machines, self._observed, current)

    def _is_worth(self, task: Task, seats: Seats, anew: Seats) -> bool:
        now = seconds_of(task, seats, self._machines)
        return now > WORTH_MOVING * seconds_of(task, anew, self._machines)

    def _holds(self, task: Task) -> bool:
        return is_complete(task, self._seats[task.digest].values())

    def _is_held(self, task: Task) -> bool:
        """Whether all layers are held, if some only by nodes that are to leave."""
        if self._holds(task):
            return True
        held = [*self._seats[task.digest].values(), *self._staying(task).values()]
        return is_complete(task, held)

    def _served_of(self, task: Task) -> Served:
        """Who serves a model now, of those that nothing forces to end."""
        if task.digest not in self._served:
            staying = self._staying(task)
            self._served[task.digest] = self._ready(task, {**self._kept[task.digest], **staying})
        return self._served[task.digest]

    def _ready(self, task: Task, seats: Seats) -> Served:
        return Served.of(task, seats, self._observed, self._now, self._unreachable)

    def _spare(self) -> list[NodeId]:
        """Machines that hold nothing, and are known to be there."""
        seated = set[NodeId]().union(*self._seats.values())
        return [node for node in self._machines if node not in seated and self._is_eligible(node)]

    def _unneeded(self) -> list[NodeId]:
        """Machines that may all be given other layers at once: others hold and serve the same."""
        found: list[NodeId] = []
        for task in self._tasks:
            seats = self._seats[task.digest]
            if self._holds(task):
                needed = set(best_chain(task, seats, self._machines)[1])
            else:
                needed = set(quickest(task, seats, self._machines).values())
            served = self._served_of(task)
            others = [node for node in seats if node not in needed and self._is_eligible(node)]
            if served.is_whole():
                chain = set(served.chain(self._lent))
                found += [node for node in others if node not in chain]
            else:
                movable = set(served.movable(seats))
                found += [node for node in others if node in movable]
        return found

    def _movable(self) -> list[NodeId]:
        """Machines of which any one may be given other layers."""
        return [
            node
            for task in self._tasks
            for node in self._served_of(task).movable(self._seats[task.digest])
            if self._is_eligible(node)
        ]

    def _with_leaving(self, task: Task) -> Seats:
        """The seats, and those of nodes that keep theirs for now though they aren't counted on."""
        seats = dict(self._seats[task.digest])
        seated = set[NodeId]().union(*self._seats.values())
        others = {
            node: layers
            for node, layers in self._before[task.digest].items()
            if node not in seated
            and node not in self._machines
            and self._may_keep(task, node, layers)
        }
        if not others:
            return seats
        is_served, is_held = self._ready(task, seats).is_whole(), self._holds(task)
        for node, layers in others.items():
            if self._is_leaving(node):
                is_kept = not is_served
            else:
                is_kept = not (is_held and task.digest in self._recut)
            if is_kept:
                seats[node] = layers
        return seats

    def _staying(self, task: Task) -> Seats:
        """Nodes that are to leave, but are there, and serve until others do."""
        return {
            node: layers
            for node, layers in self._before[task.digest].items()
            if self._is_leaving(node)
            and self._is_there(node)
            and self._may_keep(task, node, layers)
        }

    def _is_usable(self, node: NodeId) -> bool:
        return self._is_there(node) and not self._is_leaving(node)

    def _is_there(self, node: NodeId) -> bool:
        """Whether it isn't silent for too long, nor fails to load its layers."""
        silent = self._observed.silent_seconds(node, self._now)
        is_gone = silent > self._observed.policy.lease_seconds
        return not is_gone and not self._observed.is_blocked(node, self._now)

    def _is_eligible(self, node: NodeId) -> bool:
        return self._observed.is_live(node, self._now)

    def _is_leaving(self, node: NodeId) -> bool:
        member = self._state.members[node]
        ahead = self._unix + self._observed.policy.leave_ahead_seconds
        lent = self._is_lent(node, self._unix) and self._is_lent(node, ahead)
        return member.drained or not lent

    def _may_keep(self, task: Task, node: NodeId, layers: LayerRange) -> bool:
        """Whether the owner lends the machine now, and enough of it."""
        resources = self._state.members[node].resources
        return (
            resources is not None
            and self._is_lent(node, self._unix)
            and task.keeps(layers, machine_of(resources))
        )

    def _is_lent(self, node: NodeId, unix: float) -> bool:
        resources = self._state.members[node].resources
        return resources is None or resources.hours is None or resources.hours.holds(unix)
