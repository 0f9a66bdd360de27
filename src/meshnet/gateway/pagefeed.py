"""What the dashboard is told each second: one JSON object, made of a view and of those before it.

Pure: readings are handed in with their times. Names of members carry their units. Of what isn't
known, the member is null. ``docs/dashboard.md`` lists them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from meshnet.gateway.flightshares import MILLI, estimated_hops
from meshnet.gateway.machines import (
    HopShare,
    LinkView,
    NetworkView,
    NodeView,
    Operation,
    RequestState,
    RequestView,
    Work,
)

JsonObject = dict[str, object]

KEPT_POINTS: Final = 600
"""Ten minutes at one a second."""
PACE_READINGS: Final = 4
"""Tokens a second are a mean over so many readings, so that the number can be read."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that is shown, at one moment."""

    at_unix: float
    network: NetworkView | None
    """None if it couldn't be looked at."""
    requests: tuple[RequestView, ...] = ()
    tokens: int = 0
    """Generated since the gateway started."""
    operations: tuple[Operation, ...] = ()
    problem: str = ""
    """Why there is no network."""


class PageFeed:
    """Turns readings into events, and keeps what later ones and new viewers need."""

    def __init__(self) -> None:
        self._points: deque[JsonObject] = deque(maxlen=KEPT_POINTS)
        self._pace: deque[tuple[float, int]] = deque(maxlen=PACE_READINGS)
        self._last: Reading | None = None
        self._before: dict[str, Mapping[str, NodeView]] = {}
        """Of each request under way, the nodes as they were when it came in."""
        self._prompts: dict[str, Mapping[str, tuple[float, float]]] = {}
        """Of each request that has got a token, what its prompt took on each node, in ms."""
        self._event: JsonObject | None = None

    def take(self, reading: Reading) -> JsonObject:
        """The event for a reading; ``point`` in it is what the history has of this moment."""
        self._pace.append((reading.at_unix, reading.tokens))
        self._note_new_requests(reading)
        last = self._last
        nodes = [_node(it, _earlier(last, it), _gap(last, reading)) for it in _nodes(reading)]
        links = [_link(it, last, _gap(last, reading)) for it in _links(reading)]
        under_way = [it for it in reading.requests if not it.state.over]
        point = self._point(reading, nodes, links, len(under_way))
        self._points.append(point)
        self._event = {
            "at_unix": round(reading.at_unix, 3),
            "problem": reading.problem or None,
            "operations": sorted(it.value for it in reading.operations),
            "network": None if reading.network is None else _network(reading.network),
            "nodes": nodes,
            "links": links,
            "requests": [_request(it, self._hops(it, reading)) for it in reading.requests],
            "point": point,
        }
        self._last = reading
        return self._event

    def opening(self) -> JsonObject | None:
        """The latest event with the history up to it, for a new viewer; None before the first."""
        return None if self._event is None else self._event | {"history": list(self._points)}

    def _note_new_requests(self, reading: Reading) -> None:
        under_way = {it.request_id for it in reading.requests if not it.state.over}
        # As the nodes were just before it came, so that its prompt is in the difference.
        earlier = self._last if self._last is not None else reading
        known = {it.node_id: it for it in _nodes(earlier)}
        self._prompts = {name: it for name, it in self._prompts.items() if name in under_way}
        self._before = {name: self._before.get(name, known) for name in under_way}

    def _hops(self, request: RequestView, reading: Reading) -> Iterable[HopShare]:
        if request.state.over:
            return request.hops
        hops = estimated_hops(request, self._before[request.request_id], _nodes(reading))
        if request.state is not RequestState.ANSWER:
            return hops
        # What nodes do to prompts from now on is for others.
        prompts = self._prompts.setdefault(
            request.request_id,
            {hop.node_id: (hop.prefill_queue, hop.prefill_engine) for hop in hops},
        )
        return [_with_prompt(hop, prompts.get(hop.node_id)) for hop in hops]

    def _point(
        self, reading: Reading, nodes: list[JsonObject], links: list[JsonObject], in_flight: int
    ) -> JsonObject:
        trips = {it["target"]: it["round_trip_ms"] for it in links if not it["source"]}
        return {
            "at_unix": round(reading.at_unix, 1),
            "tokens_per_second": self._tokens_per_second(),
            "in_flight": in_flight,
            "queued_steps": _sum(it["queued_steps"] for it in nodes),
            "nodes": {
                str(it["id"]): {
                    "kv": _share(it["kv_used"], it["kv_limit"]),
                    "memory_bytes": it["memory_bytes"],
                    "busy": it["busy"],
                    "round_trip_ms": trips.get(it["id"]),
                }
                for it in nodes
            },
        }

    def _tokens_per_second(self) -> float:
        (began, before), (ended, now) = self._pace[0], self._pace[-1]
        return round((now - before) / (ended - began), 2) if ended > began else 0.0


def _with_prompt(hop: HopShare, prompt: tuple[float, float] | None) -> HopShare:
    queue, engine = prompt or (0.0, 0.0)
    return replace(hop, prefill_queue=queue, prefill_engine=engine)


def _nodes(reading: Reading | None) -> tuple[NodeView, ...]:
    return () if reading is None or reading.network is None else reading.network.nodes


def _links(reading: Reading | None) -> tuple[LinkView, ...]:
    return () if reading is None or reading.network is None else reading.network.links


def _earlier(last: Reading | None, node: NodeView) -> NodeView | None:
    return next((it for it in _nodes(last) if it.node_id == node.node_id), None)


def _gap(last: Reading | None, reading: Reading) -> float:
    """Seconds between two readings; 0 if there is no earlier one."""
    return 0.0 if last is None else max(reading.at_unix - last.at_unix, 0.0)


def _network(network: NetworkView) -> JsonObject:
    return {
        "model": network.model,
        "architecture": network.architecture,
        "total_layers": network.total_layers,
        "context_length": network.context_length,
        "boundary": network.boundary,
        "missing_layers": list(network.missing_layers),
        "note": network.note or None,
    }


def _node(node: NodeView, earlier: NodeView | None, gap: float) -> JsonObject:
    engine = _rate(_step_seconds(node), _step_seconds(earlier), gap)
    return {
        "id": node.node_id,
        "name": node.name or node.node_id,
        "state": node.state.value,
        "reason": node.reason or None,
        "address": node.address,
        "layers": None if node.layers is None else [node.layers.start, node.layers.end],
        "open_sessions": node.open_sessions,
        "max_sessions": node.max_sessions,
        "queued_steps": node.queued_steps,
        "kv_used": node.kv_used,
        "kv_limit": node.kv_limit,
        "memory_bytes": node.memory_bytes,
        "memory_limit_bytes": node.memory_limit_bytes,
        "deaths": node.deaths,
        "progress": node.progress,
        "busy": None if engine is None else round(min(engine, 1.0), 3),
        "rows_per_second": _rounded(_rate(_rows(node), _rows(earlier), gap), 1),
        "step_ms": _step_ms(node.decode),
    }


def _link(link: LinkView, last: Reading | None, gap: float) -> JsonObject:
    same = (it for it in _links(last) if (it.source, it.target) == (link.source, link.target))
    earlier = next(same, None)
    trip = link.round_trip_seconds
    sent = None if earlier is None else earlier.sent_bytes
    return {
        "source": link.source,
        "target": link.target,
        "round_trip_ms": None if trip is None else round(trip / MILLI, 2),
        "bytes_per_second": _rounded(_rate(link.sent_bytes, sent, gap), 0),
    }


def _request(request: RequestView, hops: Iterable[HopShare]) -> JsonObject:
    first = request.first_token_seconds
    decoding = request.seconds - first if first is not None else 0.0
    later = request.completion_tokens - request.choices
    return {
        "id": request.request_id,
        "model": request.model,
        "state": request.state.value,
        "over": request.state.over,
        "began_unix": round(request.began_unix, 3),
        "seconds": round(request.seconds, 3),
        "first_token_seconds": _rounded(first, 3),
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": request.completion_tokens,
        "tokens_per_second": round(later / decoding, 2) if later > 0 and decoding > 0 else None,
        "end": request.end or None,
        "exact": request.exact,
        "hops": [_hop(hop) for hop in hops],
    }


def _hop(hop: HopShare) -> JsonObject:
    return {
        "node": hop.node_id,
        "layers": hop.layers,
        "prefill_start_ms": round(hop.prefill_start, 2),
        "prefill_ms": {
            "queue": round(hop.prefill_queue, 2),
            "engine": round(hop.prefill_engine, 2),
            "codec": round(hop.prefill_codec, 2),
            "wait": round(hop.prefill_wait, 2),
        },
        "decode_steps": hop.decode_steps,
        "token_ms": {
            "queue": round(hop.decode_queue, 3),
            "engine": round(hop.decode_engine, 3),
            "codec": round(hop.decode_codec, 3),
            "wait": round(hop.decode_wait, 3),
        },
    }


def _step_seconds(node: NodeView | None) -> float | None:
    if node is None or node.prefill is None or node.decode is None:
        return None
    return node.prefill.step_seconds + node.decode.step_seconds


def _rows(node: NodeView | None) -> int | None:
    if node is None or node.prefill is None or node.decode is None:
        return None
    return node.prefill.rows + node.decode.rows


def _step_ms(work: Work | None) -> float | None:
    if work is None or not work.steps:
        return None
    return round(work.step_seconds / work.steps / MILLI, 2)


def _rate(now: float | None, before: float | None, gap: float) -> float | None:
    """Of a counter; None where it began anew or wasn't known."""
    if now is None or before is None or now < before or not gap:
        return None
    return (now - before) / gap


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)


def _share(used: object, limit: object) -> float | None:
    if not isinstance(used, int) or not isinstance(limit, int) or not limit:
        return None
    return round(used / limit, 4)


def _sum(values: Iterable[object]) -> int | None:
    known = [value for value in values if isinstance(value, int)]
    return sum(known) if known else None
