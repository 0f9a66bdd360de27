import dataclasses

import pytest

from meshnet.domain.layers import LayerRange
from meshnet.model import variants as of
from meshnet.model.description import describe
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import Hyperparameters, read_hyperparameters
from meshnet.model.metadata import string
from tests.support.tiny_gguf import KeyValue, TinyModel, index_of

MIDDLE = LayerRange(2, 4)


def model(keys: dict[str, KeyValue], layers: int = 6) -> tuple[GgufIndex, Hyperparameters]:
    index = index_of(TinyModel(layers=layers, keys=keys))
    return index, read_hyperparameters(index, None)


@pytest.mark.parametrize(
    ("layers", "vocabulary", "lite"),
    [(26, 32, 1), (27, 102400, 1), (28, 32, 0), (48, 128256, 1), (48, 32, 0), (61, 129280, 0)],
)
def test_lite_models_of_deepseek2_are_told_by_two_numbers(
    layers: int, vocabulary: int, lite: int
) -> None:
    assert of.deepseek2_lite(layers, vocabulary) == lite


def test_counts_that_mark_models_are_told_apart_from_one_another() -> None:
    recognise = of.by_count(32, 40)
    assert [recognise(layers, 0) for layers in (31, 32, 39, 40)] == [0, 1, 0, 2]
    assert [of.at_least(64)(layers, 0) for layers in (63, 64, 65)] == [0, 1, 1]


@pytest.mark.parametrize(("step", "period"), [(0, 4), (1, 4), (2, 4), (3, 12)])
def test_a_period_that_two_things_have_is_that_of_both(step: int, period: int) -> None:
    _, sizes = model({"interleave_moe_layer_step": step})
    assert of.four_and_expert_step(sizes) == period


def test_the_layers_that_share_a_cache_stay_with_the_two_that_fill_it() -> None:
    _, sizes = model({"attention.shared_kv_layers": 2})
    assert [of.before_shared_cache(sizes, layer) for layer in range(1, 6)] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_derived_residual_scale_is_that_of_the_whole_model() -> None:
    index, sizes = model({})
    scale = of.residual_scale(index, sizes, MIDDLE)["residual_scale"].scalar()
    assert scale == pytest.approx(1.4 / 6**0.5)
    assert of.residual_scale(*model({"residual_scale": 0.5}), MIDDLE) == {}


@pytest.mark.parametrize(
    ("sections", "added"),
    [(None, [4, 4, 0, 0]), ([2, 3, 3, 0], None), ([0, 4, 0, 0], [4, 4, 0, 0])],
)
def test_sections_are_added_where_a_slice_takes_rows_and_has_none(
    sections: list[int] | None, added: list[int] | None
) -> None:
    index, sizes = model({} if sections is None else {"rope.dimension_sections": sections})
    made = of.rope_sections(index, sizes, MIDDLE)
    assert (made["rope.dimension_sections"].items() if made else None) == added
    assert of.rope_sections(index, sizes, LayerRange(0, 2)) == {}


def test_a_gate_is_written_out_as_libllama_would_choose_it_for_the_model() -> None:
    index, sizes = model({})
    assert of.gating(index, sizes, MIDDLE)["expert_gating_func"].scalar() == 1
    lite = dataclasses.replace(sizes, layers=47, vocabulary=154880)
    assert of.gating(index, lite, MIDDLE)["expert_gating_func"].scalar() == 2
    assert of.gating(*model({"expert_gating_func": 2}), MIDDLE) == {}


@pytest.mark.parametrize(
    ("name", "keys", "reason"),
    [
        ("gemma", {"embedding_length": 2048}, "root of 2048"),
        ("gemma", {"embedding_length": 4096}, ""),
        ("gemma2", {"embedding_length": 36 * 36, "attention.sliding_window": 8}, "root of 1296"),
        ("glm4", {}, "rope.dimension_sections"),
        ("glm4", {"rope.dimension_sections": [2, 3, 3, 0]}, ""),
        ("nanbeige", {"num_loops": 2}, "more than once"),
        ("nanbeige", {"num_loops": 1}, ""),
        ("llama4", {"attention.sliding_window": 0}, "sliding_window is 0"),
        ("llama4", {}, ""),
        ("glm-dsa", {"context_length": 1 << 20}, "indexer.types is missing"),
        ("glm-dsa", {"context_length": 4096}, ""),
        ("gemma4", {"embedding_length_per_layer_input": 8}, "token ids"),
        ("gemma4", {"embedding_length_per_layer_input": 0}, ""),
    ],
)
def test_variants_that_cannot_be_cut_say_why(
    name: str, keys: dict[str, KeyValue], reason: str
) -> None:
    index = index_of(TinyModel("llama", 6, keys=keys))
    metadata = {key.replace("llama.", f"{name}."): value for key, value in index.metadata.items()}
    metadata["general.architecture"] = string(name)
    info = describe(dataclasses.replace(index, metadata=metadata))
    assert reason in info.obstacle
    assert bool(info.obstacle) == bool(reason)
