"""Clusters for tests of the tracker: models, machines, and agents that do as they are told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.events import (
    Event,
    ModelOffered,
    NodeJoined,
    NodeReported,
    Placed,
    Resources,
)
from meshnet.tracker.leases import Policy
from meshnet.tracker.measurements import LinkReport, SpeedReport
from meshnet.tracker.messages import (
    HeartbeatRequest,
    LoadReport,
    MachineReport,
    Phase,
    Serving,
    WorkReport,
)
from meshnet.tracker.observed import Observed
from meshnet.tracker.placement import Demand, ModelShape, Objective
from meshnet.tracker.plan import plan
from meshnet.tracker.state import ClusterState, apply_all, assignment_of, facts_of, seats_of

RECIPE = "sha256:" + "c" * 64


def digest_of(letter: str) -> Digest:
    return Digest("sha256:" + letter * 64)


MODEL = digest_of("a")
OTHER = digest_of("b")


def layers(start: int, end: int) -> LayerRange:
    return LayerRange(start, end)


def shape_of(count: int, layer_bytes: int = 10) -> ModelShape:
    return ModelShape((layer_bytes,) * count, 0, 0, 0, 0, 4, tuple(range(1, count)))


def offered(
    count: int,
    digest: Digest = MODEL,
    objective: Objective = Objective.LATENCY,
) -> ModelOffered:
    demand = Demand(1, 1, objective, headroom=0.0, overhead_bytes=0)
    return ModelOffered(digest, f"model-{digest[7]}", shape_of(count), demand, Serving())


def beat(
    memory: int = 100,
    speed: float = 1000.0,
    work: Iterable[WorkReport] = (),
    load: LoadReport | None = None,
    *,
    incarnation: int = 1,
    hours: str = "",
    round_trip: float = 0.0,
    speeds: Iterable[SpeedReport] = (),
    links: Iterable[LinkReport] | None = None,
) -> HeartbeatRequest:
    machine = MachineReport(
        memory_bytes=memory,
        bytes_per_second=speed,
        cores=1,
        disk_bytes=0,
        hours=hours,
        speeds=tuple(speeds),
    )
    return HeartbeatRequest(
        incarnation=incarnation,
        machine=machine,
        work=tuple(work),
        load=load or LoadReport(),
        round_trip_seconds=round_trip,
        links=None if links is None else tuple(links),
    )


def work(
    held: LayerRange,
    digest: Digest = MODEL,
    *,
    phase: Phase = Phase.READY,
    recipe: str = RECIPE,
    leaving: bool = False,
) -> WorkReport:
    ready = phase is Phase.READY
    return WorkReport(
        model=digest,
        start=held.start,
        end=held.end,
        epoch=1,
        phase=phase,
        address="127.0.0.1:1" if ready else None,
        recipe=recipe if ready else None,
        leaving=leaving,
    )


@dataclass
class Cluster:
    """A tracker's pure parts, with a clock of its own. A machine is ready as soon as it is told."""

    state: ClusterState = field(default_factory=ClusterState)
    now: float = 1000.0
    policy: Policy = field(default_factory=Policy)
    machines: dict[NodeId, HeartbeatRequest] = field(default_factory=dict)
    history: list[Event] = field(default_factory=list)
    slow: set[NodeId] = field(default_factory=set)
    """Machines that are told, but don't get ready."""

    def __post_init__(self) -> None:
        self.observed = Observed(self.now, self.policy)

    def happen(self, *events: Event) -> None:
        self.history += events
        self.state = apply_all(self.state, events)

    def join(self, name: str, memory: int = 100, speed: float = 1000.0, hours: str = "") -> NodeId:
        node = NodeId(name)
        self.machines[node] = beat(memory, speed, hours=hours)
        self.happen(NodeJoined(node, name))
        self._beat(node)
        return node

    def report(self, name: str, memory: int, speed: float) -> None:
        self.happen(NodeReported(NodeId(name), Resources(memory, speed)))

    def die(self, name: str) -> None:
        del self.machines[NodeId(name)]

    def turn(self, seconds: float = 2.0) -> tuple[Event, ...]:
        """Time passes, machines say how they are, and the tracker plans."""
        self.now += seconds
        for node in self.machines:
            self._beat(node)
        planned = plan(self.state, self.observed, self.now, self.now)
        self.happen(*planned)
        return planned

    def until_settled(self) -> list[Event]:
        """Turns until nothing changes any more."""
        changes: list[Event] = []
        for _ in range(20):
            planned = [*self.turn()]
            if not planned:
                return changes
            changes += planned
        raise AssertionError(f"still changing: {changes[-4:]}")

    def lose(self, name: str) -> list[Event]:
        """A machine goes silent, and its lease passes."""
        self.die(name)
        for _ in range(4):
            self.turn()
        return self.until_settled()

    def seats(self, digest: Digest = MODEL) -> dict[str, tuple[int, int]]:
        held = seats_of(self.state, digest)
        return {str(node): (each.start, each.end) for node, each in sorted(held.items())}

    def placements(self) -> list[Placed]:
        return [event for event in self.history if isinstance(event, Placed)]

    def _beat(self, node: NodeId) -> None:
        told = assignment_of(self.state, node)
        said = self.machines[node]
        if told is not None and node not in self.slow:
            ready = work(told.layers, told.digest)
            said = said.model_copy(update={"work": (ready,)})
        self.happen(*facts_of(self.state, node, said))
        share = self.state.members[node].share
        self.observed.heard(node, said, self.now, share)


def cluster_of(*machines: tuple[str, int], layer_count: int = 8) -> Cluster:
    """A model of layers of ten bytes, on machines with room for so many bytes."""
    cluster = Cluster()
    cluster.happen(offered(layer_count))
    for name, memory in machines:
        cluster.join(name, memory)
    cluster.until_settled()
    return cluster
