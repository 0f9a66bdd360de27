"""What a tracker is tried with: a store in memory, an authority, a model."""

from __future__ import annotations

from collections.abc import Sequence

from meshnet.domain.ids import Digest
from meshnet.tracker import events as ev
from meshnet.tracker import messages as msg
from meshnet.tracker.placement import Demand, ModelShape
from meshnet.tracker.state import ClusterState, apply_all
from meshnet.tracker.store.base import EventStore

MIB = 1 << 20
DIGEST = Digest("sha256:" + "d" * 64)
SHAPE = ModelShape((100 * MIB,) * 6, 10 * MIB, 10 * MIB, MIB, 1024, 1024, (1, 2, 3, 4, 5))
OFFER = ev.ModelOffered(DIGEST, "m", SHAPE, Demand(1024), msg.Serving())
MACHINE = msg.MachineReport(
    memory_bytes=700 * MIB, bytes_per_second=1e10, cores=4, disk_bytes=10**10
)
"""Two such machines hold all of the model's layers, one doesn't."""


class MemoryStore(EventStore):
    """Keeps events in a list, which outlives the service."""

    def __init__(self) -> None:
        self.events: list[ev.Event] = []

    def load(self) -> tuple[ClusterState, int]:
        return apply_all(ClusterState(), self.events), len(self.events)

    def belong_to(self, authority: str) -> None:
        pass

    def append(self, events: Sequence[ev.Event]) -> ClusterState:
        self.events += events
        return self.load()[0]

    def close(self) -> None:
        pass
