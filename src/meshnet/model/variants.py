"""What the table of architectures says by a function: periods, counts, keys and obstacles.

Each follows the code of llama.cpp's ``src/models/<name>.cpp`` that it names or is named after.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from meshnet.domain.layers import LayerRange
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import Hyperparameters
from meshnet.model.metadata import MetadataValue, float32, uint32, uint32_array
from meshnet.model.rules import Recognise

_SECTIONS = "rope.dimension_sections"
_SOFTMAX, _SIGMOID = 1, 2
_GLM_LITE_VOCABULARY = 154880
_LITE_VOCABULARY = 128256
_LONG_CONTEXT = 1 << 20


def by_count(*counts: int) -> Recognise:
    """Models of just these numbers of layers are each something of their own."""
    return lambda layers, _: counts.index(layers) + 1 if layers in counts else 0


def at_least(least: int) -> Recognise:
    """Models of so many layers or more are something of their own."""
    return lambda layers, _: int(layers >= least)


def deepseek2_lite(layers: int, vocabulary: int) -> int:
    """The lite models have no low-rank queries."""
    return int(layers in {26, 27} or (layers == 48 and vocabulary == _LITE_VOCABULARY))


def four(_sizes: Hyperparameters) -> int:
    """Every fourth layer isn't rotated."""
    return 4


def four_with_windows(sizes: Hyperparameters) -> int:
    """Every fourth layer isn't rotated, if any slides."""
    return 4 if any(sizes.sliding) else 1


def expert_step(sizes: Hyperparameters) -> int:
    """Every so many layers one has experts."""
    return max(sizes.sparse_step, 1)


def four_and_expert_step(sizes: Hyperparameters) -> int:
    """Both at once."""
    return math.lcm(4, expert_step(sizes))


def own_indexer(sizes: Hyperparameters, layer: int) -> bool:
    """A layer without an indexer takes the choice that the one before it made."""
    return sizes.own_indexer[layer]


def before_shared_cache(sizes: Hyperparameters, layer: int) -> bool:
    """Layers at the end read the caches of the last sliding and the last full one before them."""
    return not sizes.shared_kv or layer <= sizes.layers - sizes.shared_kv - 2


def residual_scale(
    index: GgufIndex, sizes: Hyperparameters, _layers: LayerRange
) -> Mapping[str, MetadataValue]:
    """minicpm's scale, which libllama derives from the number of layers where it isn't stated."""
    if index.key("residual_scale") in index.metadata:
        return {}
    return {"residual_scale": float32(np.float32(1.4) / np.sqrt(np.float32(sizes.layers)))}


def rope_sections(
    index: GgufIndex, sizes: Hyperparameters, layers: LayerRange
) -> Mapping[str, MetadataValue]:
    """glm4moe takes rows in place of tokens only with sections, which change nothing for text."""
    if layers.is_head() or has_sections(index):
        return {}
    quarter = sizes.rotary // 4
    return {_SECTIONS: uint32_array([quarter, quarter, 0, 0])}


def gating(
    index: GgufIndex, sizes: Hyperparameters, _layers: LayerRange
) -> Mapping[str, MetadataValue]:
    """deepseek2's gate, which libllama takes from the numbers of layers and tokens if it must."""
    if index.key("expert_gating_func") in index.metadata:
        return {}
    lite = sizes.layers in {47, 48} and sizes.vocabulary == _GLM_LITE_VOCABULARY
    return {"expert_gating_func": uint32(_SIGMOID if lite else _SOFTMAX)}


def has_sections(index: GgufIndex) -> bool:
    """Whether positions are rotated by sections (llama.cpp, ``use_mrope``)."""
    key = index.key(_SECTIONS)
    sections = index.items(key) if index.is_array(key) else []
    return len(sections) > 1 and all(isinstance(part, int) and part > 0 for part in sections[:2])


def without_sections(index: GgufIndex, _sizes: Hyperparameters) -> str:
    """glm4 can't be given sections: it would rotate other pairs of values."""
    if has_sections(index):
        return ""
    return f"without {index.key(_SECTIONS)} libllama takes no rows in place of tokens"


def uneven_root(_index: GgufIndex, sizes: Hyperparameters) -> str:
    """Dividing by the root and multiplying again gives the same bits only for powers of two."""
    root = math.isqrt(sizes.embedding)
    if root * root == sizes.embedding and root & (root - 1) == 0:
        return ""
    return (
        f"libllama multiplies what comes from a neighbour by the root of {sizes.embedding}, which "
        f"is no power of two, so the last bits of the answer would change"
    )


def per_layer_inputs(index: GgufIndex, _sizes: Hyperparameters) -> str:
    """gemma4's smaller models embed each token again for every layer."""
    if index.integer(index.key("embedding_length_per_layer_input"), 0) == 0:
        return ""
    return "all its layers take token ids, which don't cross a cut"


def scaled_weights(index: GgufIndex, _sizes: Hyperparameters) -> str:
    """cogvlm's weights for images, which stand in for those for text, have no scales."""
    scales = [name for name in index.tensors if name.endswith("attn_output.scale")]
    return f"libllama doesn't apply {scales[0]} to rows in place of tokens" if scales else ""


def loops(index: GgufIndex, _sizes: Hyperparameters) -> str:
    """nanbeige can run through its layers several times."""
    if index.integer(index.key("num_loops"), 1) == 1:
        return ""
    return "each token goes through its layers more than once"


def no_window(index: GgufIndex, sizes: Hyperparameters) -> str:
    """llama4 without windows leaves the rotation of its last layer out, found by counting."""
    return "" if any(sizes.sliding) else f"{index.key('attention.sliding_window')} is 0"


def unlisted_indexers(index: GgufIndex, sizes: Hyperparameters) -> str:
    """glm-dsa with a long context has a list of indexers built into libllama."""
    key = index.key("attention.indexer.types")
    if index.is_array(key) or sizes.context < _LONG_CONTEXT:
        return ""
    return f"{key} is missing, and libllama's own list is by layer"
