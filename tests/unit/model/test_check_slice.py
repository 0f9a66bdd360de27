import dataclasses

import pytest

from meshnet.domain.errors import ModelFileError, ModelUnsupportedError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import VERIFIED
from meshnet.model.check import check_index
from meshnet.model.gguf import GgufIndex, TensorInfo
from meshnet.model.metadata import MetadataValue, boolean, boolean_array, string, uint32
from meshnet.model.rules import Architecture
from meshnet.model.slice_plan import plan_slice
from tests.support.tiny_gguf import TINY, KeyValue, TinyModel, index_of

DIGEST = Digest("sha256:" + "0" * 64)
OWN = "meshnet.slice."


def slice_of(
    index: GgufIndex, start: int, end: int, *, allow_unverified: bool = False
) -> GgufIndex:
    """The index of a slice's file."""
    layers = LayerRange(start, end)
    plan = plan_slice(index, layers, DIGEST, allow_unverified=allow_unverified)
    tensors = {t.name: TensorInfo(t.name, t.type, t.shape, 0, t.size) for t in plan.tensors}
    return GgufIndex(index.parts, dict(plan.metadata), tensors)


def renamed(name: str, keys: dict[str, KeyValue], layers: int = 8) -> GgufIndex:
    """A model of any architecture, as far as the checks look."""
    index = index_of(TinyModel("llama", layers, keys=keys))
    metadata = {key.replace("llama.", f"{name}."): value for key, value in index.metadata.items()}
    tensors = dict(index.tensors)
    for layer in range(layers):
        for own in ("attn_qkv.weight", "attn_gate.weight"):
            named = f"blk.{layer}.{own}"
            tensors[named] = dataclasses.replace(tensors[f"blk.{layer}.attn_q.weight"], name=named)
    return dataclasses.replace(
        index, metadata={**metadata, "general.architecture": string(name)}, tensors=tensors
    )


def fault(index: GgufIndex, **changes: MetadataValue | None) -> str:
    """The key blamed once keys of the slice's own description are changed, or None removed."""
    own = {OWN + key: value for key, value in changes.items()}
    return blamed(index, own)


def blamed(index: GgufIndex, changes: dict[str, MetadataValue | None]) -> str:
    metadata = {**index.metadata, **changes}
    kept = {key: value for key, value in metadata.items() if value is not None}
    with pytest.raises(ModelFileError) as caught:
        check_index(dataclasses.replace(index, metadata=kept))
    return caught.value.details["field"]


@pytest.mark.parametrize("name", TINY)
@pytest.mark.parametrize("ends", [(0, 2), (1, 4), (3, 5)])
def test_slices_as_they_are_cut_pass(name: str, ends: tuple[int, int]) -> None:
    check_index(slice_of(index_of(TinyModel(name, 5)), *ends))


def test_what_a_slice_says_of_itself_must_agree_with_what_it_holds() -> None:
    index = slice_of(index_of(), 1, 3)
    assert fault(index, start=uint32(3)) == OWN + "start"
    assert fault(index, end=uint32(5)) == OWN + "start"
    assert fault(index, nulls_before=uint32(1)) == "llama.block_count"
    assert fault(index, nulls_after=uint32(1)) == "llama.block_count"
    assert fault(index, nulls_before=None) == OWN + "nulls_before"
    assert fault(index, tap=string("l_out-0")) == OWN + "tap"
    assert fault(index, tap=None) == OWN + "tap"
    assert fault(index, all_rows=boolean(False)) == OWN + "all_rows"


def test_a_flag_that_is_no_truth_value_is_refused() -> None:
    for start, end in ((0, 2), (1, 3)):
        index = slice_of(index_of(), start, end)
        for value in (boolean_array([True]), uint32(1), string("true")):
            assert fault(index, all_rows=value) == OWN + "all_rows"


def test_an_input_is_scaled_only_where_the_architecture_does() -> None:
    scale = string("0.125")
    assert fault(slice_of(index_of(), 1, 3), input_scale=scale) == OWN + "input_scale"
    gemma = renamed("gemma", {})
    assert fault(slice_of(gemma, 0, 3), input_scale=scale) == OWN + "input_scale"
    assert fault(slice_of(gemma, 1, 3), input_scale=None) == OWN + "input_scale"
    unproven = slice_of(renamed("yeti", {}), 1, 3, allow_unverified=True)
    check_index(unproven, allow_unverified=True)
    metadata = {**unproven.metadata, OWN + "input_scale": scale}
    with pytest.raises(ModelFileError, match="input_scale"):
        check_index(dataclasses.replace(unproven, metadata=metadata), allow_unverified=True)


def test_a_tail_taps_nothing() -> None:
    index = slice_of(index_of(), 2, 4)
    assert fault(index, tap=string("l_out-1")) == OWN + "tap"


def without(monkeypatch: pytest.MonkeyPatch, index: GgufIndex, **rules: object) -> GgufIndex:
    """A slice behind the head, cut as if the architecture had other rules."""
    name = index.architecture
    monkeypatch.setitem(VERIFIED, name, dataclasses.replace(VERIFIED[name], **rules))  # type: ignore[arg-type]
    made = slice_of(index, 5, 7)
    monkeypatch.undo()
    return made


OFF = Architecture("off")


@pytest.mark.parametrize(
    ("name", "keys", "rules", "key"),
    [
        ("smollm3", {}, {"period": OFF.period}, OWN + "nulls_before"),
        (
            "ernie4_5-moe",
            {
                "interleave_moe_layer_step": 2,
                "expert_count": 4,
                "expert_used_count": 2,
                "expert_feed_forward_length": 32,
            },
            {"period": OFF.period},
            OWN + "nulls_before",
        ),
        (
            "jamba",
            {"attention.head_count_kv": [2, 0, 2, 0, 2, 0, 0, 2]},
            {"needs": ()},
            "attention.head_count_kv",
        ),
        (
            "jamba",
            {
                "attention.head_count": [4, 0, 4, 0, 4, 0, 4, 4],
                "attention.head_count_kv": [2, 0, 2, 0, 2, 0, 2, 2],
            },
            {"heads_everywhere": False},
            "attention.head_count",
        ),
        (
            "qwen3next",
            {},
            {"recurrence": "", "needs": ()},
            "attention.head_count_kv",
        ),
        (
            "exaone-moe",
            {
                "attention.sliding_window": 8,
                "attention.sliding_window_pattern": [False] * 4 + [True] * 4,
            },
            {"window": None},
            "attention.sliding_window_pattern",
        ),
        ("minicpm", {}, {"scaled_input": ""}, "embedding_scale"),
        ("minicpm", {}, {"rewrite": OFF.rewrite}, "residual_scale"),
        ("gemma", {}, {"scaled_input": ""}, OWN + "input_scale"),
        ("qwen3vl", {"n_deepstack_layers": 2}, {"dropped_keys": ()}, "n_deepstack_layers"),
        (
            "step35",
            {"attention.sliding_window": 8, "attention.sliding_window_pattern": [True] * 8},
            {"tap": OFF.tap, "last_tap": ""},
            OWN + "tap",
        ),
        ("chameleon", {}, {"whole_vocabulary": False}, OWN + "vocabulary"),
        (
            "llama4",
            {
                "expert_count": 4,
                "expert_used_count": 2,
                "expert_feed_forward_length": 32,
                "interleave_moe_layer_step": 1,
            },
            {"recognise": OFF.recognise},
            "block_count",
        ),
        (
            "glm-dsa",
            {"attention.indexer.types": [1, 0, 1, 0, 1, 0, 1, 0]},
            {"may_cut": OFF.may_cut},
            OWN + "start",
        ),
        (
            "deci",
            {
                "attention.head_count": [4, 4, 4, 4, 4, 0, 4, 4],
                "attention.head_count_kv": [2, 2, 2, 2, 2, 0, 2, 2],
            },
            {"first": None},
            OWN + "nulls_before",
        ),
    ],
)
def test_a_slice_cut_without_a_rule_of_its_architecture_is_refused(
    name: str,
    keys: dict[str, KeyValue],
    rules: dict[str, object],
    key: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    index = renamed(name, keys)
    check_index(index)
    expected = key if key.startswith(OWN) else f"{name}.{key}"
    assert blamed(without(monkeypatch, index, **rules), {}) == expected


@pytest.mark.parametrize(
    ("name", "keys"), [("granite", {"deepstack_mapping": [0] * 8}), ("nanbeige", {"num_loops": 2})]
)
def test_a_slice_of_a_model_that_cannot_be_cut_is_refused_unless_asked_for(
    name: str, keys: dict[str, KeyValue]
) -> None:
    index = slice_of(renamed(name, keys), 2, 4, allow_unverified=True)
    with pytest.raises(ModelUnsupportedError, match="--allow-unverified"):
        check_index(index)
    check_index(index, allow_unverified=True)


def test_layers_that_share_a_cache_are_refused_off_the_tail() -> None:
    keys: dict[str, KeyValue] = {
        "attention.sliding_window": 8,
        "attention.sliding_window_pattern": [True, False] * 4,
        "attention.shared_kv_layers": 2,
    }
    tail = slice_of(renamed("gemma4", keys), 4, 8)
    assert tail.integer("gemma4.attention.shared_kv_layers") == 2
    check_index(tail)
    head = slice_of(renamed("gemma4", keys), 0, 4)
    assert head.integer("gemma4.attention.shared_kv_layers") == 0
    shared = {"gemma4.attention.shared_kv_layers": uint32(2)}
    assert blamed(head, {**shared}) == OWN + "end"


def test_each_layer_needs_a_flag_of_its_own() -> None:
    index = slice_of(index_of(TinyModel("gemma3", 6)), 1, 4)
    key = "gemma3.attention.sliding_window_pattern"
    assert blamed(index, {key: boolean_array([True])}) == key
    assert blamed(index, {key: uint32(6)}) == key
