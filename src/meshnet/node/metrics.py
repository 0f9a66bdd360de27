"""A node's figures as metrics: their names, and the samples of one reading."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshnet.domain.ids import NodeId
from meshnet.domain.metrics import Distribution, Metric, MetricKind, Sample
from meshnet.domain.receipts import ReceiptState
from meshnet.node.figures import NANO
from meshnet.node.snapshot import NodeSnapshot, StepReading

COUNTER, GAUGE, HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM


def _metric(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(f"meshnet_node_{name}", kind, ("node", *labels), meaning)


UP = _metric("up", GAUGE, "1 if the node's process serves and told its figures, else 0.")
DEATHS = _metric(
    "worker_deaths_total", COUNTER, "Times the node's process ended that should have gone on."
)
INFO = _metric("info", GAUGE, "Always 1; its labels say which layers the node holds.", "layers")
QUEUED = _metric("queued_steps", GAUGE, "Steps that wait for the engine.")
SESSIONS = _metric("open_sessions", GAUGE, "Sessions open now.")
MAX_SESSIONS = _metric("max_sessions", GAUGE, "Sessions that may be open at once.")
CREDITS = _metric(
    "chunk_credits", GAUGE, "Prefill chunks that the next node takes now, over all open sessions."
)
POSITIONS = _metric("kv_positions_used", GAUGE, "Positions that the KV caches hold.")
RESERVED = _metric(
    "kv_positions_reserved",
    GAUGE,
    "Positions that open sessions and kept prefixes may come to hold.",
)
LIMIT = _metric("kv_positions_limit", GAUGE, "Positions that sessions may hold together.")
RESIDENT = _metric(
    "resident_bytes", GAUGE, "Memory that the node's process has, mapped weights included."
)
ENGINE_SECONDS = _metric("engine_seconds_total", COUNTER, "Time that the engine computed.")
STEP_ROWS = _metric("step_rows", HISTOGRAM, "Positions computed by one step.", "phase")
STEP_SESSIONS = _metric("step_sessions", HISTOGRAM, "Sessions that shared one step.", "phase")
STEP_SECONDS = _metric("step_seconds", HISTOGRAM, "How long one step took.", "phase")
QUEUE_SECONDS = _metric(
    "queue_seconds", HISTOGRAM, "How long a session's work waited for its step's start.", "phase"
)
CACHE = _metric(
    "cache_checks_total",
    COUNTER,
    "Steps by what the session's cache was: as expected (hit), not (miss), or computed before and "
    "answered from memory (duplicate).",
    "result",
)
PREFIXES = _metric("kept_prefixes", GAUGE, "Caches of ended sessions that a prompt may begin with.")
PREFIX_CHECKS = _metric(
    "prefix_checks_total",
    COUNTER,
    "Prompts by whether a kept prefix stood for their beginning (hit) or not (miss); a head's.",
    "result",
)
PREFIX_TOKENS = _metric(
    "prefix_tokens_total", COUNTER, "Prompt tokens that kept prefixes stood for; a head's."
)
PROPOSED = _metric(
    "proposed_tokens_total",
    COUNTER,
    "Guesses at coming tokens that a head had computed.",
)
ACCEPTED = _metric("accepted_tokens_total", COUNTER, "Those of them that were right.")
RECEIPTS = _metric(
    "receipts_total",
    COUNTER,
    "Receipts of seams by state: signed by both sides, disputed, the word of one side, or dropped "
    "since nobody fetched them.",
    "state",
)
ERRORS = _metric("errors_total", COUNTER, "Sessions refused or ended by an error.", "code")
SENT = _metric("sent_bytes_total", COUNTER, "Bytes of messages sent on a seam.", "seam")
RECEIVED = _metric("received_bytes_total", COUNTER, "Bytes of messages received.", "seam")
SENT_MESSAGES = _metric("sent_messages_total", COUNTER, "Messages sent on a seam.", "seam")
RECEIVED_MESSAGES = _metric("received_messages_total", COUNTER, "Messages received.", "seam")

NODE_METRICS = (
    UP,
    DEATHS,
    INFO,
    QUEUED,
    SESSIONS,
    MAX_SESSIONS,
    CREDITS,
    POSITIONS,
    RESERVED,
    LIMIT,
    RESIDENT,
    ENGINE_SECONDS,
    STEP_ROWS,
    STEP_SESSIONS,
    STEP_SECONDS,
    QUEUE_SECONDS,
    CACHE,
    PREFIXES,
    PREFIX_CHECKS,
    PREFIX_TOKENS,
    PROPOSED,
    ACCEPTED,
    RECEIPTS,
    ERRORS,
    SENT,
    RECEIVED,
    SENT_MESSAGES,
    RECEIVED_MESSAGES,
)
"""Every metric of a node, in the order in which they are documented."""


@dataclass(frozen=True, slots=True)
class NodeReading:
    """What a node's supervisor knows of it; ``snapshot`` is None if the node told nothing."""

    node_id: NodeId
    deaths: int
    snapshot: NodeSnapshot | None


def node_samples(reading: NodeReading) -> Iterator[Sample]:
    """The samples of one node."""
    node, snapshot = str(reading.node_id), reading.snapshot
    yield Sample(UP, (node,), 0 if snapshot is None else 1)
    yield Sample(DEATHS, (node,), reading.deaths)
    if snapshot is None:
        return
    yield Sample(INFO, (node, str(snapshot.layers)), 1)
    for metric, value in (
        (QUEUED, snapshot.queued_steps),
        (SESSIONS, snapshot.open_sessions),
        (MAX_SESSIONS, snapshot.max_sessions),
        (CREDITS, snapshot.chunk_credits),
        (POSITIONS, snapshot.engine.positions),
        (RESERVED, snapshot.positions_reserved),
        (LIMIT, snapshot.positions_limit),
        (ENGINE_SECONDS, snapshot.engine.engine_nanos * NANO),
        (PREFIXES, snapshot.kept_prefixes),
        (PREFIX_TOKENS, snapshot.prefix_tokens),
        (PROPOSED, snapshot.proposed_tokens),
        (ACCEPTED, snapshot.accepted_tokens),
    ):
        yield Sample(metric, (node,), value)
    if snapshot.resident_bytes is not None:
        yield Sample(RESIDENT, (node,), snapshot.resident_bytes)
    yield from _labelled(node, snapshot)
    for phase, steps in snapshot.steps.items():
        for metric, distribution in _distributions(steps):
            yield Sample(metric, (node, phase.value), distribution)


def _labelled(node: str, snapshot: NodeSnapshot) -> Iterator[Sample]:
    yield Sample(CACHE, (node, "hit"), snapshot.cache_hits)
    yield Sample(CACHE, (node, "miss"), snapshot.cache_misses)
    yield Sample(CACHE, (node, "duplicate"), snapshot.duplicates)
    yield Sample(PREFIX_CHECKS, (node, "hit"), snapshot.prefix_hits)
    yield Sample(PREFIX_CHECKS, (node, "miss"), snapshot.prefix_misses)
    for state in ReceiptState:
        yield Sample(RECEIPTS, (node, state.value), snapshot.receipt_counts.get(state, 0))
    yield Sample(RECEIPTS, (node, "dropped"), snapshot.receipts_dropped)
    for code, count in snapshot.errors.items():
        yield Sample(ERRORS, (node, code.value), count)
    for seam, traffic in snapshot.traffic.items():
        yield Sample(SENT, (node, seam), traffic.sent_bytes)
        yield Sample(RECEIVED, (node, seam), traffic.received_bytes)
        yield Sample(SENT_MESSAGES, (node, seam), traffic.sent_messages)
        yield Sample(RECEIVED_MESSAGES, (node, seam), traffic.received_messages)


def _distributions(steps: StepReading) -> tuple[tuple[Metric, Distribution], ...]:
    return (
        (STEP_ROWS, steps.rows),
        (STEP_SESSIONS, steps.sessions),
        (STEP_SECONDS, steps.seconds),
        (QUEUE_SECONDS, steps.queued_seconds),
    )
