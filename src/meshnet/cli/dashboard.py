"""What ``meshnet serve`` shows on its dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshnet.cli.local import LocalModel
from meshnet.cli.options import NodeOptions, Optimise
from meshnet.cli.telemetry import node_readings
from meshnet.domain.errors import ModelUnsupportedError
from meshnet.gateway.chainmachines import ChainMachines, Planner
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.node.keeper import NodeKeeper
from meshnet.node.resources import available_memory
from meshnet.session.generate import ChainModel
from meshnet.tracker.forecast import shape_of
from meshnet.tracker.placement import Demand, Objective


def chain_machines(
    served: ChainModel, keepers: Sequence[NodeKeeper], model: LocalModel, options: NodeOptions
) -> ChainMachines:
    """The served chain; ``keepers`` are those of its nodes that run on this machine."""
    memory = available_memory() if keepers else None
    return ChainMachines(
        served.name,
        served.census,
        partial(node_readings, keepers),
        _planner(served, model, options, memory),
    )


def _planner(
    served: ChainModel, model: LocalModel, options: NodeOptions, memory_bytes: int | None
) -> Planner | None:
    info = describe(read_index(model.path))
    try:
        shape = shape_of(info, allow_unverified=options.allow_unverified)
    except ModelUnsupportedError:
        # Nodes elsewhere may hold what mustn't be cut here; there is no telling what else could.
        return None
    throughput = options.optimise is Optimise.THROUGHPUT
    objective = Objective.THROUGHPUT if throughput else Objective.LATENCY
    demand = Demand(served.context_length, options.sessions, objective)
    return Planner(shape, demand, memory_bytes)
