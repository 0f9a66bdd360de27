import dataclasses
import struct

import pytest
from gguf import GGMLQuantizationType, GGUFValueType

from meshnet.domain.errors import ModelFileError, ModelUnsupportedError
from meshnet.model.architectures import REFUSED, VERIFIED
from meshnet.model.check import check_index
from meshnet.model.gguf import GgufIndex
from meshnet.model.metadata import MetadataValue, encode_string, string
from tests.support.tiny_gguf import VOCABULARY, KeyValue, TinyModel, index_of
from tests.support.tiny_tensors import TINY

EVERY = pytest.mark.parametrize("name", TINY)


def without_key(index: GgufIndex, key: str) -> GgufIndex:
    kept = {name: value for name, value in index.metadata.items() if name != key}
    return dataclasses.replace(index, metadata=kept)


def with_key(index: GgufIndex, key: str, value: MetadataValue) -> GgufIndex:
    return dataclasses.replace(index, metadata={**index.metadata, key: value})


def with_tensor(index: GgufIndex, name: str, **changes: object) -> GgufIndex:
    changed = dataclasses.replace(index.tensors[name], **changes)  # type: ignore[arg-type]
    return dataclasses.replace(index, tensors={**index.tensors, name: changed})


def texts(items: list[str]) -> MetadataValue:
    raw = struct.pack("<IQ", GGUFValueType.STRING, len(items)) + b"".join(map(encode_string, items))
    return MetadataValue(GGUFValueType.ARRAY, raw, GGUFValueType.STRING, len(items))


def fault(index: GgufIndex) -> str:
    with pytest.raises(ModelFileError) as caught:
        check_index(index)
    assert caught.value.details["field"] in caught.value.message
    return caught.value.details["field"]


@EVERY
def test_a_sound_model_passes(name: str) -> None:
    check_index(index_of(TinyModel(name)))
    check_index(index_of(TinyModel(name, tied=VERIFIED[name].ties_output)))


@EVERY
def test_every_size_is_missed_by_the_name_of_its_key(name: str) -> None:
    index = index_of(TinyModel(name))
    sizes = ("block_count", "embedding_length", "context_length", "attention.head_count")
    for key in sizes:
        assert fault(without_key(index, index.key(key))) == index.key(key)


@pytest.mark.parametrize(
    ("architecture", "key", "value", "blamed"),
    [
        ("llama", "attention.head_count", 0, "attention.head_count"),
        ("llama", "attention.head_count_kv", 0, "attention.head_count_kv"),
        ("llama", "attention.head_count_kv", 3, "attention.head_count_kv"),
        ("llama", "attention.value_length", 8, "attention.value_length"),
        ("llama", "attention.key_length", 0, "attention.value_length"),
        ("llama", "rope.dimension_count", 8, "rope.dimension_count"),
        ("phi2", "rope.dimension_count", 7, "rope.dimension_count"),
        ("phi2", "rope.dimension_count", 0, "rope.dimension_count"),
        ("phi2", "rope.dimension_count", 18, "rope.dimension_count"),
        ("llama", "rope.scaling.type", "bogus", "rope.scaling.type"),
        ("llama", "attention.layer_norm_rms_epsilon", -1.0, "attention.layer_norm_rms_epsilon"),
        (
            "llama",
            "attention.layer_norm_rms_epsilon",
            float("nan"),
            "attention.layer_norm_rms_epsilon",
        ),
        ("llama", "expert_used_count", 1, "expert_used_count"),
        ("olmoe", "expert_used_count", 5, "expert_used_count"),
        ("olmoe", "expert_used_count", 0, "expert_used_count"),
        ("olmoe", "expert_group_count", 4, "expert_group_count"),
        ("olmoe", "expert_group_count", 3, "expert_group_used_count"),
        ("olmoe", "expert_group_count", 2, "expert_group_used_count"),
        ("gemma3", "attention.sliding_window_pattern", 1, "attention.sliding_window_pattern"),
        ("gemma3", "attention.key_length_swa", 16, "attention.key_length_swa"),
        ("gemma3", "rope.dimension_count_swa", 5, "rope.dimension_count_swa"),
        ("gpt-oss", "attention.sliding_window", 0, "attention.sliding_window"),
    ],
)
def test_what_libllama_would_abort_on_is_found_by_the_name_of_its_key(
    architecture: str, key: str, value: KeyValue, blamed: str
) -> None:
    index = index_of(TinyModel(architecture, keys={key: value}))
    assert fault(index) == f"{architecture}.{blamed}"


def test_heads_that_do_not_divide_the_embedding_are_refused_where_no_size_is_stated() -> None:
    index = index_of(TinyModel(keys={"attention.head_count": 6, "attention.head_count_kv": 6}))
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        index = without_key(index, index.key(key))
    assert fault(index) == "llama.attention.head_count"


@pytest.mark.parametrize(
    ("present", "missed"),
    [
        ((), "blk.0.attn_qkv.weight"),
        (("attn_qkv.weight",), "blk.0.attn_gate.weight"),
        (("attn_qkv.weight", "attn_gate.weight"), ""),
        (("ssm_in.weight",), ""),
    ],
)
def test_tensors_without_which_libllama_would_die_are_missed_by_name(
    present: tuple[str, ...], missed: str
) -> None:
    index = index_of()
    metadata = {k.replace("llama.", "qwen3next."): v for k, v in index.metadata.items()}
    metadata["general.architecture"] = string("qwen3next")
    tensors = dict(index.tensors)
    for name in (f"blk.{layer}.{own}" for layer in range(3) for own in present):
        tensors[name] = dataclasses.replace(tensors["blk.0.attn_q.weight"], name=name)
    named = dataclasses.replace(index, metadata=metadata, tensors=tensors)
    if missed:
        assert fault(named) == missed
    else:
        check_index(named)


def test_vectors_must_be_float32() -> None:
    index = with_tensor(index_of(), "blk.2.attn_norm.weight", type=GGMLQuantizationType.F16)
    assert fault(index) == "blk.2.attn_norm.weight"


def test_integers_are_no_weights() -> None:
    index = with_tensor(index_of(), "blk.2.attn_q.weight", type=GGMLQuantizationType.I32)
    assert fault(index) == "blk.2.attn_q.weight"


def test_blocks_that_libllama_leaves_out_may_hold_anything() -> None:
    index = index_of(TinyModel(layers=3, keys={"nextn_predict_layers": 1}))
    check_index(with_tensor(index, "blk.2.attn_norm.weight", type=GGMLQuantizationType.F16))


@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param(["a"] * VOCABULARY, id="repeated"),
        pytest.param([f"t{i}" for i in range(VOCABULARY - 1)], id="too few"),
        pytest.param(["[EMPTY_1]", "", *(f"t{i}" for i in range(VOCABULARY - 2))], id="empty"),
    ],
)
def test_a_vocabulary_that_libllama_would_abort_on_is_refused(tokens: list[str]) -> None:
    key = "tokenizer.ggml.tokens"
    assert fault(with_key(index_of(), key, texts(tokens))) == key


def test_one_token_may_be_empty() -> None:
    tokens = ["", *(f"t{i}" for i in range(VOCABULARY - 1))]
    check_index(with_key(index_of(), "tokenizer.ggml.tokens", texts(tokens)))


@pytest.mark.parametrize("key", ["tokenizer.ggml.tokens", "tokenizer.ggml.model"])
def test_a_model_without_a_tokenizer_is_refused(key: str) -> None:
    assert fault(without_key(index_of(), key)) == key


def test_a_vocabulary_of_which_libllama_asserts_a_line_break_is_refused() -> None:
    key = "tokenizer.ggml.model"
    assert fault(with_key(index_of(), key, string("rwkv"))) == key


def test_types_of_tokens_must_cover_the_vocabulary() -> None:
    key = "tokenizer.ggml.token_type"
    short = index_of().metadata[key].pick(range(10))
    assert fault(with_key(index_of(), key, short)) == key


def test_a_nameless_vocabulary_must_be_as_large_as_the_embeddings() -> None:
    index = with_key(index_of(), "tokenizer.ggml.model", string("none"))
    check_index(index)
    other = index_of(TinyModel(keys={"vocab_size": VOCABULARY + 1}))
    assert fault(with_key(other, "tokenizer.ggml.model", string("none"))) == "llama.vocab_size"


@pytest.mark.parametrize(("name", "why"), [("yeti", "'yeti'"), ("bloom", REFUSED["bloom"])])
def test_an_architecture_outside_the_table_is_refused_unless_asked_for(name: str, why: str) -> None:
    index = index_of()
    metadata = {k.replace("llama.", f"{name}."): v for k, v in index.metadata.items()}
    metadata["general.architecture"] = string(name)
    unknown = dataclasses.replace(index, metadata=metadata)
    with pytest.raises(ModelUnsupportedError, match=f"{why}.*--allow-unverified"):
        check_index(unknown)
    check_index(unknown, allow_unverified=True)
