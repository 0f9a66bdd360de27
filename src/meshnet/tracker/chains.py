"""What seats on machines amount to: whether they make a chain, how quick it is, where gaps are.

Pure. Links count alike here, so that a link that is a little slower today changes no plan.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass

import numpy as np

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.events import Resources
from meshnet.tracker.observed import LINK_SECONDS
from meshnet.tracker.placement import (
    Costs,
    Demand,
    Machine,
    Matrix,
    ModelShape,
    Objective,
    costs_of,
)
from meshnet.tracker.speeds import Speed

_LARGE = 1 << 30
_GRAIN = 64 << 20

Seats = dict[NodeId, LayerRange]
Machines = Mapping[NodeId, Machine]


@dataclass(frozen=True, slots=True)
class Task:
    """A model that is to be served, and what each range of it needs and takes."""

    digest: Digest
    shape: ModelShape
    demand: Demand
    costs: Costs
    places: Mapping[int, int]
    """Of each layer before which a range may begin or end, its index in ``costs``."""

    @staticmethod
    def of(digest: Digest, shape: ModelShape, demand: Demand) -> Task:
        """The task of serving a model of this shape."""
        return Task(digest, shape, demand, *_costs(shape, demand))

    @property
    def whole(self) -> LayerRange:
        """All of the model's layers."""
        return LayerRange(0, len(self.shape.layer_bytes))

    def need(self, layers: LayerRange) -> float:
        """Bytes, headroom included; infinite for a range that mustn't be cut out."""
        return self._entry(self.costs.need, layers)

    def work(self, layers: LayerRange) -> float:
        """Bytes read in a decode step; infinite for a range that mustn't be cut out."""
        return self._entry(self.costs.work, layers) + self._output(layers)

    def seconds(self, layers: LayerRange, machine: Machine) -> float:
        """A decode step of the range on a machine."""
        speed, work = machine.speed_with(self.digest), self._entry(self.costs.work, layers)
        return speed.token_seconds(work, self._output(layers), lone=layers == self.whole)

    def _output(self, layers: LayerRange) -> int:
        return self.costs.output_bytes if layers.end == self.costs.edges[-1] else 0

    def keeps(self, layers: LayerRange, machine: Machine) -> bool:
        """Whether a machine may go on holding a range: what is free on it may eat the headroom."""
        return self.need(layers) / (1 + self.demand.headroom) <= machine.memory_bytes

    def _entry(self, matrix: Matrix, layers: LayerRange) -> float:
        start, end = self.places.get(layers.start), self.places.get(layers.end)
        return float("inf") if start is None or end is None else float(matrix[start, end])


@functools.lru_cache(maxsize=64)
def _costs(shape: ModelShape, demand: Demand) -> tuple[Costs, Mapping[int, int]]:
    costs = costs_of(shape, demand)
    return costs, {edge: number for number, edge in enumerate(costs.edges)}


def reached(ranges: Iterable[LayerRange]) -> set[int]:
    """The layers before which a chain from layer 0 on may have come, 0 included."""
    edges = {0}
    for layers in sorted(set(ranges)):
        if layers.start in edges:
            edges.add(layers.end)
    return edges


def reaching(ranges: Iterable[LayerRange], total: int) -> set[int]:
    """The layers from which on a chain may reach the model's end, ``total`` included."""
    edges = {total}
    for layers in sorted(set(ranges), key=lambda each: -each.end):
        if layers.end in edges:
            edges.add(layers.start)
    return edges


def is_complete(task: Task, ranges: Iterable[LayerRange]) -> bool:
    """Whether some of the ranges make a chain."""
    return task.whole.end in reached(ranges)


def gaps(task: Task, ranges: Iterable[LayerRange]) -> list[LayerRange]:
    """What, if it were held too, would make a chain of the ranges; the least work first."""
    held = set(ranges)
    begins, ends = reached(held), reaching(held, task.whole.end)
    found = [LayerRange(a, b) for a in begins for b in ends if a < b]
    return sorted(found, key=lambda layers: (task.work(layers), layers))


def quickest(task: Task, seats: Seats, machines: Machines) -> dict[LayerRange, NodeId]:
    """Who of those that hold a range computes it in the least time."""
    best: dict[LayerRange, tuple[float, NodeId]] = {}
    for node_id, layers in seats.items():
        rank = (task.seconds(layers, machines[node_id]), node_id)
        if layers not in best or rank < best[layers]:
            best[layers] = rank
    return {layers: node_id for layers, (_, node_id) in best.items()}


def best_chain(task: Task, seats: Seats, machines: Machines) -> tuple[float, tuple[NodeId, ...]]:
    """The chain in which a token takes the least time: that time, and its nodes.

    Infinite and empty where the seats make no chain.
    """
    holders = quickest(task, seats, machines)
    ways: dict[int, tuple[float, tuple[NodeId, ...]]] = {0: (0.0, ())}
    for layers, node_id in sorted(holders.items()):
        if layers.start not in ways:
            continue
        before, nodes = ways[layers.start]
        total = before + LINK_SECONDS + task.seconds(layers, machines[node_id])
        if layers.end not in ways or total < ways[layers.end][0]:
            ways[layers.end] = (total, (*nodes, node_id))
    return ways.get(task.whole.end, (float("inf"), ()))


def layer_rates(task: Task, seats: Seats, machines: Machines) -> Matrix:
    """Tokens a second that all holders of each layer compute together, shape (layers,)."""
    rates = np.zeros(task.whole.end)
    for node_id, layers in seats.items():
        seconds = task.seconds(layers, machines[node_id])
        # A range of layers without weights, as tests have them, takes no time.
        rates[layers.start : layers.end] += 1 / max(seconds, 1e-12)
    return rates


def seconds_of(task: Task, seats: Seats, machines: Machines) -> float:
    """What the model is placed for, in seconds, the less the better."""
    latency = best_chain(task, seats, machines)[0]
    if task.demand.objective is Objective.LATENCY or not np.isfinite(latency):
        return latency
    return float(1 / layer_rates(task, seats, machines).min())


def machine_of(resources: Resources, speeds: tuple[tuple[str, Speed], ...] = ()) -> Machine:
    """The machine that plans are made with.

    Its figures are rounded, so that machines that differ by little count as alike; of its memory
    nothing is counted that isn't there.
    """
    memory = resources.memory_bytes
    if memory >= _LARGE:
        memory -= memory % _GRAIN
    rate = _rounded(resources.bytes_per_second)
    return Machine("", memory, rate, tuple((model, _coarse(speed)) for model, speed in speeds))


@functools.lru_cache(maxsize=16_384)
def _coarse(speed: Speed) -> Speed:
    return Speed(*map(_rounded, astuple(speed)))


def _rounded(value: float) -> float:
    return float(f"{value:.2g}")
