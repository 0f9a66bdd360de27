"""What nodes say of themselves now, in memory alone: who is there, serving what, and how busy.

Kept in order of speed for every range of layers while heartbeats come in, so that choosing a chain
looks at a few nodes of each range however many there are.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.leases import Policy
from meshnet.tracker.measurements import LinkReport
from meshnet.tracker.messages import (
    HeartbeatRequest,
    LoadReport,
    MachineReport,
    Phase,
    WorkReport,
)
from meshnet.tracker.placement import Matrix
from meshnet.tracker.speeds import Hop, Speed
from meshnet.tracker.state import Share

LINK_SECONDS: Final = 0.0003
"""One way between two nodes whose round trips aren't known: a switched local network."""
LINK_RATE: Final = 125e6
"""Bytes a second of a link whose rate isn't known: 1 Gbit/s."""
PROBE_SECONDS: Final = 0.0015
"""Of a round trip between two nodes, this may be the time their programs take."""
ANSWER_SECONDS: Final = 0.005
"""Of a heartbeat's round trip, this may be the time it takes to be answered."""
UNMEASURED_STEP_SECONDS: Final = 0.001
"""A decode step of a node that has taken none yet: little, so that one session soon measures it."""
FULL_SECONDS: Final = 1000.0
"""Added to what a node is expected to take when it has no place for a session."""
_SMOOTHING: Final = 0.3
_BAND: Final = 2.0

Family = tuple[Digest, str]
"""A model and a recipe: nodes share a chain only if both are equal."""


@dataclass(slots=True)
class Record:
    """What is known of a node. Only :class:`Observed` changes it."""

    heard_at: float
    incarnation: int
    work: tuple[WorkReport, ...] = ()
    load: LoadReport = field(default_factory=LoadReport)
    taken: int = 0
    """Sessions it was chosen for since it last said how many it has."""
    errors: int = 0
    """In a row."""
    avoid_until: float = 0.0
    told: Share | None = None
    """The layers that it is to hold."""
    failing_since: float | None = None
    """Since when it can't get these ready, what it tries in between included."""
    blocked_until: float = 0.0
    step_seconds: float = 0.0
    """A decode step of the layers it serves, smoothed; 0 when it has taken none yet."""
    round_trip: float = 0.0
    """To the tracker, smoothed, in seconds; 0 when not measured."""
    distance: float = 0.0
    """What of it the network takes; it follows only when that has doubled or halved."""
    speeds: tuple[tuple[str, Speed], ...] = ()
    """How fast it computes the models, by their digests, that it was measured with."""
    links: Mapping[NodeId, LinkReport] = field(default_factory=dict)
    """What it measured of its links to others; replaced whole."""
    told_links: tuple[LinkReport, ...] = ()
    """The same with that to the tracker."""
    place: tuple[Family, LayerRange] | None = None
    address: Address | None = None
    score: float = 0.0

    @property
    def serving(self) -> WorkReport | None:
        """What it has ready for new sessions."""
        for work in self.work:
            if work.phase is Phase.READY and not work.leaving:
                return work
        return None


Ranked = list[tuple[float, NodeId]]
"""Nodes with the seconds that a step is expected to take there, the quickest first."""


class Observed:
    """The nodes as they are now. Times are those of :mod:`meshnet.tracker.leases`."""

    def __init__(self, started: float, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self._started = started
        self._joined: dict[NodeId, float] = {}
        self._records: dict[NodeId, Record] = {}
        self._ranked: dict[Digest, dict[str, dict[LayerRange, Ranked]]] = {}

    def joined(self, node_id: NodeId, now: float) -> None:
        """A machine was let in: its silence counts from now on."""
        self._joined[node_id] = now

    def heard(
        self, node_id: NodeId, beat: HeartbeatRequest, now: float, told: Share | None = None
    ) -> None:
        """Take in a heartbeat of a node that is to hold the layers ``told``; None: none.

        One of an older incarnation changes nothing.
        """
        record = self._records.get(node_id)
        if record is not None and beat.incarnation < record.incarnation:
            return
        if record is None or beat.incarnation > record.incarnation:
            self.forget(node_id)
            record = self._records[node_id] = Record(now, beat.incarnation)
        self._joined.pop(node_id, None)
        record.heard_at = now
        record.work, record.load, record.taken = beat.work, beat.load, 0
        if beat.load.step_seconds > 0:
            record.step_seconds = _smoothed(record.step_seconds, beat.load.step_seconds)
        self._note_failing(record, told, now)
        if beat.round_trip_seconds > 0:
            _note_round_trip(record, beat.round_trip_seconds)
        record.speeds = speeds_of(beat.machine, record.speeds)
        if beat.links is not None:
            record.told_links = beat.links
            record.links = {NodeId(it.node_id): it for it in beat.links if it.node_id is not None}
        self._rank(node_id, record)

    def took(self, node_ids: Iterable[NodeId], now: float) -> None:
        """A chain of these nodes was given to a session: they count as busier from now on.

        One that erred lately is on trial with it, and isn't chosen again until that is over.
        """
        for node_id in node_ids:
            record = self._records.get(node_id)
            if record is None:
                continue
            record.taken += 1
            if record.errors:
                record.avoid_until = now + self.policy.avoid_seconds(record.errors)
            self._rank(node_id, record)

    def erred(self, node_id: NodeId, now: float) -> None:
        """A session says that a node failed it."""
        record = self._records.get(node_id)
        if record is not None:
            record.errors += 1
            record.avoid_until = now + self.policy.avoid_seconds(record.errors)

    def worked(self, node_ids: Iterable[NodeId]) -> None:
        """A session went well on these nodes: earlier errors count no more."""
        for node_id in node_ids:
            record = self._records.get(node_id)
            if record is not None:
                record.errors, record.avoid_until = 0, 0.0

    def forget(self, node_id: NodeId) -> None:
        """Drop all that is known of a node."""
        self._joined.pop(node_id, None)
        record = self._records.pop(node_id, None)
        if record is not None:
            self._unrank(node_id, record)

    def excuse(self, since: float, now: float) -> None:
        """Nobody listened in between: whose lease wasn't over then has a whole one from now on."""
        lease = self.policy.lease_seconds
        for node_id, record in self._records.items():
            if self.is_live(node_id, since):
                record.heard_at = now
        for node_id, joined in self._joined.items():
            if since - joined <= lease:
                self._joined[node_id] = now
        if since - self._started <= lease:
            self._started = now

    def snapshot(self) -> Observed:
        """What is known now, which another thread may read while this goes on changing."""
        taken = Observed(self._started, self.policy)
        taken._joined = dict(self._joined)
        taken._records = {node: replace(record) for node, record in self._records.items()}
        taken._ranked = {
            digest: {
                recipe: {layers: list(ranked) for layers, ranked in ranges.items()}
                for recipe, ranges in recipes.items()
            }
            for digest, recipes in self._ranked.items()
        }
        return taken

    def sweep(self, now: float) -> tuple[NodeId, ...]:
        """Take nodes out of the order whose leases are over."""
        gone = tuple(node_id for node_id in self._records if not self.is_live(node_id, now))
        for node_id in gone:
            self._unrank(node_id, self._records[node_id])
        return gone

    def speeds(self, node_id: NodeId) -> tuple[tuple[str, Speed], ...]:
        """How fast a node computes the models, by their digests, that it was measured with."""
        record = self._records.get(node_id)
        return () if record is None else record.speeds

    def records(self) -> Iterable[tuple[NodeId, Record]]:
        """All that is known of nodes, to be read."""
        return self._records.items()

    def record(self, node_id: NodeId) -> Record | None:
        """What is known of a node, to be read; None if it wasn't heard of since the start."""
        return self._records.get(node_id)

    def is_live(self, node_id: NodeId, now: float) -> bool:
        """Whether a node was heard of within its lease."""
        record = self._records.get(node_id)
        return record is not None and now - record.heard_at <= self.policy.lease_seconds

    def silent_seconds(self, node_id: NodeId, now: float) -> float:
        """For how long a node was silent.

        For one never heard it counts from when it joined, or else from the tracker's start; so a
        tracker that was started again gives nodes one lease to say that they are there.
        """
        record = self._records.get(node_id)
        heard_at = self._started if record is None else record.heard_at
        return now - max(heard_at, self._joined.get(node_id, heard_at))

    def is_blocked(self, node_id: NodeId, now: float) -> bool:
        """Whether a node has failed to load its layers for too long."""
        record = self._records.get(node_id)
        return record is not None and now < record.blocked_until

    def is_avoided(self, node_id: NodeId, now: float) -> bool:
        """Whether a node erred so lately that it isn't tried again yet."""
        record = self._records.get(node_id)
        return record is not None and now < record.avoid_until

    def recipe_of(
        self, node_id: NodeId, digest: Digest, layers: LayerRange, now: float
    ) -> str | None:
        """The recipe by which a live node serves just these layers; None if it doesn't."""
        record = self._records.get(node_id)
        if record is None or record.place is None or not self.is_live(node_id, now):
            return None
        (serves, recipe), held = record.place
        return recipe if serves == digest and held == layers else None

    def link_seconds(self, sender: NodeId, receiver: NodeId, row_bytes: int = 0) -> float:
        """How long a row takes one way from a node to another.

        As one of them measured it; else half of both round trips to here stand for it.
        """
        one, other = self._records.get(sender), self._records.get(receiver)
        if one is None or other is None:
            return LINK_SECONDS
        measured = one.links.get(receiver) or other.links.get(sender)
        if measured is not None:
            return _one_way(measured, row_bytes)
        return max((one.distance + other.distance) / 2, LINK_SECONDS)

    def hop(self, sender: NodeId, receiver: NodeId) -> Hop:
        """The same link by its delay and its rate, or a local network's that isn't known."""
        one, other = self._records.get(sender), self._records.get(receiver)
        measured = None
        if one is not None and other is not None:
            measured = one.links.get(receiver) or other.links.get(sender)
        rate = 0 if measured is None else measured.bytes_per_second
        trip = 0.0 if measured is None else measured.round_trip_seconds
        return Hop(trip / 2 or self.link_seconds(sender, receiver), rate or LINK_RATE)

    def planned_links(self, nodes: Sequence[NodeId], row_bytes: int = 0) -> Matrix:
        """The links of which plans are made, in seconds a row, shape (nodes, nodes).

        In steps of doubling, so that plans don't follow every measurement.
        """
        records = [self._records.get(node) for node in nodes]
        apart = np.array([0.0 if known is None else known.distance for known in records])
        links = (apart[:, None] + apart[None, :]) / 2
        places = {node: number for number, node in enumerate(nodes)}
        measured = [
            (number, places[other], _one_way(link, row_bytes))
            for number, known in enumerate(records)
            if known is not None
            for other, link in known.links.items()
            if other in places
        ]
        for number, other, seconds in measured:
            links[other, number] = seconds
        for number, other, seconds in measured:
            # What the sender itself measured counts more.
            links[number, other] = seconds
        doublings = np.round(np.log2(np.maximum(links / LINK_SECONDS, 1)))
        rounded: Matrix = LINK_SECONDS * 2.0**doublings
        np.fill_diagonal(rounded, 0.0)
        return rounded

    def ranked(self, digest: Digest) -> Mapping[str, Mapping[LayerRange, Ranked]]:
        """By recipe and range, the nodes that serve a model, the quickest first. To be read."""
        return self._ranked.get(digest, {})

    def _note_failing(self, record: Record, told: Share | None, now: float) -> None:
        if told != record.told:
            record.told, record.failing_since = told, None
        wanted = [work for work in record.work if _is_of(work, told)]
        if any(work.phase is Phase.READY for work in wanted):
            record.failing_since, record.blocked_until = None, 0.0
        elif any(work.phase is Phase.FAILED for work in wanted):
            if record.failing_since is None:
                record.failing_since = now
            elif now - record.failing_since > self.policy.failing_seconds:
                record.blocked_until = now + self.policy.blocked_seconds

    def _rank(self, node_id: NodeId, record: Record) -> None:
        """Put a node where its figures belong."""
        work = record.serving
        place: tuple[Family, LayerRange] | None = None
        score = 0.0
        if work is not None:
            place = ((Digest(work.model), work.recipe or ""), LayerRange(work.start, work.end))
            record.address = Address(work.address) if work.address else None
            if record.place is not None and record.place != place:
                record.step_seconds = 0.0
            score = _expected_seconds(record)
        if (place, score) == (record.place, record.score):
            return
        self._unrank(node_id, record)
        record.place, record.score = place, score
        if place is not None:
            (digest, recipe), layers = place
            recipes = self._ranked.setdefault(digest, {})
            ranges = recipes.setdefault(recipe, {})
            bisect.insort(ranges.setdefault(layers, []), (score, node_id))

    def _unrank(self, node_id: NodeId, record: Record) -> None:
        if record.place is None:
            return
        (digest, recipe), layers = record.place
        ranges = self._ranked[digest][recipe]
        ranked = ranges[layers]
        del ranked[bisect.bisect_left(ranked, (record.score, node_id))]
        record.place = None
        if not ranked:
            del ranges[layers]
        if not ranges:
            del self._ranked[digest][recipe]
        if not self._ranked[digest]:
            del self._ranked[digest]


def _is_of(work: WorkReport, told: Share | None) -> bool:
    return told is not None and told == Share(Digest(work.model), LayerRange(work.start, work.end))


def _expected_seconds(record: Record) -> float:
    """What a decode step of one more session is expected to take, what waits before it included."""
    load = record.load
    sessions = load.open_sessions + record.taken
    seconds = (record.step_seconds or UNMEASURED_STEP_SECONDS) * (1 + sessions + load.queued_steps)
    is_full = load.max_sessions and sessions >= load.max_sessions
    return seconds + FULL_SECONDS if is_full else seconds


def _one_way(link: LinkReport, row_bytes: int) -> float:
    """What a row takes; on a local network just :data:`LINK_SECONDS`, so that these are alike."""
    rate = min(link.bytes_per_second or LINK_RATE, LINK_RATE)
    network = max(link.round_trip_seconds - PROBE_SECONDS, 0.0) / 2
    return max(network, LINK_SECONDS) + row_bytes / rate - row_bytes / LINK_RATE


def speeds_of(
    machine: MachineReport, before: tuple[tuple[str, Speed], ...]
) -> tuple[tuple[str, Speed], ...]:
    """A machine's speeds with models; the same values where nothing has changed."""
    said = tuple((each.model, each.speed()) for each in machine.speeds)
    return before if said == before else said


def _note_round_trip(record: Record, seconds: float) -> None:
    record.round_trip = _smoothed(record.round_trip, seconds)
    beyond = max(record.round_trip - ANSWER_SECONDS, 0.0)
    if not record.distance / _BAND <= beyond <= record.distance * _BAND:
        record.distance = beyond


def _smoothed(before: float, measured: float) -> float:
    """A mean in which older values count less and less; ``before`` is 0 where there are none."""
    return before + _SMOOTHING * (measured - before) if before else measured
