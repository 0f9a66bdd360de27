"""The sizes a transformer's metadata state, layer by layer, with llama.cpp's defaults filled in.

The defaults are those of ``llama_model_base::load_hparams`` in llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from meshnet.domain.layers import LayerRange
from meshnet.model.gguf import GgufIndex

MAX_LAYERS: Final = 512
MAX_EXPERTS: Final = 1024

SLIDING_PATTERN: Final = "attention.sliding_window_pattern"
RECURRENT_LAYERS: Final = "attention.recurrent_layers"

Recurrence = Literal["", "no_kv_heads", "no_kv_heads_nor_width", "interval"]
"""How a model says which layers are recurrent: not at all; a layer has no key heads; it has no
feed-forward part either; ``attention.recurrent_layers``, else ``full_attention_interval``."""


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Which layers attend only to a window of recent tokens.

    A file can hold the flags themselves, or the period, in ``attention.sliding_window_pattern``;
    else ``period`` counts. One layer of each period is a full one (llama.cpp,
    ``set_swa_pattern``); period 0 makes all layers sliding, 1 none.
    """

    period: int = 0
    """0 for architectures whose files must hold the flags."""
    optional: bool = False
    """Whether a model that has 0 in ``attention.sliding_window`` has no such layer."""
    default: int = 0
    """The window where the key is absent."""
    full_first: bool = False
    """Whether a period's full layer is its first one rather than its last."""
    only_layers: int = 0
    """Layers that a model must have to have windows at all; 0 for any number."""
    attention_layers: bool = False
    """Whether just the layers that aren't recurrent slide, whatever the pattern."""


@dataclass(frozen=True, slots=True)
class Hyperparameters:
    """Sizes of a model. Tuples have one entry a layer of the trunk."""

    layers: int
    """Layers of the trunk: blocks for multi-token prediction behind it don't count."""
    embedding: int
    vocabulary: int
    context: int
    heads: tuple[int, ...]
    """0 where nothing is stated: a layer without attention."""
    kv_heads: tuple[int, ...]
    feed_forward: tuple[int, ...]
    key_size: int
    value_size: int
    rotary: int
    experts: int
    experts_used: tuple[int, ...]
    expert_feed_forward: tuple[int, ...]
    shared_feed_forward: int
    leading_dense: int
    """With experts: how many layers in front have a plain feed-forward part all the same."""
    sparse_step: int
    """With experts: of so many layers the last one has them. 1 where all have."""
    sliding: tuple[bool, ...]
    recurrent: tuple[bool, ...]
    own_indexer: tuple[bool, ...]
    """Layers that choose the positions to attend to, rather than taking a former layer's choice."""
    shared_kv: int
    """How many layers at the end read the cache of earlier ones."""

    def sparse(self, layer: int) -> bool:
        """Whether the layer's feed-forward part consists of experts."""
        return (
            self.experts > 0
            and layer >= self.leading_dense
            and (layer + 1) % max(self.sparse_step, 1) == 0
        )


def read_hyperparameters(
    index: GgufIndex, window: SlidingWindow | None, recurrence: Recurrence = ""
) -> Hyperparameters:
    """Read the sizes; ``window`` and ``recurrence`` are the architecture's rules about those.

    Raises :class:`~meshnet.domain.errors.ModelFileError`, naming the key, for one that is missing,
    of another type, or beyond what libllama can hold.
    """
    blocks = _between(index, "block_count", 1, MAX_LAYERS)
    trailing = _between(index, "nextn_predict_layers", 0, blocks - 1, 0)
    layers = blocks - trailing
    embedding = _between(index, "embedding_length", 1, 1 << 24)
    heads = _per_layer(index, "attention.head_count", layers, [0] * layers)
    kv_heads = _per_layer(index, "attention.head_count_kv", layers, heads)
    head_size = embedding // heads[0] if heads[0] else 0
    key_size = _between(index, "attention.key_length", 0, 1 << 16, head_size)
    feed_forward = _per_layer(index, "feed_forward_length", layers, [0] * layers)
    experts = _between(index, "expert_count", 0, MAX_EXPERTS, 0)
    used = _per_layer(index, "expert_used_count", layers, [0] * layers)
    expert_feed_forward = _per_layer(
        index,
        "expert_feed_forward_length",
        layers,
        [width // max(count, 1) for width, count in zip(feed_forward, used, strict=True)],
    )
    shared = index.integer(index.key("expert_shared_count"), 0) * expert_feed_forward[0]
    recurrent = _recurrent_layers(index, layers, recurrence, kv_heads, feed_forward)
    return Hyperparameters(
        layers=layers,
        embedding=embedding,
        vocabulary=_vocabulary(index),
        context=_between(index, "context_length", 1, (1 << 31) - 1),
        heads=heads,
        kv_heads=kv_heads,
        feed_forward=feed_forward,
        key_size=key_size,
        value_size=_between(index, "attention.value_length", 0, 1 << 16, head_size),
        rotary=_between(index, "rope.dimension_count", 0, 1 << 16, key_size),
        experts=experts,
        experts_used=used,
        expert_feed_forward=expert_feed_forward,
        shared_feed_forward=_between(
            index, "expert_shared_feed_forward_length", 0, 1 << 24, shared
        ),
        leading_dense=_between(index, "leading_dense_block_count", 0, MAX_LAYERS, 0),
        sparse_step=_between(index, "interleave_moe_layer_step", 0, MAX_LAYERS, 1),
        sliding=_sliding_layers(index, layers, window, recurrent),
        recurrent=recurrent,
        own_indexer=_flags(index, "attention.indexer.types", layers, default=True),
        shared_kv=_between(index, "attention.shared_kv_layers", 0, layers, 0),
    )


def layer_tensors(index: GgufIndex, layers: LayerRange) -> dict[int, list[str]]:
    """Names of the tensors of each layer in a range, as the file has them."""
    found: dict[int, list[str]] = {layer: [] for layer in range(layers.start, layers.end)}
    for name in index.tensors:
        layer = layer_of(name)
        if layer is not None and layer in found:
            found[layer].append(name)
    return found


def layer_of(name: str) -> int | None:
    """The layer a tensor's name (``blk.7.attn_q.weight``) belongs to, if any."""
    prefix, _, rest = name.partition(".")
    number, _, own = rest.partition(".")
    if prefix != "blk" or not own or not (number.isascii() and number.isdigit()):
        return None
    return int(number) if number == "0" or number[0] != "0" else None


def _vocabulary(index: GgufIndex) -> int:
    embeddings = index.tensors.get("token_embd.weight")
    if embeddings is None:
        raise index.error("token_embd.weight", "the tensor is missing")
    if len(embeddings.shape) != 2:
        raise index.error("token_embd.weight", f"its shape {embeddings.shape} isn't a matrix's")
    return embeddings.shape[1]


def window_of(index: GgufIndex, window: SlidingWindow | None) -> int:
    """Tokens that a sliding layer attends to; 0 where the model has no such layers."""
    if window is None:
        return 0
    if window.only_layers and index.integer(index.key("block_count")) != window.only_layers:
        return 0
    return _between(index, "attention.sliding_window", 0, 1 << 31, window.default)


def _sliding_layers(
    index: GgufIndex, layers: int, window: SlidingWindow | None, recurrent: Sequence[bool]
) -> tuple[bool, ...]:
    none = (False,) * layers
    tokens = window_of(index, window)
    if window is None or (tokens == 0 and (window.optional or window.only_layers)):
        return none
    if window.attention_layers:
        return tuple(not flag for flag in recurrent)
    key = index.key(SLIDING_PATTERN)
    if index.is_array(key):
        return _flags(index, SLIDING_PATTERN, layers, default=False)
    period = index.integer(key, window.period)
    if period == 0:
        return (True,) * layers
    full = 0 if window.full_first else period - 1
    return tuple(layer % period != full for layer in range(layers))


def _recurrent_layers(
    index: GgufIndex,
    layers: int,
    recurrence: Recurrence,
    kv_heads: Sequence[int],
    feed_forward: Sequence[int],
) -> tuple[bool, ...]:
    if recurrence == "no_kv_heads":
        return tuple(heads == 0 for heads in kv_heads)
    if recurrence == "no_kv_heads_nor_width":
        return tuple(
            heads == width == 0 for heads, width in zip(kv_heads, feed_forward, strict=True)
        )
    if recurrence == "interval":
        if index.is_array(index.key(RECURRENT_LAYERS)):
            return _flags(index, RECURRENT_LAYERS, layers, default=False)
        interval = _between(index, "full_attention_interval", 1, MAX_LAYERS, 4)
        return tuple((layer + 1) % interval != 0 for layer in range(layers))
    return (False,) * layers


def _flags(index: GgufIndex, name: str, layers: int, *, default: bool) -> tuple[bool, ...]:
    key = index.key(name)
    if not index.is_array(key):
        return (default,) * layers
    flags = [bool(flag) for flag in index.items(key)][:layers]
    return (*flags, *(False for _ in range(layers - len(flags))))


def _per_layer(
    index: GgufIndex, name: str, layers: int, default: Sequence[int] | None = None
) -> tuple[int, ...]:
    key = index.key(name)
    if not index.is_array(key):
        if key not in index.metadata and default is not None:
            return tuple(default)
        return (_between(index, name, 0, 1 << 24),) * layers
    blocks = index.integer(index.key("block_count"))
    values = index.items(key)
    if len(values) != blocks:
        raise index.error(key, f"has {len(values)} entries, but the model has {blocks} blocks")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= 1 << 24:
            raise index.error(key, f"holds {value!r}, which is no size")
    return tuple(int(value) for value in values[:layers])


def _between(index: GgufIndex, name: str, low: int, high: int, default: int | None = None) -> int:
    key = index.key(name)
    value = index.integer(key, default)
    if not low <= value <= high:
        raise index.error(key, f"is {value}; {low} to {high} are allowed")
    return value
