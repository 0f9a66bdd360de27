import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.recipe import KV_TYPES
from meshnet.model.description import describe
from meshnet.model.memory import fitting_layers, layer_cache_bytes
from tests.support.tiny_gguf import TinyModel, index_of

INFO = describe(index_of(TinyModel(layers=4)))
TIED = describe(index_of(TinyModel(layers=4, tied=True)))


@pytest.mark.parametrize("kv_type", KV_TYPES)
def test_a_cache_takes_its_types_bytes_for_each_position(kv_type):
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[kv_type.upper()]]
    per_position = INFO.kv_heads * (INFO.key_size + INFO.value_size) * size / block
    assert layer_cache_bytes(INFO, 512, 2, kv_type, kv_type) == 1024 * per_position
    assert layer_cache_bytes(INFO, 1, 1, kv_type, kv_type) == 256 * per_position
    # libllama rounds each session's share as well: 3 x 100 makes 512, a third of which makes 256.
    assert layer_cache_bytes(INFO, 100, 3, kv_type, kv_type) == 768 * per_position


@pytest.mark.parametrize("info", [INFO, TIED])
@given(cache=st.integers(0, 10**6), memory=st.integers(0, 10**7))
def test_as_many_layers_fit_as_their_bytes_say(info, cache, memory):
    def needed(layers: int) -> int:
        whole = layers == info.total_layers and not info.tied_embeddings
        held: int = sum(info.layer_bytes[:layers]) + layers * cache
        own: int = info.embedding_bytes + (info.output_bytes if whole else 0)
        other: int = info.other_bytes
        return held + own + other

    fitting = fitting_layers(info, cache, memory)
    assert fitting == max((n for n in range(1, 5) if needed(n) <= memory), default=0)
