import pytest

from meshnet.domain.errors import ModelFileError
from meshnet.domain.layers import LayerRange
from meshnet.model.hyperparameters import (
    SlidingWindow,
    layer_of,
    layer_tensors,
    read_hyperparameters,
)
from tests.support.tiny_gguf import KeyValue, TinyModel, index_of

PATTERN = "attention.sliding_window_pattern"


def sliding(keys: dict[str, KeyValue], window: SlidingWindow, layers: int = 6) -> str:
    index = index_of(TinyModel("gemma3", layers, keys=keys))
    flags = read_hyperparameters(index, window).sliding
    return "".join("s" if flag else "-" for flag in flags)


@pytest.mark.parametrize(
    ("keys", "window", "expected"),
    [
        ({}, SlidingWindow(3), "ss-ss-"),
        ({}, SlidingWindow(0), "ssssss"),
        ({}, SlidingWindow(1), "------"),
        ({PATTERN: 2}, SlidingWindow(3), "s-s-s-"),
        ({PATTERN: [True, False, False, True, True, False]}, SlidingWindow(3), "s--ss-"),
        ({PATTERN: [True, True]}, SlidingWindow(3), "ss----"),
        ({"attention.sliding_window": 0}, SlidingWindow(3, optional=True), "------"),
        ({"attention.sliding_window": 0}, SlidingWindow(3), "ss-ss-"),
    ],
)
def test_sliding_layers_follow_the_flags_else_the_period(
    keys: dict[str, KeyValue], window: SlidingWindow, expected: str
) -> None:
    assert sliding(keys, window) == expected


def test_blocks_for_multi_token_prediction_do_not_count_as_layers() -> None:
    index = index_of(TinyModel(layers=5, keys={"nextn_predict_layers": 2}, per_layer_arrays=True))
    sizes = read_hyperparameters(index, None)
    assert sizes.layers == 3
    assert len(sizes.heads) == len(sizes.feed_forward) == 3


def test_one_size_for_all_layers_and_one_entry_a_layer_mean_the_same() -> None:
    plain = read_hyperparameters(index_of(TinyModel("olmoe")), None)
    listed = read_hyperparameters(index_of(TinyModel("olmoe", per_layer_arrays=True)), None)
    assert plain == listed


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        ("block_count", 0, "1 to 512"),
        ("block_count", 513, "1 to 512"),
        ("block_count", "four", "should be an integer"),
        ("nextn_predict_layers", 4, "0 to 3"),
        ("embedding_length", 0, "is 0"),
        ("context_length", 0, "is 0"),
        ("attention.head_count", [4, 4, 4], "3 entries, but the model has 4 blocks"),
        ("attention.head_count_kv", [2, 2, -1, 2], "-1, which is no size"),
        ("feed_forward_length", [True, True, True, True], "True, which is no size"),
        ("expert_count", 1025, "0 to 1024"),
    ],
)
def test_a_size_that_cannot_be_is_refused_by_the_name_of_its_key(
    key: str, value: KeyValue, problem: str
) -> None:
    index = index_of(TinyModel(keys={key: value}))
    with pytest.raises(ModelFileError, match=problem) as caught:
        read_hyperparameters(index, None)
    assert caught.value.details["field"] == f"llama.{key}"


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("blk.0.attn_q.weight", 0),
        ("blk.61.ffn_up.weight", 61),
        ("output.weight", None),
        ("blk.x.attn_q.weight", None),
        ("blk.²", None),
        ("blk.00.attn_q.weight", None),
        ("blk..a", None),
        ("blk.7", None),
        ("blk.7.", None),
        ("blk", None),
        ("blkx.1.a", None),
    ],
)
def test_the_layer_of_a_tensor_is_read_off_its_name(name: str, layer: int | None) -> None:
    assert layer_of(name) == layer


def test_tensors_are_grouped_by_layer() -> None:
    groups = layer_tensors(index_of(), LayerRange(1, 3))
    assert sorted(groups) == [1, 2]
    assert all(name.startswith("blk.2.") for name in groups[2])
    assert len(groups[1]) == len(groups[2]) > 5
