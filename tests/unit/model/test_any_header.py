"""Whatever a header says, a slice is planned and passes, or is refused with an error of ours."""

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import REFUSED, VERIFIED
from meshnet.model.check import check_index
from meshnet.model.description import describe, legal_cuts, nulls_by_cut
from meshnet.model.gguf import GgufIndex, TensorInfo
from meshnet.model.metadata import string
from meshnet.model.slice_plan import plan_slice
from tests.support.tiny_gguf import KeyValue, TinyModel, index_of

LAYERS = 6
DIGEST = Digest("sha256:" + "0" * 64)
KEYS = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.types",
    "attention.recurrent_layers",
    "attention.shared_kv_layers",
    "attention.sliding_window",
    "attention.sliding_window_pattern",
    "deepstack_mapping",
    "embedding_length_per_layer_input",
    "expert_count",
    "expert_gating_func",
    "expert_used_count",
    "feed_forward_length",
    "full_attention_interval",
    "interleave_moe_layer_step",
    "leading_dense_block_count",
    "nextn_predict_layers",
    "num_loops",
    "residual_scale",
    "rope.dimension_sections",
    "swiglu_clamp_exp",
)
NUMBERS = st.sampled_from((0, 1, 2, 3, 4, 6, 600))
VALUES: st.SearchStrategy[KeyValue] = st.one_of(
    NUMBERS,
    st.sampled_from((0.5, "text", True)),
    st.lists(NUMBERS, min_size=1, max_size=8),
    st.lists(NUMBERS, min_size=LAYERS, max_size=LAYERS),
    st.lists(st.booleans(), min_size=LAYERS, max_size=LAYERS),
)


def model(name: str, keys: dict[str, KeyValue]) -> GgufIndex:
    index = index_of(TinyModel(layers=LAYERS, keys=keys))
    metadata = {key.replace("llama.", f"{name}."): value for key, value in index.metadata.items()}
    return dataclasses.replace(index, metadata={**metadata, "general.architecture": string(name)})


@given(
    name=st.sampled_from((*VERIFIED, *REFUSED)),
    keys=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5),
    data=st.data(),
)
def test_any_header_gives_a_slice_that_passes_or_an_error_of_ours(
    name: str, keys: dict[str, KeyValue], data: st.DataObject
) -> None:
    index = model(name, keys)
    try:
        check_index(index)
        info = describe(index)
        nulls_by_cut(info, legal_cuts(info))
    except MeshnetError:
        return
    end = data.draw(st.integers(1, info.total_layers))
    start = data.draw(st.integers(0, end - 1))
    try:
        plan = plan_slice(index, LayerRange(start, end), DIGEST)
    except MeshnetError:
        return
    tensors = {t.name: TensorInfo(t.name, t.type, t.shape, 0, t.size) for t in plan.tensors}
    check_index(GgufIndex(index.parts, dict(plan.metadata), tensors))
