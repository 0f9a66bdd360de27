import dataclasses

import pytest
from gguf import GGMLQuantizationType

from meshnet.domain.errors import LayerRangeError, ModelFileError, ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import REFUSED
from meshnet.model.description import describe, free_cuts, legal_cuts, nulls_of, require_legal
from meshnet.model.gguf import GgufIndex
from meshnet.model.metadata import string, uint32
from tests.support.tiny_gguf import TinyModel, index_of
from tests.support.tiny_tensors import TINY


def renamed(name: str) -> GgufIndex:
    """A model of another architecture, by its name alone."""
    index = index_of()
    metadata = {key.replace("llama.", f"{name}."): value for key, value in index.metadata.items()}
    metadata["general.architecture"] = string(name)
    return dataclasses.replace(index, metadata=metadata)


def with_key(index: GgufIndex, key: str) -> GgufIndex:
    return dataclasses.replace(index, metadata={**index.metadata, key: uint32(1)})


@pytest.mark.parametrize("name", TINY)
def test_bytes_of_layers_and_of_what_is_around_them_add_up(name: str) -> None:
    index = index_of(TinyModel(name))
    info = describe(index)
    output = 0 if info.tied_embeddings else info.output_bytes
    around = info.embedding_bytes + output + info.other_bytes
    assert sum(info.layer_bytes) + around == info.tensor_bytes
    assert info.tensor_bytes == sum(tensor.size for tensor in index.tensors.values())
    assert info.tensor_bytes == sum(info.quantization.values())


@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_whatever_they_take(tied: bool) -> None:
    full, packed = (
        describe(index_of(TinyModel(tied=tied, quantization=kind)))
        for kind in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0)
    )
    assert full.layer_weights == packed.layer_weights
    assert [4 * weights for weights in full.layer_weights] == list(full.layer_bytes)
    assert packed.layer_bytes < full.layer_bytes
    assert 4 * full.output_weights == full.output_bytes
    assert full.output_weights == packed.output_weights


def test_a_model_is_described_by_its_header() -> None:
    info = describe(index_of(TinyModel("gemma3", layers=7)))
    assert (info.architecture, info.total_layers, info.n_embd, info.context_length) == (
        "gemma3",
        7,
        64,
        256,
    )
    assert (info.heads, info.kv_heads, info.key_size, info.value_size) == (4, 2, 32, 32)
    assert info.sliding_layers == (True, True, True, True, True, False, True)
    assert info.sliding_window == 8
    assert info.has_chat_template
    assert info.verified
    assert not info.obstacle


def test_types_are_listed_by_their_bytes() -> None:
    info = describe(index_of(TinyModel(quantization=GGMLQuantizationType.Q8_0)))
    assert list(info.quantization) == ["Q8_0", "F32"]


def test_tied_embeddings_are_the_tails_output_too() -> None:
    info = describe(index_of(TinyModel(tied=True)))
    assert info.tied_embeddings
    assert info.output_bytes == info.embedding_bytes


def test_a_proven_model_may_be_cut_before_every_layer_but_the_first() -> None:
    assert legal_cuts(describe(index_of(TinyModel(layers=4)))) == (1, 2, 3)


def test_an_unproven_architecture_is_refused_with_the_way_to_try_it() -> None:
    info = describe(renamed("yeti"))
    assert not info.verified
    assert legal_cuts(info) == ()
    with pytest.raises(ModelUnsupportedError, match=r"'yeti'.*--allow-unverified"):
        require_legal(info, LayerRange(0, 4))
    assert legal_cuts(info, allow_unverified=True) == (1, 2, 3)
    require_legal(info, LayerRange(0, 2), allow_unverified=True)


@pytest.mark.parametrize("layers", [LayerRange(3, 5), LayerRange(4, 5)])
def test_a_range_out_of_bounds_is_refused_even_when_unverified_is_allowed(
    layers: LayerRange,
) -> None:
    with pytest.raises(LayerRangeError, match="4 layers"):
        require_legal(describe(index_of()), layers, allow_unverified=True)


@pytest.mark.parametrize("name", REFUSED)
def test_an_architecture_that_cannot_be_cut_is_refused_with_the_reason(name: str) -> None:
    info = describe(renamed(name))
    assert not info.verified
    assert REFUSED[name] in info.obstacle
    assert legal_cuts(info) == ()


def test_a_proven_model_is_served_whole_even_if_this_one_cannot_be_cut() -> None:
    info = describe(with_key(index_of(TinyModel("granite")), "granite.deepstack_mapping"))
    require_legal(info, LayerRange(0, 4))
    with pytest.raises(ModelUnsupportedError, match="deepstack_mapping"):
        require_legal(info, LayerRange(0, 3))


@pytest.mark.parametrize(
    ("model", "ends", "nulls"),
    [
        (TinyModel(), (1, 3), 0),
        (TinyModel("gemma3", layers=7), (5, 6), 0),
        (TinyModel("gemma3", layers=6), (5, 6), 1),
        (TinyModel("gemma3", layers=62), (30, 62), 30),
        (TinyModel("gemma3", layers=62), (0, 30), 0),
        (TinyModel("gemma3", layers=62), (0, 62), 0),
    ],
)
def test_only_layers_of_zeros_that_a_step_computes_are_counted(
    model: TinyModel, ends: tuple[int, int], nulls: int
) -> None:
    assert nulls_of(describe(index_of(model)), LayerRange(*ends)) == nulls


def test_free_cuts_are_those_that_cost_no_layers_of_zeros() -> None:
    info = describe(index_of(TinyModel("gemma3", layers=6)))
    assert free_cuts(info, (5, 4, 2)) == (4, 2)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        (TinyModel(), "general.tensor_extra.name"),
        (TinyModel("granite"), "granite.deepstack_mapping"),
    ],
)
def test_variants_that_need_more_at_a_cut_are_not_cut(model: TinyModel, key: str) -> None:
    info = describe(with_key(index_of(model), key))
    assert key in info.obstacle
    assert legal_cuts(info) == ()
    require_legal(info, LayerRange(0, 4))


def test_a_slice_is_not_taken_for_a_model() -> None:
    with pytest.raises(ModelUnsupportedError, match="itself a slice"):
        describe(with_key(index_of(), "meshnet.slice.format"))


def test_a_model_without_embeddings_is_refused_by_the_tensors_name() -> None:
    index = index_of()
    tensors = {name: t for name, t in index.tensors.items() if name != "token_embd.weight"}
    with pytest.raises(ModelFileError, match=r"token_embd\.weight"):
        describe(dataclasses.replace(index, tensors=tensors))
