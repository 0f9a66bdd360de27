"""Where the time of a request under way goes, from what its nodes computed meanwhile. Pure.

Nodes tell a request's own times when it is over. Until then, means over the steps of all requests
stand for them: exact for a request that is alone, an estimate for others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from meshnet.gateway.machines import HopShare, NodeView, RequestState, RequestView, Work

MILLI: Final = 1e-3


def estimated_hops(
    request: RequestView, before: Mapping[str, NodeView], nodes: Sequence[NodeView]
) -> tuple[HopShare, ...]:
    """Each node's part, by the order of layers; empty where nodes don't tell what they compute.

    ``before`` is the nodes as they were when the request came in. What of the time between two
    tokens no node worked or let wait is shared out evenly as the way between them.
    """
    held = {node.layers: node for node in nodes if node.layers is not None}
    hops = [
        _hop(request, before.get(held[layers].node_id), held[layers]) for layers in sorted(held)
    ]
    known = [hop for hop in hops if hop is not None]
    if len(known) < len(hops) or not known:
        return ()
    gap = _token_gap(request)
    busy = sum(hop.decode_queue + hop.decode_engine for hop in known)
    if gap is None or not busy:
        return tuple(known)
    way = max(gap / MILLI - busy, 0.0) / len(known)
    return tuple(replace(hop, decode_wait=way) for hop in known)


def _hop(request: RequestView, before: NodeView | None, now: NodeView) -> HopShare | None:
    if before is None:
        return None
    prefill = _difference(before.prefill, now.prefill)
    decode = _difference(before.decode, now.decode)
    if prefill is None or decode is None:
        return None
    steps, waits = max(decode.steps, 1), max(decode.waits, 1)
    queue, engine = _prompt(request, prefill)
    return HopShare(
        now.node_id,
        str(now.layers),
        prefill_queue=queue / MILLI,
        prefill_engine=engine / MILLI,
        decode_steps=request.completion_tokens if request.state is RequestState.ANSWER else 0,
        decode_queue=decode.wait_seconds / waits / MILLI,
        decode_engine=decode.step_seconds / steps / MILLI,
    )


def _prompt(request: RequestView, done: Work) -> tuple[float, float]:
    """Seconds that a request's prompt waited for the engine, and was computed.

    Others' prompts may be in the sums; a token of one takes about as long as one of another. No
    more time than there was is told.
    """
    prompt = min(request.prompt_tokens, done.rows)
    engine = done.step_seconds / max(done.rows, 1) * prompt
    queue = done.wait_seconds / max(done.waits, 1)
    first = request.first_token_seconds
    most = request.seconds if first is None else first
    scale = min(most / (queue + engine), 1.0) if queue + engine > 0 else 1.0
    return queue * scale, engine * scale


def _difference(before: Work | None, now: Work | None) -> Work | None:
    """What was computed between two readings; None if the process began anew in between."""
    if before is None or now is None or now.steps < before.steps:
        return None
    return Work(
        now.steps - before.steps,
        now.step_seconds - before.step_seconds,
        now.waits - before.waits,
        now.wait_seconds - before.wait_seconds,
        now.rows - before.rows,
    )


def _token_gap(request: RequestView) -> float | None:
    """Mean seconds between two tokens of one choice."""
    first, later = request.first_token_seconds, request.completion_tokens - request.choices
    if first is None or later < 1:
        return None
    return (request.seconds - first) * request.choices / later
