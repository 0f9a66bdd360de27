"""A network for the dashboard that is what it is told to be, and remembers what was asked of it."""

from __future__ import annotations

import time
from dataclasses import replace

from meshnet.domain.errors import MeshnetError, NodeUnreachableError
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
from meshnet.tracker.forecast import Link
from meshnet.tracker.placement import Demand, Machine, ModelShape

SHAPE = ModelShape(
    (90 << 20,) * 32, 260 << 20, 260 << 20, 1 << 20, 4096, 16384, tuple(range(1, 32))
)
JOIN_LINE = "meshnet join 192.168.1.10:9000 --token mesh-4f1c0d7a9be2"


def scripted_view() -> NetworkView:
    """Three machines over 32 layers, and a spare one."""
    ranges = (LayerRange(0, 12), LayerRange(12, 24), LayerRange(24, 32))
    nodes = tuple(
        NodeView(
            node_id=name,
            state=NodeState.READY,
            address=f"192.168.1.{10 + number}:7000",
            layers=layers,
            open_sessions=1,
            max_sessions=8,
            queued_steps=number,
            kv_used=1200 + 90 * number,
            kv_limit=32768,
            memory_bytes=(2 + number) << 30,
            deaths=0,
            prefill=Work(9, 0.8, 9, 0.01, 280),
            decode=Work(900, 900 * (0.008 + 0.003 * number), 900, 0.4, 900),
        )
        for number, (name, layers) in enumerate(
            zip(("attic-pc", "laptop", "mac-mini"), ranges, strict=True)
        )
    )
    spare = NodeView("pi-5", NodeState.SPARE, "192.168.1.14:7000", memory_bytes=300 << 20)
    links = tuple(
        LinkView("", node.node_id, 0.0004 * (n + 1)) for n, node in enumerate((*nodes, spare))
    )
    return NetworkView("scripted", 32, (*nodes, spare), links, "llama", 8192, "bfloat16")


class ScriptedMachines(Machines):
    """``view`` is what is seen; counters in it grow a little with each look."""

    def __init__(self, view: NetworkView | None = None) -> None:
        self.view = view or scripted_view()
        self.operations = frozenset(Operation)
        self.asked: list[tuple[str, str]] = []
        self.looks = 0
        self.trouble: MeshnetError | None = None

    async def look(self) -> NetworkView:
        self.looks += 1
        if self.trouble is not None:
            raise self.trouble
        self.view = replace(self.view, nodes=tuple(map(_worked, self.view.nodes)))
        return self.view

    async def join_line(self) -> str:
        return JOIN_LINE

    async def drain(self, node_id: str) -> None:
        self.change(node_id, state=NodeState.DRAINING)
        self.asked.append(("drain", node_id))

    async def undrain(self, node_id: str) -> None:
        self.change(node_id, state=NodeState.READY)
        self.asked.append(("undrain", node_id))

    async def remove(self, node_id: str) -> None:
        self._known(node_id)
        self.asked.append(("remove", node_id))
        left = tuple(node for node in self.view.nodes if node.node_id != node_id)
        links = tuple(link for link in self.view.links if link.target != node_id)
        self.view = replace(self.view, nodes=left, links=links)

    async def plan(self) -> WhatIf:
        machines = tuple(Machine(node.node_id, 8 << 30, 40e9) for node in self.view.nodes)
        return WhatIf(machines, Link(), Demand(8192, 4))

    async def what_if(self, question: WhatIf) -> PlanView:
        return plan_of(SHAPE, question)

    def change(self, node_id: str, **values: object) -> None:
        """Let a machine be otherwise."""
        self._known(node_id)
        nodes = tuple(
            replace(node, **values) if node.node_id == node_id else node  # type: ignore[arg-type]
            for node in self.view.nodes
        )
        self.view = replace(self.view, nodes=nodes)

    def _known(self, node_id: str) -> None:
        if node_id not in {node.node_id for node in self.view.nodes}:
            raise NodeUnreachableError(f"there is no machine {node_id!r}")


def _worked(node: NodeView) -> NodeView:
    if node.decode is None or node.state is not NodeState.READY:
        return node
    share = 0.3 + 0.1 * (int(time.time()) % 4)
    done = node.decode
    mean = done.step_seconds / done.steps
    steps = max(1, int(share / mean))
    return replace(
        node,
        decode=replace(
            done,
            steps=done.steps + steps,
            step_seconds=done.step_seconds + steps * mean,
            waits=done.waits + steps,
            wait_seconds=done.wait_seconds + steps * 0.0004,
            rows=done.rows + steps,
        ),
    )
