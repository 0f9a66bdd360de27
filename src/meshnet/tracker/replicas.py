"""Which layers a machine holds that no chain needs: those where another one helps most. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.chains import Machines, Seats, Task, layer_rates, quickest
from meshnet.tracker.observed import LINK_SECONDS
from meshnet.tracker.placement import Machine, Matrix, Objective

WORTH_NOTICING = 1.1
"""A chain that is quicker by this factor is worth more than a wider bottleneck."""


def replicas(
    tasks: Sequence[Task],
    seats: Mapping[Digest, Seats],
    spare: Sequence[NodeId],
    machines: Machines,
) -> dict[Digest, Seats]:
    """Seats for the ``spare`` machines, each on layers of a chain that is whole already.

    One after the other, the quickest first, each goes to the model whose slowest layers are the
    slowest, and there to the range that makes a token quicker or else those layers wider. One that
    holds no range of any model gets none.
    """
    given: dict[Digest, Seats] = {}
    needs = [task.need(span) for task in tasks for span in set(seats[task.digest].values())]
    able = [node for node in spare if machines[node].memory_bytes >= min(needs, default=np.inf)]
    if not able:
        return given
    open_tasks = [_Growing.of(task, seats[task.digest], machines) for task in tasks]
    for node in sorted(able, key=lambda each: (-machines[each].bytes_per_second, each)):
        for growing in sorted(open_tasks, key=lambda each: each.slowest):
            layers = growing.best_for(machines[node])
            if layers is not None:
                growing.add(layers, machines[node])
                given.setdefault(growing.task.digest, {})[node] = layers
                break
    return given


@dataclass(slots=True)
class _Growing:
    """A model that is whole, while replicas are added. Times leave the first link out."""

    task: Task
    ranges: dict[LayerRange, int]
    """That a replica may hold, with how many do."""
    rates: Matrix
    """Tokens a second of each layer, shape (layers,)."""
    chains: dict[LayerRange, float]
    """The quickest step of each range, in seconds."""

    @staticmethod
    def of(task: Task, seats: Seats, machines: Machines) -> _Growing:
        holders = dict.fromkeys([*seats.values(), task.whole], 0)
        for layers in seats.values():
            holders[layers] += 1
        chains = {
            layers: task.seconds(layers, machines[node])
            for layers, node in quickest(task, seats, machines).items()
        }
        return _Growing(task, holders, layer_rates(task, seats, machines), chains)

    @property
    def slowest(self) -> float:
        """Tokens a second of the slowest layers."""
        return float(self.rates.min())

    def best_for(self, machine: Machine) -> LayerRange | None:
        """The range to hold on a machine; None if it holds none of them."""
        fits = [layers for layers in self.ranges if self.task.need(layers) <= machine.memory_bytes]
        if not fits:
            return None
        now = self._latency({})
        return min(fits, key=lambda layers: self._rank(layers, machine, now))

    def add(self, layers: LayerRange, machine: Machine) -> None:
        """Count a replica in."""
        seconds = self.task.seconds(layers, machine)
        self.ranges[layers] += 1
        self.rates[layers.start : layers.end] += 1 / max(seconds, 1e-12)
        self.chains[layers] = min(self.chains.get(layers, np.inf), seconds)

    def _rank(
        self, layers: LayerRange, machine: Machine, now: float
    ) -> tuple[float, float, int, LayerRange]:
        """The less the better."""
        seconds = self.task.seconds(layers, machine)
        latency = now
        if seconds < self.chains.get(layers, np.inf):
            latency = self._latency({layers: seconds})
        rates = self.rates.copy()
        rates[layers.start : layers.end] += 1 / max(seconds, 1e-12)
        width = 1 / float(rates.min())
        if now / latency < WORTH_NOTICING:
            latency = now
        order = (latency, width)
        if self.task.demand.objective is Objective.THROUGHPUT:
            order = (width, latency)
        return (*order, self.ranges[layers], layers)

    def _latency(self, more: Mapping[LayerRange, float]) -> float:
        """A token's time in the quickest chain."""
        ways = {0: 0.0}
        for layers, seconds in sorted({**self.chains, **more}.items()):
            if layers.start in ways:
                total = ways[layers.start] + LINK_SECONDS + seconds
                ways[layers.end] = min(ways.get(layers.end, np.inf), total)
        return ways[self.task.whole.end]
