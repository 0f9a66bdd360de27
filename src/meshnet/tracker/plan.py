"""What should change in a cluster, given what it is and what its nodes say now. Pure.

The rules, in order:

1. A node keeps its layers as long as it is there and has room for them.
2. Layers that nobody holds go to one machine that has room for just them; else to several; else the
   model is placed anew. Machines that hold nothing are taken first, then those whose layers others
   hold too. A model is also placed anew where that is better by :data:`WORTH_MOVING`.
3. Of two models the larger one is looked after first. If one can't be placed on what the others
   don't need, all are packed anew, each on as few of the largest machines as it takes.
4. Machines that are left hold what others hold too, where that helps most.
5. If a machine has room for nothing that is held, the model is placed anew with it, where that is
   better by :data:`WORTH_MOVING`.

A node that is drained, or whose owner wants it back soon, keeps its layers until others are ready
with all of the model's. One that is silent keeps them until others are told to hold them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.chains import (
    Machines,
    Seats,
    Task,
    best_chain,
    is_complete,
    quickest,
    seconds_of,
)
from meshnet.tracker.events import Event, NodeForgotten, Placed, Resources, Seat, TokenRevoked
from meshnet.tracker.mending import mended, on_the_fewest, placed_anew, placed_ideally
from meshnet.tracker.observed import Observed
from meshnet.tracker.placement import Machine
from meshnet.tracker.replicas import replicas
from meshnet.tracker.state import ClusterState, Member, apply_all, seats_of

WORTH_MOVING: Final = 1.25
"""Machines that hold layers load others only where a token then takes so much less time."""
_ROUNDS: Final = 4
_LARGE = 1 << 30
_GRAIN = 64 << 20


def plan(state: ClusterState, observed: Observed, now: float, unix: float) -> tuple[Event, ...]:
    """The events that should happen now; none where all is well.

    ``now`` is that of ``observed``; ``unix`` decides owners' hours and how long tokens are good.
    Applying them and planning again gives nothing new. May take a second where hundreds of machines
    that differ have to be placed, so callers on an event loop use a thread.
    """
    over = _overdue(state, observed, now, unix)
    state = apply_all(state, over)
    board = _Board(state, observed, now, unix)
    board.settle()
    return (*over, *board.changes())


@dataclass(frozen=True, slots=True)
class Draft:
    """The cluster at a moment, from which the next changes are planned."""

    state: ClusterState
    observed: Observed
    """Nobody changes this one."""
    now: float
    unix: float
    """The same moment by the wall clock."""

    def events(self) -> tuple[Event, ...]:
        """What is to be changed; may take a second where there are many machines."""
        return plan(self.state, self.observed, self.now, self.unix)


def _overdue(state: ClusterState, observed: Observed, now: float, unix: float) -> list[Event]:
    over = [key for key, token in state.tokens.items() if unix >= token.expires_unix]
    tokens = [TokenRevoked(key) for key in over]
    limit = observed.policy.forget_seconds
    ghosts = [
        NodeForgotten(node)
        for node, member in state.members.items()
        # A drained one would come back as one that isn't.
        if not member.drained and observed.silent_seconds(node, now) > limit
    ]
    return [*tokens, *ghosts]


class _Board:
    """The cluster while it is planned: seats of the machines that may be used."""

    def __init__(self, state: ClusterState, observed: Observed, now: float, unix: float) -> None:
        self._state, self._observed, self._now, self._unix = state, observed, now, unix
        self._machines: Machines = {
            node: machine_of(member.resources)
            for node, member in sorted(state.members.items())
            if member.resources is not None and self._is_usable(node, member)
        }
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
        self._recut: set[Digest] = set()
        """Models whose layers aren't held by the same machines any more."""

    def settle(self) -> None:
        """Bring every model's layers onto machines, by the rules above."""
        for task in self._tasks:
            if not self._holds(task):
                self._restore(task)
        if len(self._tasks) > 1 and not all(map(self._holds, self._tasks)):
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
        """Bring a model's layers onto machines again, some of which nobody holds."""
        seats, spare = self._seats[task.digest], self._spare()
        free = [*spare, *self._surplus()]
        more = mended(task, seats, spare, self._machines, self._observed)
        if more is None:
            more = mended(task, seats, free, self._machines, self._observed)
        anew = self._anew(task, [*free, *seats])
        if more is None:
            if anew is not None:
                self._give(task, anew)
            return
        kept = {**seats, **more}
        if anew is not None and self._is_worth(task, kept, anew):
            kept = anew
        self._give(task, kept)

    def _repack(self) -> None:
        """Place all models anew, if more of them are whole then."""
        left, packed = set(filter(self._is_eligible, self._machines)), dict[Digest, Seats]()
        for task in self._tasks:
            seats = on_the_fewest(task, left, self._machines)
            if seats is not None:
                packed[task.digest] = seats
                left -= seats.keys()
        if len(packed) > sum(map(self._holds, self._tasks)):
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
        self._give(task, anew)
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

    def _spare(self) -> list[NodeId]:
        """Machines that hold nothing, and are known to be there."""
        seated = set[NodeId]().union(*self._seats.values())
        return [node for node in self._machines if node not in seated and self._is_eligible(node)]

    def _surplus(self) -> list[NodeId]:
        """Machines whose layers others hold too."""
        found: list[NodeId] = []
        for task in self._tasks:
            seats = self._seats[task.digest]
            if self._holds(task):
                needed = set(best_chain(task, seats, self._machines)[1])
            else:
                needed = set(quickest(task, seats, self._machines).values())
            found += [node for node in seats if node not in needed and self._is_eligible(node)]
        return found

    def _with_leaving(self, task: Task) -> Seats:
        """The seats, and those of nodes that keep theirs for now though they aren't counted on."""
        seats = dict(self._seats[task.digest])
        seated = set[NodeId]().union(*self._seats.values())
        ready = [
            layers
            for node, layers in seats.items()
            if self._observed.is_ready(node, task.digest, layers, self._now)
        ]
        is_served, is_held = is_complete(task, ready), self._holds(task)
        for node, layers in self._before[task.digest].items():
            if node in seated or node in self._machines or not self._may_keep(task, node, layers):
                continue
            if self._is_leaving(node):
                is_kept = not is_served
            else:
                is_kept = not (is_held and task.digest in self._recut)
            if is_kept:
                seats[node] = layers
        return seats

    def _is_usable(self, node: NodeId, member: Member) -> bool:
        return not (
            self._observed.silent_seconds(node, self._now) > self._observed.policy.lease_seconds
            or self._observed.is_blocked(node, self._now)
            or self._is_leaving(node)
        )

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


def machine_of(resources: Resources) -> Machine:
    """The machine that plans are made with.

    Its figures are rounded, so that machines that differ by little count as alike; of its memory
    nothing is counted that isn't there.
    """
    memory = resources.memory_bytes
    if memory >= _LARGE:
        memory -= memory % _GRAIN
    return Machine("", memory, float(f"{resources.bytes_per_second:.2g}"))
