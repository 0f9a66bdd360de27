"""The machines of a cluster, as its tracker knows them, for the dashboard."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Protocol

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.gateway.machines import (
    LinkView,
    Machines,
    NetworkView,
    NodeState,
    NodeView,
    Operation,
    Work,
)
from meshnet.gateway.whatif import PlanView, WhatIf, plan_of
from meshnet.tracker import messages as msg
from meshnet.tracker.events import ModelOffered
from meshnet.tracker.forecast import Link
from meshnet.tracker.placement import Machine

_STATES: Mapping[msg.MachineState, NodeState] = {
    msg.MachineState.READY: NodeState.READY,
    msg.MachineState.FETCHING: NodeState.LOADING,
    msg.MachineState.STARTING: NodeState.LOADING,
    msg.MachineState.FAILED: NodeState.FAILED,
    msg.MachineState.SPARE: NodeState.SPARE,
    msg.MachineState.DOWN: NodeState.DOWN,
}


class Tracker(Protocol):
    """The cluster's tracker, wherever it runs; its methods raise any ``MeshnetError``."""

    async def status(self) -> msg.StatusReply:
        """The cluster of now."""

    async def tell(self, node: NodeId, verb: str) -> msg.StatusReply:
        """``drain``, ``undrain`` or ``remove`` a machine."""

    async def join_line(self) -> str:
        """A token is made; gives the command that uses it."""


class ClusterMachines(Machines):
    """Machines that come and go, as far as they hold one of the cluster's models."""

    operations = frozenset(Operation)

    def __init__(self, tracker: Tracker, offered: ModelOffered) -> None:
        """``offered`` is the model."""
        self._tracker = tracker
        self._offered = offered

    async def look(self) -> NetworkView:
        """What the tracker knows; no machine has to be asked."""
        return view_of(await self._tracker.status(), self._offered)

    async def join_line(self) -> str:
        """See :class:`Machines`."""
        return await self._tracker.join_line()

    async def drain(self, node_id: str) -> None:
        """See :class:`Machines`."""
        await self._tell(node_id, "drain")

    async def undrain(self, node_id: str) -> None:
        """See :class:`Machines`."""
        await self._tell(node_id, "undrain")

    async def remove(self, node_id: str) -> None:
        """See :class:`Machines`."""
        await self._tell(node_id, "remove")

    async def plan(self) -> WhatIf:
        """See :class:`Machines`; raises ``InvalidArgumentError`` while no machine is there."""
        status = await self._tracker.status()
        labels = labels_of(status.machines)
        machines = tuple(
            Machine(labels[it.node_id], it.machine.memory_bytes, it.machine.bytes_per_second)
            for it in status.machines
            if it.machine is not None and it.state is not msg.MachineState.DOWN
        )
        trips = [it.round_trip_seconds for it in status.machines if it.round_trip_seconds > 0]
        link = Link(min(trips) / 2) if trips else Link()
        return WhatIf(machines, link, self._offered.demand)

    async def what_if(self, question: WhatIf) -> PlanView:
        """See :class:`Machines`; computed beside the event loop."""
        return await asyncio.to_thread(plan_of, self._offered.shape, question)

    async def _tell(self, label: str, verb: str) -> None:
        status = await self._tracker.status()
        for node_id, known in labels_of(status.machines).items():
            if label in (known, node_id):
                await self._tracker.tell(NodeId(node_id), verb)
                return
        raise InvalidArgumentError("node", f"there is no machine {label!r}")


def labels_of(machines: Sequence[msg.MachineStatus]) -> dict[str, str]:
    """What to call each machine, by its id: its name, and the id too where several have that."""
    names = Counter(it.name for it in machines)
    return {
        it.node_id: it.name if names[it.name] == 1 else f"{it.name} {it.node_id}" for it in machines
    }


def view_of(status: msg.StatusReply, offered: ModelOffered) -> NetworkView:
    """The network view of a cluster's status: one model's layers, and the other models' names."""
    labels = labels_of(status.machines)
    names = {it.digest: it.name for it in status.models}
    return NetworkView(
        offered.name,
        len(offered.shape.layer_bytes),
        tuple(_node(it, labels[it.node_id], offered, names) for it in status.machines),
        tuple(
            LinkView("", it.node_id, it.round_trip_seconds)
            for it in status.machines
            if it.round_trip_seconds > 0 and it.state is not msg.MachineState.DOWN
        ),
        context_length=offered.serving.context_length,
        note=_note(status.models, offered),
    )


def _note(models: Sequence[msg.ModelStatus], offered: ModelOffered) -> str:
    shown = next((it for it in models if it.digest == offered.digest), None)
    others = ", ".join(
        it.name if it.ready else f"{it.name} (not ready)"
        for it in models
        if it.digest != offered.digest
    )
    problem = "" if shown is None else shown.problem
    parts = (problem, f"other models here: {others}" if others else "")
    return "; ".join(part for part in parts if part)


def _work(it: msg.MachineStatus, offered: ModelOffered) -> msg.WorkReport | None:
    """What a machine does for the model; one that is down does nothing, whatever it said last."""
    total = len(offered.shape.layer_bytes)
    if it.state is msg.MachineState.DOWN:
        return None
    mine = (work for work in it.work if work.model == offered.digest and work.end <= total)
    return next(mine, None)


def _node(
    it: msg.MachineStatus, label: str, offered: ModelOffered, names: Mapping[str, str]
) -> NodeView:
    work = _work(it, offered)
    state = _STATES[it.state]
    if it.drained and state in (NodeState.READY, NodeState.SPARE):
        state = NodeState.DRAINING
    layers = None
    if work is not None:
        layers = LayerRange(work.start, work.end)
    elif it.told is not None and it.told_model == offered.digest:
        layers = LayerRange(it.told.start, it.told.end)
    load = it.load if state in (NodeState.READY, NodeState.DRAINING) else None
    fetching = work is not None and work.phase is msg.Phase.FETCHING and work.total_bytes
    return NodeView(
        it.node_id,
        state,
        name=label,
        address="" if work is None else work.address or "",
        layers=layers,
        reason=_reason(it) or _elsewhere(it, offered, names),
        open_sessions=None if load is None else load.open_sessions,
        max_sessions=None if load is None else load.max_sessions,
        queued_steps=None if load is None else load.queued_steps,
        kv_used=None if load is None or not load.kv_limit else load.kv_used,
        kv_limit=None if load is None else load.kv_limit or None,
        memory_bytes=None if load is None else load.resident_bytes or None,
        prefill=None if load is None else _steps(load.prefill),
        decode=None if load is None else _steps(load.decode),
        memory_limit_bytes=None if it.machine is None else it.machine.memory_bytes,
        progress=work.done_bytes / work.total_bytes if work is not None and fetching else None,
    )


def _reason(it: msg.MachineStatus) -> str:
    if it.state is msg.MachineState.DOWN:
        silent = it.silent_seconds
        return "not heard of yet" if silent is None else f"not heard of for {silent:.0f} s"
    if it.drained and it.state is msg.MachineState.SPARE:
        return "drained: it gets no layers"
    return next((each.problem for each in it.work if each.problem), "")


def _elsewhere(it: msg.MachineStatus, offered: ModelOffered, names: Mapping[str, str]) -> str:
    """What a machine does that holds layers of another model than the one that is shown."""
    if it.told is None or it.told_model is None or it.told_model == offered.digest:
        return ""
    return f"layers {it.told.start}:{it.told.end} of {names.get(it.told_model, it.told_model)}"


def _steps(counts: msg.StepCounts) -> Work:
    return Work(counts.steps, counts.step_seconds, counts.waits, counts.wait_seconds, counts.rows)
