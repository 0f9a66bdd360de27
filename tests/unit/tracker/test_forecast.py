from dataclasses import replace

import pytest

from meshnet.domain.errors import ModelUnsupportedError, ResourceExhaustedError
from meshnet.model.description import describe
from meshnet.tracker.forecast import Link, Network, forecast, shape_of, smallest_addition
from meshnet.tracker.placement import Demand, Machine, ModelShape, Objective
from meshnet.tracker.speeds import Hop, Speed
from tests.support.tiny_gguf import TinyModel, index_of

DEMAND = Demand(1, 1, headroom=0.0, overhead_bytes=0)
EIGHT = ModelShape((10,) * 8, 0, 0, 0, 0, 100, tuple(range(1, 8)))


def test_the_slowest_part_and_its_share_are_named():
    machines = [Machine("fast", 60, 20.0), Machine("slow", 60, 5.0)]
    made = forecast(EIGHT, machines, Link(0.0, 1e9), DEMAND)
    assert [len(stage.layers) for stage in made.placement.stages] == [6, 2] or [
        len(stage.layers) for stage in made.placement.stages
    ] == [2, 6]
    assert made.limit.startswith("slow computing")
    assert made.limit_share == pytest.approx(4 / 7, rel=1e-3)


def test_a_slow_network_is_named_as_the_limit():
    machines = [Machine("a", 40, 1000.0), Machine("b", 40, 1000.0)]
    made = forecast(EIGHT, machines, Link(1.0, 1e9), DEMAND)
    assert made.limit == "2 hops between machines"


def test_one_more_machine_of_each_kind_is_tried():
    machines = [Machine("small", 40, 1.0), Machine("small", 40, 1.0)]
    demand = Demand(1, 1, Objective.THROUGHPUT, headroom=0.0, overhead_bytes=0)
    made = forecast(EIGHT, machines, Link(0.0, 1e12), demand)
    (more,) = made.one_more
    assert made.placement.bottleneck_seconds == pytest.approx(40)
    assert more.bottleneck_seconds == pytest.approx(30)


def test_what_has_to_be_added_is_found_or_said_to_be_impossible():
    machine = Machine("pi", 25, 1.0)
    with pytest.raises(ResourceExhaustedError):
        forecast(EIGHT, [machine], Link(), DEMAND)
    assert smallest_addition(EIGHT, [machine], Link(), DEMAND) == (machine, 3)
    assert smallest_addition(EIGHT, [Machine("tiny", 9, 1.0)], Link(), DEMAND) is None


def test_a_models_shape_has_its_cache_and_its_boundary_in_bytes():
    info = describe(index_of(TinyModel(layers=3, embedding=64, heads=4, kv_heads=2)))
    shape = shape_of(info)
    assert shape.kv_token_bytes == 2 * (16 + 16) * 2
    assert shape.boundary_bytes == 64 * 4
    assert shape.edges == (0, 1, 2, 3)
    assert sum(shape.layer_bytes) + shape.embedding_bytes + shape.output_bytes <= info.tensor_bytes


def test_a_models_shape_is_cut_where_no_layers_of_zeros_are_computed_if_it_can_be():
    periodic = describe(index_of(TinyModel("gemma3", layers=6)))
    assert 5 in periodic.joints
    assert 5 not in shape_of(periodic).cuts
    assert shape_of(periodic).cuts
    recognised = describe(index_of(TinyModel("gemma3", layers=62)))
    assert shape_of(recognised).cuts == recognised.joints


def test_a_model_that_mustn_t_be_cut_has_no_shape():
    info = replace(describe(index_of(TinyModel())), obstacle="it is odd")
    with pytest.raises(ModelUnsupportedError, match=r"odd.*--allow-unverified"):
        shape_of(info)
    assert shape_of(info, allow_unverified=True).cuts == info.joints


def test_measured_links_decide_who_is_next_to_whom():
    machines = [Machine(name, 40, 1000.0) for name in "abc"]
    far = Hop(1.0, 1e9)
    network = Network(Link(0.0, 1e9), {(0, 1): far, (0, 2): far})
    made = forecast(EIGHT, machines, network, DEMAND)
    assert {stage.machine for stage in made.placement.stages} == {1, 2}
    assert network.hop(1, 0) == far
    assert network.matrix(3, 0)[1, 2] == 0.0


def test_a_first_token_is_predicted_where_all_machines_were_measured_with_prompts():
    speed = Speed(10.0, 10.0, chunk_bytes_per_second=1.0)
    measured, plain = Machine("a", 100, 10.0, speed=speed), Machine("a", 100, 10.0)
    alone = forecast(EIGHT, [measured], Link(), DEMAND)
    assert alone.first_token_seconds == pytest.approx(4 * 80.0)
    assert forecast(EIGHT, [plain], Link(), DEMAND).first_token_seconds is None
