"""What generations took, beside what was predicted of them at the time. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.measurements import RunReport, RunsStatus
from meshnet.tracker.observed import Observed
from meshnet.tracker.speeds import Hop, Speed, first_token_seconds, parts_of, token_seconds
from meshnet.tracker.state import ClusterState

KEPT: Final = 32
"""The last generations of each model, whose medians are shown."""
LEAST_TOKENS: Final = 8
"""A generation of fewer says too little of a token's time."""


@dataclass(frozen=True, slots=True)
class Expected:
    """What was predicted of a chain. None: a machine in it wasn't measured so."""

    token_seconds: float
    first_seconds: float | None


@dataclass(frozen=True, slots=True)
class _Run:
    """A generation."""

    expected: Expected
    token_seconds: float
    first_seconds: float | None


class Runs:
    """The last generations of every model."""

    def __init__(self) -> None:
        self._runs: dict[Digest, deque[_Run]] = {}

    def note(self, run: RunReport, state: ClusterState, observed: Observed) -> None:
        """A generation has ended; one over nodes that aren't known any more says nothing."""
        digest, nodes = Digest(run.model), tuple(map(NodeId, run.nodes))
        prompt = run.prompt_tokens - run.cached_tokens
        found = expected(state, observed, digest, nodes, prompt)
        if found is None or run.tokens < LEAST_TOKENS or run.rest_seconds <= 0:
            return
        first = run.first_seconds if found.first_seconds else None
        kept = self._runs.setdefault(digest, deque(maxlen=KEPT))
        kept.append(_Run(found, run.rest_seconds / (run.tokens - 1), first))

    def status(self, digest: Digest) -> RunsStatus | None:
        """Medians of the last generations; None without any."""
        runs = self._runs.get(digest)
        if not runs:
            return None
        firsts = [run for run in runs if run.first_seconds and run.expected.first_seconds]
        return RunsStatus(
            runs=len(runs),
            token_seconds=statistics.median(run.token_seconds for run in runs),
            predicted_token_seconds=statistics.median(run.expected.token_seconds for run in runs),
            first_seconds=_median([run.first_seconds for run in firsts]),
            predicted_first_seconds=_median([run.expected.first_seconds for run in firsts]),
        )


def expected(
    state: ClusterState,
    observed: Observed,
    digest: Digest,
    nodes: Sequence[NodeId],
    prompt_tokens: int,
) -> Expected | None:
    """What a generation over a chain should take; None where that isn't known of its nodes."""
    offer = state.models.get(digest)
    held = [_held(state, observed, digest, node) for node in nodes]
    known = [each for each in held if each is not None]
    if offer is None or not known or len(known) < len(held):
        return None
    parts = parts_of(offer.shape.layer_bytes, offer.shape.output_bytes, known)
    ring = itertools.pairwise([*nodes, nodes[0]])
    hops: tuple[Hop, ...] = ()
    if len(nodes) > 1:
        hops = tuple(observed.hop(one, other) for one, other in ring)
    row = offer.shape.boundary_bytes
    first = first_token_seconds(parts, hops, row, prompt_tokens) if prompt_tokens > 0 else None
    return Expected(token_seconds(parts, hops, row), first)


def _held(
    state: ClusterState, observed: Observed, digest: Digest, node: NodeId
) -> tuple[LayerRange, Speed] | None:
    member, record = state.members.get(node), observed.record(node)
    if member is None or member.resources is None or record is None or record.place is None:
        return None
    (serves, _), layers = record.place
    if serves != digest:
        return None
    rate = member.resources.bytes_per_second
    measured = dict(record.speeds).get(digest)
    return layers, measured or Speed(rate, rate)


def _median(values: Sequence[float | None]) -> float:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else 0.0
