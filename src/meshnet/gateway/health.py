"""Whether the models can be used, as JSON: each chain's nodes with their states."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from meshnet.domain.errors import DeadlineExceededError, MeshnetError
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.session.service import ModelService

JsonObject = dict[str, object]


async def check(models: Iterable[ModelService], timeout_seconds: float) -> tuple[bool, JsonObject]:
    """Ask every node of every model; True if all are ready.

    A node that can't be asked, or not within ``timeout_seconds``, makes its model unavailable.
    """
    reports = await asyncio.gather(*(_check_model(model, timeout_seconds) for model in models))
    reasons = [reason for reason, _ in reports if reason]
    body: JsonObject = {
        "status": "unavailable" if reasons else "ready",
        "reason": "; ".join(reasons) or None,
        "models": [report for _, report in reports],
    }
    return not reasons, body


async def _check_model(model: ModelService, timeout_seconds: float) -> tuple[str, JsonObject]:
    try:
        chain = await _ask(model, timeout_seconds)
    except MeshnetError as error:
        reason = f"{model.name}: {error.message}"
        return reason, {"id": model.name, "ready": False, "nodes": []}
    waiting = [_complaint(*node) for node in chain if node[1].state is not LifecycleState.READY]
    reason = f"{model.name}: {', '.join(waiting)}" if waiting else ""
    nodes = [_node(*node) for node in chain]
    return reason, {"id": model.name, "ready": not waiting, "nodes": nodes}


async def _ask(
    model: ModelService, timeout_seconds: float
) -> tuple[tuple[Capability, HealthReport], ...]:
    try:
        async with asyncio.timeout(timeout_seconds):
            return await model.chain()
    except TimeoutError as error:
        raise DeadlineExceededError(
            f"its nodes didn't answer within {timeout_seconds:g} s"
        ) from error


def _complaint(node: Capability, health: HealthReport) -> str:
    why = f" ({health.status.message})" if health.status.message else ""
    return f"node {node.node_id} is {health.state.value}{why}"


def _node(node: Capability, health: HealthReport) -> JsonObject:
    return {
        "node_id": node.node_id,
        "layers": [node.layers.start, node.layers.end],
        "state": health.state.value,
        "reason": health.status.message or None,
        "open_sessions": health.open_sessions,
        "steps_done": health.steps_done,
    }
