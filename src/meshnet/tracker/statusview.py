"""The cluster as whoever looks after it sees it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.nodes import Hop
from meshnet.tracker import messages as msg
from meshnet.tracker.measurements import RunsStatus, Told
from meshnet.tracker.observed import Observed
from meshnet.tracker.reach import Reach
from meshnet.tracker.routing import Route, missing_layers
from meshnet.tracker.runs import Runs, expected
from meshnet.tracker.speeds import parts_of
from meshnet.tracker.state import ClusterState, Member, Offer


@dataclass(frozen=True, slots=True)
class StatusView:
    """What a status is made of."""

    state: ClusterState
    observed: Observed
    beats: Mapping[NodeId, msg.HeartbeatRequest]
    """Each machine's last one."""
    reach: Reach
    runs: Runs
    route: Callable[[Digest, float], Route]
    """The chain that a model's next request would get; raises any ``MeshnetError`` without one."""

    def told(self, now: float, unix: float) -> msg.StatusReply:
        """The message; ``now`` of the steady clock, ``unix`` of the wall clock."""
        return msg.StatusReply(
            cluster=self.state.name,
            machines=tuple(
                self._machine(node_id, member, now)
                for node_id, member in sorted(self.state.members.items(), key=_by_layers)
            ),
            models=tuple(
                self._model(digest, offer, now) for digest, offer in self.state.models.items()
            ),
            tokens=tuple(
                msg.TokenStatus(token_id=token_id, expires_unix=token.expires_unix, uses=token.uses)
                for token_id, token in self.state.tokens.items()
                if unix < token.expires_unix and token.uses
            ),
        )

    def _machine(self, node_id: NodeId, member: Member, now: float) -> msg.MachineStatus:
        beat, record = self.beats.get(node_id), self.observed.record(node_id)
        live = self.observed.is_live(node_id, now)
        told = member.share
        return msg.MachineStatus(
            node_id=node_id,
            name=member.name,
            state=beat.state if live and beat is not None else msg.MachineState.DOWN,
            drained=member.drained,
            silent_seconds=None if record is None else max(now - record.heard_at, 0.0),
            told=None if told is None else msg.Span(start=told.layers.start, end=told.layers.end),
            told_model=None if told is None else told.digest,
            work=() if beat is None else beat.work,
            machine=None if beat is None else beat.machine,
            load=None if beat is None else beat.load,
            round_trip_seconds=0.0 if beat is None else beat.round_trip_seconds,
            way=self.reach.way(node_id) if beat is not None and beat.worker_address else None,
            weights=None if beat is None else beat.weights,
            links=() if record is None else record.told_links,
            step=self._step(node_id, live=live),
        )

    def _step(self, node_id: NodeId, *, live: bool) -> Told | None:
        """A decode step of what a node serves, with one row; None where it serves nothing."""
        record = self.observed.record(node_id)
        if not live or record is None or record.place is None:
            return None
        (digest, _), layers = record.place
        offer, speed = self.state.models.get(digest), dict(record.speeds).get(digest)
        predicted = 0.0
        if offer is not None and speed is not None:
            (part,) = parts_of(offer.shape.layer_bytes, offer.shape.output_bytes, [(layers, speed)])
            predicted = part.engine_seconds(lone=len(layers) == offer.total_layers)
        return Told(predicted_seconds=predicted, measured_seconds=record.step_seconds)

    def _model(self, digest: Digest, offer: Offer, now: float) -> msg.ModelStatus:
        route: tuple[Hop, ...] = ()
        problem = ""
        try:
            route = self.route(digest, now).hops
        except MeshnetError as error:
            problem = error.message
        avoid = self.reach.out_of_reach
        missing = missing_layers(self.state, self.observed, digest, now, avoid)
        return msg.ModelStatus(
            digest=digest,
            name=offer.name,
            total_layers=offer.total_layers,
            epoch=offer.epoch,
            ready=bool(route),
            route=tuple(hop.node_id for hop in route),
            missing=tuple(msg.Span(start=span.start, end=span.end) for span in missing),
            problem=problem[:1000],
            predicted=self._predicted(digest, [hop.node_id for hop in route]),
            ran=self.runs.status(digest),
        )

    def _predicted(self, digest: Digest, nodes: Sequence[NodeId]) -> RunsStatus | None:
        found = None
        if nodes:
            found = expected(self.state, self.observed, digest, nodes, msg.PROMPT_TOKENS)
        if found is None:
            return None
        return RunsStatus(
            runs=0,
            token_seconds=0.0,
            predicted_token_seconds=found.token_seconds,
            predicted_first_seconds=found.first_seconds or 0.0,
        )


def _by_layers(item: tuple[NodeId, Member]) -> tuple[int, str, str]:
    node_id, member = item
    first = member.share.layers.start if member.share is not None else 2**31
    return first, member.name, node_id
