"""Where layers go that nobody holds, with as few moves as can be. Pure."""

from __future__ import annotations

import bisect
import functools
import heapq
from collections.abc import Collection, Sequence
from typing import Final

import numpy as np

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.chains import Machines, Seats, Task, gaps
from meshnet.tracker.observed import LINK_SECONDS, Observed
from meshnet.tracker.placement import Demand, Machine, ModelShape, Placement, uniform_links
from meshnet.tracker.search import place

MOST_MACHINES: Final = 256
"""That a search looks at: half of them the quickest, half the largest."""
MOST_GAPS: Final = 32


def mended(
    task: Task, seats: Seats, free: Sequence[NodeId], machines: Machines, observed: Observed
) -> Seats | None:
    """Seats for some of the ``free`` machines that make a chain together with ``seats``.

    One machine takes just the layers that are missing if it can, so that nobody else has to load
    anything; of several, the one with which a token takes the least time. None where nobody holds
    anything yet, or the gap fits on none of them.
    """
    if not seats:
        return None
    for gap in gaps(task, seats.values())[:MOST_GAPS]:
        need = task.need(gap)
        fits = [node for node in free if machines[node].memory_bytes >= need]
        if fits:
            return {_quickest(task, gap, fits, seats, machines, observed): gap}
        several = _over(task, free, machines, shape=_part(task.shape, gap))
        if several is not None:
            return {
                node: LayerRange(gap.start + layers.start, gap.start + layers.end)
                for node, layers in several.items()
            }
    return None


def _quickest(
    task: Task,
    gap: LayerRange,
    fits: Sequence[NodeId],
    seats: Seats,
    machines: Machines,
    observed: Observed,
) -> NodeId:
    """Which machine takes a token through the gap in the least time, its links included."""
    before = [node for node, layers in seats.items() if layers.end == gap.start]
    after = [node for node, layers in seats.items() if layers.start == gap.end]

    def seconds(node: NodeId) -> tuple[float, NodeId]:
        row = task.shape.boundary_bytes
        into = min((observed.link_seconds(other, node, row) for other in before), default=0.0)
        out = min((observed.link_seconds(node, other, row) for other in after), default=0.0)
        return task.seconds(gap, machines[node]) + into + out, node

    return min(fits, key=seconds)


def placed_ideally(task: Task, nodes: Collection[NodeId], machines: Machines) -> Seats | None:
    """The best chain over ``nodes`` if no link were slower than usual; None if it fits on none."""
    return _over(task, _few(nodes, machines), machines)


def placed_anew(
    task: Task,
    nodes: Collection[NodeId],
    machines: Machines,
    observed: Observed,
    current: Seats,
) -> Seats | None:
    """The best chain over ``nodes``, whoever held what; None if it fits on no chain of them.

    Where machines are alike, those that hold a range already keep it.
    """
    chosen = _few(nodes, machines)
    links = observed.planned_links(chosen, task.shape.boundary_bytes)
    if np.array_equal(links, uniform_links(len(chosen), LINK_SECONDS)):
        seats = _over(task, chosen, machines)
        return seats if seats is None else _settled(seats, chosen, machines, current)
    return _over(task, chosen, machines, links.tobytes())


def on_the_fewest(task: Task, nodes: Collection[NodeId], machines: Machines) -> Seats | None:
    """A chain over as few of the largest machines as it takes; None if all aren't enough."""
    largest = sorted(nodes, key=lambda node: (-machines[node].memory_bytes, node))
    most = min(len(largest), len(task.costs.edges) - 1)

    def over(count: int) -> Seats | None:
        return _over(task, largest[:count], machines)

    if over(most) is None:
        return None
    counts = range(1, most + 1)
    fewest = counts[bisect.bisect_left(counts, 1, key=lambda count: int(over(count) is not None))]
    return over(fewest)


def _over(
    task: Task,
    nodes: Sequence[NodeId],
    machines: Machines,
    links: bytes = b"",
    shape: ModelShape | None = None,
) -> Seats | None:
    """``shape``: that of a part of the task's model, if it isn't all of it."""
    chosen = nodes if len(nodes) <= MOST_MACHINES else _few(nodes, machines)
    placing = tuple(machines[node].placing(task.digest) for node in chosen)
    found = _searched(shape or task.shape, task.demand, placing, links)
    if found is None:
        return None
    return {chosen[stage.machine]: stage.layers for stage in found.stages}


@functools.lru_cache(maxsize=64)
def _searched(
    shape: ModelShape, demand: Demand, machines: tuple[Machine, ...], links: bytes
) -> Placement | None:
    """Kept, since what can't be placed is asked for again at every turn.

    ``links`` are float64 seconds in rows, or empty where all are usual.
    """
    if not machines:
        return None
    count = len(machines)
    table = uniform_links(count, LINK_SECONDS)
    if links:
        table = np.frombuffer(links).reshape(count, count)
    try:
        return place(shape, machines, table, demand)
    except ResourceExhaustedError:
        return None


def _few(nodes: Collection[NodeId], machines: Machines) -> list[NodeId]:
    """The machines worth looking at, in a fixed order."""
    if len(nodes) <= MOST_MACHINES:
        return sorted(nodes)
    half = MOST_MACHINES // 2
    quick = heapq.nsmallest(half, nodes, lambda node: (-machines[node].bytes_per_second, node))
    others = set(nodes).difference(quick)
    large = heapq.nsmallest(half, others, lambda node: (-machines[node].memory_bytes, node))
    return sorted([*quick, *large])


def _part(shape: ModelShape, layers: LayerRange) -> ModelShape:
    """A model of just these layers, with what of embeddings and output goes with them."""
    is_head, is_tail = layers.is_head(), layers.is_tail(len(shape.layer_bytes))
    return ModelShape(
        shape.layer_bytes[layers.start : layers.end],
        shape.embedding_bytes if is_head else 0,
        shape.output_bytes if is_tail else 0,
        shape.shared_bytes,
        shape.kv_token_bytes,
        shape.boundary_bytes,
        tuple(cut - layers.start for cut in shape.cuts if layers.start < cut < layers.end),
        tied=shape.tied and is_head and is_tail,
    )


def _settled(seats: Seats, chosen: Sequence[NodeId], machines: Machines, current: Seats) -> Seats:
    """The same chain, in which machines that are alike have changed places to move less."""
    alike: dict[Machine, list[NodeId]] = {}
    for node in chosen:
        alike.setdefault(machines[node], []).append(node)
    settled: Seats = {}
    open_seats: list[tuple[NodeId, LayerRange]] = []
    for node, layers in seats.items():
        holders = [each for each in alike[machines[node]] if current.get(each) == layers]
        keeper = next((each for each in holders if each not in settled), None)
        if keeper is None:
            open_seats.append((node, layers))
        else:
            settled[keeper] = layers
    for node, layers in open_seats:
        others = [each for each in alike[machines[node]] if each not in settled]
        # One that holds nothing moves nothing.
        settled[min(others, key=lambda each: (each in current, each != node, each))] = layers
    return settled
