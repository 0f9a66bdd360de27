from collections.abc import Mapping
from itertools import pairwise

import pytest
from gguf import GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import LayerRangeError, ModelFileError, ModelUnsupportedError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import layer_of
from meshnet.model.metadata import Scalar
from meshnet.model.slice_plan import PlannedTensor, SlicePlan, plan_slice
from tests.support.tiny_gguf import VOCABULARY, TinyModel, index_of
from tests.support.tiny_tensors import TINY

DIGEST = Digest("sha256:" + "0" * 64)
TOKENIZER = "tokenizer.ggml.model"
EMBEDDINGS = "token_embd.weight"


def plan(model: TinyModel, start: int, end: int) -> SlicePlan:
    return plan_slice(index_of(model), LayerRange(start, end), DIGEST)


def tensors(made: SlicePlan) -> Mapping[str, PlannedTensor]:
    named = {tensor.name: tensor for tensor in made.tensors}
    assert len(named) == len(made.tensors)
    return named


def value(made: SlicePlan, key: str) -> Scalar:
    return dict(made.metadata)[key].scalar()


def items(made: SlicePlan, key: str) -> list[Scalar]:
    return dict(made.metadata)[key].items()


def blocks(made: SlicePlan) -> int:
    return int(value(made, f"{made.architecture}.block_count"))


def source_layers(index: GgufIndex, made: SlicePlan) -> list[int]:
    """For each block of the slice, the model's layer its tensors come from; -1 for a stub."""
    found: dict[int, set[int]] = {}
    for tensor in made.tensors:
        block = layer_of(tensor.name)
        if block is not None:
            source = -1 if tensor.source is None else layer_of(tensor.source.name)
            assert source is not None
            found.setdefault(block, set()).add(source)
    assert sorted(found) == list(range(blocks(made)))
    assert all(len(sources) == 1 for sources in found.values())
    return [sources.pop() for _, sources in sorted(found.items())]


@given(name=st.sampled_from(sorted(TINY)), data=st.data())
def test_a_chain_of_slices_holds_every_layer_once_and_in_order(
    name: str, data: st.DataObject
) -> None:
    index = index_of(TinyModel(name, layers=5))
    cuts = sorted(data.draw(st.sets(st.integers(1, 4), min_size=1)))
    edges = [0, *cuts, 5]
    held: list[int] = []
    for start, end in pairwise(edges):
        made = plan_slice(index, LayerRange(start, end), DIGEST)
        real = [layer for layer in source_layers(index, made) if layer >= 0]
        assert real == list(range(start, end))
        held += real
    assert held == list(range(5))


@given(name=st.sampled_from(["gemma3", "gpt-oss"]), data=st.data())
def test_a_slice_of_a_model_with_sliding_windows_always_has_a_sliding_layer(
    name: str, data: st.DataObject
) -> None:
    flags = data.draw(st.lists(st.booleans(), min_size=5, max_size=5).filter(any))
    index = index_of(TinyModel(name, layers=5, keys={"attention.sliding_window_pattern": flags}))
    start = data.draw(st.integers(0, 4))
    end = data.draw(st.integers(start + 1, 5).filter(lambda end: (start, end) != (0, 5)))
    made = plan_slice(index, LayerRange(start, end), DIGEST)
    pattern = items(made, f"{name}.attention.sliding_window_pattern")
    assert any(pattern)
    assert pattern[: end - start] == flags[start:end]
    assert len(pattern) == blocks(made)


def test_the_head_keeps_embeddings_and_tokenizer_and_gets_a_stub_instead_of_flagged_rows() -> None:
    made = plan(TinyModel(), 0, 2)
    named = tensors(made)
    assert source_layers(index_of(), made) == [0, 1, -1]
    assert named[EMBEDDINGS].source is not None
    assert "output.weight" not in named
    assert value(made, TOKENIZER) == "gpt2"
    assert (made.tap, made.all_rows) == ("l_out-1", False)


def test_the_middle_has_no_stub_no_tokenizer_and_almost_no_vocabulary() -> None:
    made = plan(TinyModel(), 1, 3)
    named = tensors(made)
    assert source_layers(index_of(), made) == [1, 2]
    assert named[EMBEDDINGS].source is None
    assert named[EMBEDDINGS].shape == (64, 32)
    assert value(made, "llama.vocab_size") == 32
    keys = [key for key, _ in made.metadata if key.startswith("tokenizer.")]
    assert keys == [TOKENIZER]
    assert value(made, TOKENIZER) == "none"
    assert (made.tap, made.all_rows) == ("l_out-1", True)


def test_the_tail_keeps_the_output_matrix_under_the_name_of_the_embeddings() -> None:
    made = plan(TinyModel(), 2, 4)
    named = tensors(made)
    source = named[EMBEDDINGS].source
    assert source is not None
    assert source.name == "output.weight"
    assert "output.weight" not in named
    assert value(made, TOKENIZER) == "gpt2"
    assert (made.tap, made.all_rows) == (None, False)


def test_the_tail_of_a_tied_model_keeps_the_embeddings() -> None:
    source = tensors(plan(TinyModel(tied=True), 2, 4))[EMBEDDINGS].source
    assert source is not None
    assert source.name == EMBEDDINGS


def test_where_embeddings_cannot_stand_in_for_the_output_zeros_do() -> None:
    model = TinyModel("phi2", quantization=GGMLQuantizationType.Q8_0)
    head, middle, tail = (tensors(plan(model, *ends)) for ends in ((0, 2), (2, 3), (3, 4)))
    assert head["output.weight"].source is None
    assert head["output.weight"].shape == head[EMBEDDINGS].shape
    assert head["output.bias"].source is None
    assert middle["output.weight"].shape == (64, 32)
    assert middle["output.bias"].shape == (32,)
    assert tail[EMBEDDINGS].source is None
    assert tail["output.weight"].source is not None
    assert tail["output.bias"].source is not None


def test_a_bias_of_the_output_is_zeros_but_on_the_tail() -> None:
    model = TinyModel("qwen2")
    assert tensors(plan(model, 0, 2))["output.bias"].zeros
    assert tensors(plan(model, 1, 3))["output.bias"].shape == (32,)
    assert tensors(plan(model, 2, 4))["output.bias"].source is not None


@pytest.mark.parametrize("ends", [(0, 2), (1, 3), (2, 4)])
def test_small_tensors_outside_the_layers_go_into_every_slice(ends: tuple[int, int]) -> None:
    named = tensors(plan(TinyModel(), *ends))
    assert named["output_norm.weight"].source is not None


def test_a_tail_of_full_layers_gets_a_sliding_layer_of_zeros_behind_them() -> None:
    model = TinyModel("gemma3", layers=6)
    made = plan(model, 5, 6)
    assert source_layers(index_of(model), made) == [5, -1]
    assert items(made, "gemma3.attention.sliding_window_pattern") == [False, True]
    assert made.tap is None


def test_a_middle_of_full_layers_gets_a_sliding_stub_and_then_needs_no_flagged_rows() -> None:
    made = plan(TinyModel("gemma3", layers=7), 5, 6)
    assert items(made, "gemma3.attention.sliding_window_pattern") == [False, True]
    assert (made.tap, made.all_rows) == ("l_out-0", False)


@pytest.mark.parametrize(
    ("embedding", "kind"),
    [
        (256, GGMLQuantizationType.IQ1_S),
        (128, GGMLQuantizationType.Q1_0),
        (96, GGMLQuantizationType.Q4_0),
    ],
)
def test_zeros_have_the_smallest_type_that_fills_a_row(
    embedding: int, kind: GGMLQuantizationType
) -> None:
    model = TinyModel(embedding=embedding, quantization=GGMLQuantizationType.Q8_0)
    named = tensors(plan(model, 0, 2))
    assert named["blk.2.attn_q.weight"].type is kind
    assert named["blk.2.attn_norm.weight"].type is GGMLQuantizationType.F32


def test_zeros_come_last_and_copies_in_the_models_order() -> None:
    made = plan(TinyModel(), 0, 2)
    kinds = [tensor.source is None for tensor in made.tensors]
    assert kinds == sorted(kinds)
    offsets = [t.source.offset for t in made.tensors if t.source is not None]
    assert offsets == sorted(offsets)


def test_sizes_given_by_layer_are_cut_with_the_layers() -> None:
    kv_heads = [1, 2, 4, 1, 2]
    model = TinyModel(layers=5, keys={"attention.head_count_kv": kv_heads})
    assert items(plan(model, 1, 3), "llama.attention.head_count_kv") == [2, 4]
    assert items(plan(model, 0, 3), "llama.attention.head_count_kv") == [1, 2, 4, 1]


def test_other_arrays_are_left_alone_however_long_they_are() -> None:
    model = TinyModel(layers=4, keys={"rope.dimension_sections": [1, 2, 3, 4]})
    assert items(plan(model, 1, 3), "llama.rope.dimension_sections") == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("ends", "dense"), [((0, 2), 3), ((1, 2), 1), ((2, 5), 1), ((3, 5), 0), ((0, 4), 3)]
)
def test_the_number_of_leading_dense_layers_shrinks_with_the_cut(
    ends: tuple[int, int], dense: int
) -> None:
    model = TinyModel("deepseek", layers=6, leading_dense=3)
    assert value(plan(model, *ends), "deepseek.leading_dense_block_count") == dense


def test_blocks_for_multi_token_prediction_are_left_out() -> None:
    model = TinyModel(layers=5, keys={"nextn_predict_layers": 1})
    made = plan(model, 2, 4)
    assert source_layers(index_of(model), made) == [2, 3]
    assert value(made, "llama.nextn_predict_layers") == 0
    assert made.total_layers == 4
    assert made.tap is None


def test_a_scale_of_the_embeddings_stays_with_the_head() -> None:
    model = TinyModel("granite")
    for ends, scale in (((0, 2), 3.0), ((1, 3), 1.0), ((2, 4), 1.0)):
        assert value(plan(model, *ends), "granite.embedding_scale") == scale


def test_a_slice_says_what_it_is() -> None:
    made = plan(TinyModel(), 1, 3)
    own = {
        key.removeprefix("meshnet.slice."): value.scalar()
        for key, value in made.metadata
        if key.startswith("meshnet.slice.")
    }
    assert own == {
        "format": 2,
        "start": 1,
        "end": 3,
        "total_layers": 4,
        "vocabulary": VOCABULARY,
        "nulls_before": 0,
        "nulls_after": 0,
        "architecture": "llama",
        "model_digest": DIGEST,
        "tap": "l_out-1",
        "all_rows": True,
    }


def test_values_that_no_cut_changes_are_copied_byte_for_byte() -> None:
    index = index_of()
    made = dict(plan(TinyModel(), 2, 4).metadata)
    changed = {key for key, value in index.metadata.items() if made.get(key) != value}
    assert changed == {"llama.block_count"}


@pytest.mark.parametrize("values", [[1.0, 2.0], ["a", "b", "c", "d"]])
def test_an_array_by_layer_that_has_no_entry_for_one_is_refused(values: list[float]) -> None:
    model = TinyModel(keys={"swiglu_clamp_exp": values})
    with pytest.raises(ModelFileError, match="swiglu_clamp_exp"):
        plan(model, 1, 3)


def test_all_layers_are_no_slice() -> None:
    with pytest.raises(LayerRangeError, match="the model itself"):
        plan(TinyModel(), 0, 4)


def test_a_range_out_of_bounds_is_refused() -> None:
    with pytest.raises(LayerRangeError, match="out of bounds"):
        plan(TinyModel(), 2, 5)


def test_a_model_that_must_not_be_cut_is_refused() -> None:
    model = TinyModel("granite", keys={"deepstack_mapping": [0, 1, 2, 3]})
    with pytest.raises(ModelUnsupportedError, match="allow-unverified"):
        plan(model, 0, 2)
