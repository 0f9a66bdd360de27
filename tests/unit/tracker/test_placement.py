import itertools
import math
import random
import time
from collections.abc import Sequence

import numpy as np
import pytest

from meshnet.domain.errors import InvalidArgumentError, LayerRangeError, ResourceExhaustedError
from meshnet.domain.layers import LayerRange
from meshnet.tracker.placement import (
    Demand,
    Machine,
    Matrix,
    ModelShape,
    Objective,
    uniform_links,
)
from meshnet.tracker.search import place
from meshnet.tracker.speeds import Speed


def demand_of(sessions: int = 1, objective: Objective = Objective.LATENCY) -> Demand:
    """Nothing but the model and its cache counts."""
    return Demand(1, sessions, objective, headroom=0.0, overhead_bytes=0)


def shape_of(
    layers: Sequence[int],
    *,
    output: int = 0,
    embedding: int = 0,
    cuts: tuple[int, ...] | None = None,
    kv: int = 0,
) -> ModelShape:
    cuts = tuple(range(1, len(layers))) if cuts is None else cuts
    return ModelShape(tuple(layers), embedding, output, 0, kv, 4, cuts)


def brute_force(
    shape: ModelShape, machines: Sequence[Machine], links: Matrix, demand: Demand
) -> tuple[float, float]:
    """Every order of every choice of machines over every choice of cuts."""
    best = (math.inf, math.inf)
    edges = shape.edges
    for count in range(1, min(len(machines), len(edges) - 1) + 1):
        for inner in itertools.combinations(edges[1:-1], count - 1):
            bounds = (0, *inner, edges[-1])
            for order in itertools.permutations(range(len(machines)), count):
                best = min(best, cost_of(shape, machines, links, demand, order, bounds))
    return best


def cost_of(
    shape: ModelShape,
    machines: Sequence[Machine],
    links: Matrix,
    demand: Demand,
    order: Sequence[int],
    bounds: Sequence[int],
) -> tuple[float, float]:
    seconds = []
    for machine, (a, b) in zip(order, itertools.pairwise(bounds), strict=True):
        work = sum(shape.layer_bytes[a:b])
        need = work + (b - a) * shape.kv_token_bytes * demand.context_tokens * demand.sessions
        need += shape.embedding_bytes * (a == 0)
        tail = b == len(shape.layer_bytes)
        work, need = work + shape.output_bytes * tail, need + shape.output_bytes * tail
        if need > machines[machine].memory_bytes:
            return (math.inf, math.inf)
        speed, output = machines[machine].speed, shape.output_bytes * tail
        lone = len(order) == 1
        seconds.append(speed.token_seconds(work - output, output, lone=lone))
    hops = [links[a, b] for a, b in zip(order, (*order[1:], order[0]), strict=True)]
    total = sum(seconds) + sum(hops)
    if demand.objective is Objective.LATENCY:
        return (total, total)
    return (max(*seconds, *hops), total)


def random_machine(rng: random.Random) -> Machine:
    """Measured with the model, or not."""
    rate = rng.choice([1.0, 2.0, 5.0])
    speed = Speed()
    if rng.random() < 0.5:
        output, alone = rng.choice([1.0, 4.0]), rng.choice([0.5, 1.0])
        step, node = rng.choice([0.0, 0.7]), rng.choice([0.0, 0.4])
        speed = Speed(rate, output, step, alone, node_seconds=node, lone_seconds=node / 2)
    return Machine("m", rng.randint(4, 60), rate, speed=speed)


def random_case(rng: random.Random) -> tuple[ModelShape, list[Machine], Matrix, Demand]:
    layers = [rng.randint(1, 9) for _ in range(rng.randint(1, 6))]
    cuts = tuple(cut for cut in range(1, len(layers)) if rng.random() < 0.8)
    shape = shape_of(
        layers, output=rng.randint(0, 20), embedding=rng.randint(0, 10), cuts=cuts, kv=1
    )
    kinds = [random_machine(rng) for _ in range(3)]
    machines = [rng.choice(kinds) for _ in range(rng.randint(1, 4))]
    count = len(machines)
    if rng.random() < 0.5:
        links = uniform_links(count, rng.choice([0.0, 0.5, 3.0]))
    else:
        links = np.array([[rng.uniform(0, 4) for _ in range(count)] for _ in range(count)])
        np.fill_diagonal(links, 0.0)
    demand = demand_of(rng.randint(1, 2), rng.choice(list(Objective)))
    return shape, machines, links, demand


def test_no_placement_is_worse_than_brute_force_on_a_thousand_cases():
    rng = random.Random(7)
    fitting = 0
    for _ in range(1000):
        shape, machines, links, demand = random_case(rng)
        expected = brute_force(shape, machines, links, demand)
        if math.isinf(expected[0]):
            with pytest.raises(ResourceExhaustedError):
                place(shape, machines, links, demand)
            continue
        fitting += 1
        found = place(shape, machines, links, demand)
        assert found.optimal
        order = [stage.machine for stage in found.stages]
        bounds = [0, *(stage.layers.end for stage in found.stages)]
        assert len(set(order)) == len(order)
        assert set(bounds) <= set(shape.edges)
        got = cost_of(shape, machines, links, demand, order, bounds)
        assert got == pytest.approx(expected), (shape, machines, demand)
        assert found.token_seconds == pytest.approx(got[1])
    assert fitting > 300


@pytest.mark.parametrize("objective", list(Objective))
def test_a_thousand_machines_and_120_layers_are_placed_in_time(objective):
    rng = random.Random(1)
    shape = shape_of([100] * 120, output=300, embedding=300)
    machines = [Machine(str(i), rng.randint(400, 3000), rng.uniform(10, 100)) for i in range(1000)]
    links = np.array([[rng.uniform(0, 0.2) for _ in range(1000)] for _ in range(1000)])
    started = time.perf_counter()
    found = place(shape, machines, links, demand_of(1, objective))
    assert time.perf_counter() - started < 10  # about a second when nothing else runs
    assert all(stage.need_bytes <= machines[stage.machine].memory_bytes for stage in found.stages)
    assert len({stage.machine for stage in found.stages}) == len(found.stages)


def test_where_the_exact_search_is_too_long_a_chain_close_to_the_best_is_found(monkeypatch):
    rng = random.Random(3)
    ratios = []
    for _ in range(200):
        shape, machines, links, demand = random_case(rng)
        expected = brute_force(shape, machines, links, demand)[0]
        if math.isinf(expected):
            continue
        with monkeypatch.context() as patch:
            patch.setattr("meshnet.tracker.search.MAX_EXACT_OPERATIONS", 0)
            try:
                found = place(shape, machines, links, demand)
            except ResourceExhaustedError:
                continue
        assert not found.optimal
        latency = demand.objective is Objective.LATENCY
        value = found.token_seconds if latency else found.bottleneck_seconds
        ratios.append(value / expected if expected else 1.0)
    assert len(ratios) > 60
    assert np.median(ratios) < 1.02
    assert np.mean(ratios) < 1.15


def test_one_fast_machine_that_holds_all_serves_alone_for_latency():
    machines = [Machine("slow", 100, 1.0), Machine("fast", 100, 4.0)]
    found = place(shape_of([1] * 8), machines, uniform_links(2, 0.1), demand_of())
    assert [(stage.machine, stage.layers) for stage in found.stages] == [(1, LayerRange(0, 8))]
    assert found.hop_seconds == (0.0,)


def test_machines_that_differ_only_in_what_a_placement_doesnt_count_leave_none_of_them_out():
    kinds = [Speed(1.0, 1.0, chunk_bytes_per_second=rate) for rate in (3.0, 4.0)]
    machines = [Machine("m", 10, 1.0, speed=speed) for speed in kinds for _ in range(2)]
    found = place(shape_of([8, 8]), machines, uniform_links(4, 0.1), demand_of())
    assert len(found.stages) == 2
    assert found.optimal


def test_for_throughput_the_tails_output_matrix_weighs_like_layers():
    machines = [Machine("a", 100, 1.0), Machine("b", 100, 1.0)]
    demand = demand_of(1, Objective.THROUGHPUT)
    found = place(shape_of([1] * 30, output=8), machines, uniform_links(2, 0.0), demand)
    assert [len(stage.layers) for stage in found.stages] == [19, 11]


def test_cache_of_all_sessions_is_part_of_the_need():
    machines = [Machine("a", 10, 1.0), Machine("b", 10, 1.0)]
    shape = shape_of([2] * 4, kv=1)
    split = place(shape, machines, uniform_links(2, 0), demand_of(2))
    assert [stage.need_bytes for stage in split.stages] == [8, 8]
    with pytest.raises(ResourceExhaustedError, match="2 sessions"):
        place(shape, machines[:1], uniform_links(1, 0), demand_of(2))


def test_a_model_that_fits_nowhere_says_what_it_needs_and_what_there_is():
    machine, need = Machine("a", 1 << 30, 1.0), r"5\.40 GiB on one.* 614 MiB more for each further"
    with pytest.raises(ResourceExhaustedError, match=need + r".*1 machines have 1\.00 GiB"):
        place(
            shape_of([1 << 30] * 4),
            [machine],
            uniform_links(1, 0),
            Demand(1, 1, headroom=0.2, overhead_bytes=512 << 20),
        )


@pytest.mark.parametrize("speed", [0.0, -1.0, math.inf, math.nan])
def test_a_speed_that_is_none_is_refused(speed):
    with pytest.raises(InvalidArgumentError, match="speed"):
        Machine("a", 1, speed)


def test_a_cut_outside_the_model_is_refused():
    with pytest.raises(LayerRangeError):
        shape_of([1, 1], cuts=(2,))
