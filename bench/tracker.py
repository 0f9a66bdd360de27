"""What does a tracker of thousands of machines take?

    python -m bench.tracker [--nodes 5000] [--seconds 60]

Machines that differ beat every two seconds, with other loads each time; a tracker with its store in
a file takes the heartbeats in as JSON, plans every second and chooses a chain for every request.
Nothing goes over a network. Times are those of the processor, so the share is that of one core.
Then 1,000 machines that all differ are given a model of 120 layers.
"""

from __future__ import annotations

import argparse
import itertools
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil

from bench.report import (
    Cell,
    Column,
    Report,
    Table,
    conditions,
    done,
    finish,
    output_parser,
    progress,
)
from meshnet.domain.ids import Digest, NodeId
from meshnet.tracker.clocks import Clocks
from meshnet.tracker.events import (
    Event,
    ModelOffered,
    NodeJoined,
    NodeReincarnated,
    NodeReported,
    Resources,
)
from meshnet.tracker.messages import (
    HeartbeatRequest,
    LoadReport,
    MachineReport,
    Phase,
    Serving,
    WorkReport,
)
from meshnet.tracker.placement import Demand, Machine, ModelShape, Objective
from meshnet.tracker.search import place
from meshnet.tracker.service import TrackerService
from meshnet.tracker.state import assignment_of
from meshnet.tracker.store import open_store
from meshnet.transport.certificates import Authority

NAME = "tracker"
MODEL = Digest("sha256:" + "a" * 64)
RECIPE = "sha256:" + "c" * 64
LAYERS, LAYER_BYTES = 120, 600 << 20
BEAT_SECONDS = 2
ROUTES_PER_SECOND = 50
MACHINES, MOST_LINK_SECONDS = 1000, 0.02
COLUMNS = (Column(""), Column("measured", 3), Column("goal"))
SHAPE = ModelShape(
    (LAYER_BYTES,) * LAYERS, 1 << 30, 1 << 30, 1 << 20, 4096, 32768, tuple(range(1, LAYERS))
)


@dataclass
class Clock:
    """A clock that goes on when it is told to."""

    now: float = 1e9

    def __call__(self) -> float:
        return self.now


@dataclass
class Machines:
    """Machines that do at once what they are told, and say so."""

    service: TrackerService
    resources: dict[NodeId, Resources]
    rng: random.Random = field(default_factory=lambda: random.Random(3))

    def beat(self, node: NodeId) -> str:
        """The node's next heartbeat, as it comes in."""
        told, mine = assignment_of(self.service.state, node), self.resources[node]
        work: tuple[WorkReport, ...] = ()
        if told is not None:
            work = (
                WorkReport(
                    model=told.digest,
                    start=told.layers.start,
                    end=told.layers.end,
                    epoch=told.epoch,
                    phase=Phase.READY,
                    address=f"{node}:7000",
                    recipe=RECIPE,
                ),
            )
        load = LoadReport(
            open_sessions=self.rng.randint(0, 3),
            max_sessions=8,
            step_seconds=self.rng.uniform(0.005, 0.02),
        )
        machine = MachineReport(
            memory_bytes=mine.memory_bytes,
            bytes_per_second=mine.bytes_per_second,
            cores=8,
            disk_bytes=1 << 40,
        )
        return HeartbeatRequest(
            incarnation=1,
            machine=machine,
            work=work,
            load=load,
            round_trip_seconds=self.rng.uniform(0.002, 0.02),
        ).model_dump_json()


@dataclass
class Taken:
    """Seconds of the processor by what they went to."""

    beats: list[float] = field(default_factory=list)
    ticks: list[float] = field(default_factory=list)
    routes: list[float] = field(default_factory=list)


def machines_of(count: int) -> dict[NodeId, Resources]:
    """Machines of 4 to 32 GiB and 20 to 400 GB/s."""
    rng = random.Random(7)
    return {
        NodeId(f"{number:016x}"): Resources(
            rng.randint(4 << 30, 32 << 30), rng.uniform(20e9, 400e9)
        )
        for number in range(count)
    }


def beginnings(resources: dict[NodeId, Resources]) -> Iterator[Event]:
    """What was written down when the machines joined."""
    yield ModelOffered(MODEL, "model", SHAPE, Demand(4096, 4), Serving())
    for node, lent in resources.items():
        yield NodeJoined(node, node)
        yield NodeReincarnated(node, 1)
        yield NodeReported(node, lent)


def spent(since: float) -> float:
    return time.process_time() - since


def simulate(service: TrackerService, clock: Clock, machines: Machines, seconds: int) -> Taken:
    """Heartbeats, plans and routes of some seconds."""
    taken = Taken()
    nodes = list(machines.resources)
    parts = [nodes[part::BEAT_SECONDS] for part in range(BEAT_SECONDS)]
    for second, beating in zip(range(seconds), itertools.cycle(parts), strict=False):
        clock.now += 1.0
        # Made beforehand: the machines' work isn't the tracker's.
        coming = [(node, machines.beat(node)) for node in beating]
        began = time.process_time()
        for node, text in coming:
            service.heartbeat(node, HeartbeatRequest.model_validate_json(text)).model_dump_json()
        taken.beats.append(spent(began))
        began = time.process_time()
        service.tick()
        taken.ticks.append(spent(began))
        if second > BEAT_SECONDS:
            for _ in range(ROUTES_PER_SECOND):
                began = time.process_time()
                route = service.route(MODEL)
                taken.routes.append(spent(began))
                service.worked(route.node_ids)
        progress(f"second {second + 1} of {seconds}")
    done()
    return taken


def cluster_rows(count: int, seconds: int) -> Iterator[tuple[Cell, ...]]:
    """A line for each thing that a tracker with so many machines does."""
    process, clock, resources = psutil.Process(), Clock(), machines_of(count)
    with tempfile.TemporaryDirectory() as folder:
        before = process.memory_info().rss
        store = open_store(str(Path(folder) / "tracker.db"))
        store.append(list(beginnings(resources)))
        service = TrackerService(store, Authority.create("bench"), Clocks(clock, clock))
        machines = Machines(service, resources)
        for node in resources:
            service.heartbeat(node, HeartbeatRequest.model_validate_json(machines.beat(node)))
        began = time.process_time()
        service.tick()
        first = spent(began)
        taken = simulate(service, clock, machines, seconds)
        memory = process.memory_info().rss - before
        store.close()
        began = time.process_time()
        open_store(str(Path(folder) / "tracker.db")).close()
        again = spent(began)
    steady = slice(BEAT_SECONDS * 2, None)
    beats, ticks = float(np.mean(taken.beats[steady])), float(np.mean(taken.ticks[steady]))
    yield ("heartbeats, share of a core, %", beats * 100, "")
    yield ("plans and sweeps, share of a core, %", ticks * 100, "")
    yield ("a heartbeat, us", beats / (count / BEAT_SECONDS) * 1e6, "")
    yield ("choosing a chain, median, ms", float(np.median(taken.routes)) * 1e3, "")
    yield ("choosing a chain, p99, ms", float(np.percentile(taken.routes, 99)) * 1e3, "5")
    yield ("the first plan, s", first, "")
    yield ("a plan where nothing changes, ms", float(np.median(taken.ticks[steady])) * 1e3, "")
    yield ("memory for them, MiB", memory / 2**20, "")
    yield ("opening the store again, s", again, "")


def placement_rows() -> Iterator[tuple[Cell, ...]]:
    """How long the search for a place takes where all machines and links differ."""
    rng = random.Random(1)
    machines = [
        Machine(str(i), rng.randint(4 << 30, 20 << 30), rng.uniform(20e9, 400e9))
        for i in range(MACHINES)
    ]
    links = np.random.default_rng(1).uniform(0, MOST_LINK_SECONDS, (MACHINES, MACHINES))
    np.fill_diagonal(links, 0.0)
    for objective in Objective:
        progress(f"placing for {objective.value}")
        began = time.process_time()
        place(SHAPE, machines, links, Demand(4096, 4, objective))
        yield (f"{MACHINES} machines, {LAYERS} layers, for {objective.value}, s", spent(began), "1")
    done()


def options_of() -> argparse.Namespace:
    parser = output_parser(NAME, __doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--seconds", type=int, default=60)
    return parser.parse_args()


def main() -> None:
    options = options_of()
    rows = [*cluster_rows(options.nodes, options.seconds), *placement_rows()]
    about = (
        conditions("bench.tracker"),
        f"{options.nodes} machines that beat every {BEAT_SECONDS} s, {options.seconds} s, "
        f"{ROUTES_PER_SECOND} requests a second; no network.",
    )
    finish(Report(NAME, about, (Table("", COLUMNS, tuple(rows)),)), options)


if __name__ == "__main__":
    main()
