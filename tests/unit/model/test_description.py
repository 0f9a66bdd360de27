import dataclasses

import pytest
from gguf import GGMLQuantizationType

from meshnet.domain.errors import LayerRangeError, ModelFileError, ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import VERIFIED
from meshnet.model.description import ModelInfo, describe, legal_cuts, require_legal
from meshnet.model.gguf import GgufIndex
from meshnet.model.metadata import string, uint32
from tests.support.tiny_gguf import TinyModel, index_of


def unknown_architecture() -> GgufIndex:
    index = index_of()
    metadata = {key.replace("llama.", "yeti."): value for key, value in index.metadata.items()} | {
        "general.architecture": string("yeti")
    }
    return dataclasses.replace(index, metadata=metadata)


def with_key(index: GgufIndex, key: str) -> GgufIndex:
    return dataclasses.replace(index, metadata={**index.metadata, key: uint32(1)})


@pytest.mark.parametrize("name", VERIFIED)
def test_bytes_of_layers_and_of_what_is_around_them_add_up(name: str) -> None:
    index = index_of(TinyModel(name))
    info = describe(index)
    output = 0 if info.tied_embeddings else info.output_bytes
    around = info.embedding_bytes + output + info.other_bytes
    assert sum(info.layer_bytes) + around == info.tensor_bytes
    assert info.tensor_bytes == sum(tensor.size for tensor in index.tensors.values())
    assert info.tensor_bytes == sum(info.quantization.values())


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
    info = describe(unknown_architecture())
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


def counted(layers: int) -> ModelInfo:
    return describe(index_of(TinyModel("gemma3", layers)))


def test_a_model_recognised_by_its_layer_count_is_served_only_whole() -> None:
    info = counted(62)
    assert legal_cuts(info) == ()
    require_legal(info, LayerRange(0, 62))
    with pytest.raises(ModelUnsupportedError, match="by their number"):
        require_legal(info, LayerRange(0, 61))


@pytest.mark.parametrize(("end", "legal"), [(60, True), (61, False), (62, False), (63, True)])
def test_no_slice_gets_a_layer_count_that_libllama_takes_for_another_model(
    end: int, legal: bool
) -> None:
    info = counted(66)
    if legal:
        require_legal(info, LayerRange(0, end))
    else:
        with pytest.raises(ModelUnsupportedError, match="another model"):
            require_legal(info, LayerRange(0, end))


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
