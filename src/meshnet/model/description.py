"""What a model is, in numbers, and where it may be cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gguf import GGMLQuantizationType

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import VERIFIED
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import Hyperparameters, layer_of, read_hyperparameters
from meshnet.model.rules import Architecture, unverified

OUTPUT: Final = "output.weight"
EMBEDDINGS: Final = "token_embd.weight"
SLICE_PREFIX: Final = "meshnet.slice."
"""Starts the keys by which a slice describes itself."""

_UNPROVEN_KEYS: Final = ("general.tensor_extra.name",)
_UNPROVEN_TENSORS: Final = ("output.scale", "output.input_scale")
_UNPROVEN_TYPES: Final = (GGMLQuantizationType.NVFP4,)


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model's sizes, in the units that plans are made of. Bytes are those of the file."""

    name: str
    architecture: str
    total_layers: int
    n_embd: int
    n_vocab: int
    context_length: int
    heads: int
    kv_heads: int
    key_size: int
    """Values of one head's key; ``value_size`` likewise."""
    value_size: int
    sliding_layers: tuple[bool, ...]
    sliding_window: int
    """Tokens a sliding layer attends to; 0 when no layer is one."""
    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    output_bytes: int
    """What the tail needs for its output matrix; with tied embeddings, those."""
    other_bytes: int
    """Tensors that every slice holds: norms, rotation factors."""
    tensor_bytes: int
    """All of the model's tensors."""
    tied_embeddings: bool
    has_chat_template: bool
    quantization: Mapping[str, int]
    """Bytes by type of tensor, the largest first."""
    verified: bool
    """Whether the architecture is in the table of proven ones."""
    obstacle: str
    """Why this model can't be cut without ``--allow-unverified``; empty when it can."""


def describe(index: GgufIndex) -> ModelInfo:
    """Read a model's sizes off its index.

    Raises :class:`~meshnet.domain.errors.ModelFileError`, naming the key, for a header that lacks
    a size or holds one that can't be, and :class:`ModelUnsupportedError` for a slice of a model.
    """
    if f"{SLICE_PREFIX}format" in index.metadata:
        raise ModelUnsupportedError(
            f"{index.path} is itself a slice; give the model that it was cut from"
        )
    rules = rules_of(index)
    sizes = read_hyperparameters(index, rules.sliding_window)
    by_layer = [0] * sizes.layers
    by_type: Counter[str] = Counter()
    outer: dict[str, int] = {}
    for tensor in index.tensors.values():
        by_type[tensor.type.name] += tensor.size
        layer = layer_of(tensor.name)
        if layer is None:
            outer[tensor.name] = tensor.size
        elif layer < sizes.layers:
            by_layer[layer] += tensor.size
    embeddings, output = outer.pop(EMBEDDINGS), outer.pop(OUTPUT, None)
    sliding = any(sizes.sliding)
    return ModelInfo(
        name=index.text("general.name", index.path.stem),
        architecture=index.architecture,
        total_layers=sizes.layers,
        n_embd=sizes.embedding,
        n_vocab=sizes.vocabulary,
        context_length=sizes.context,
        heads=max(sizes.heads),
        kv_heads=max(sizes.kv_heads),
        key_size=sizes.key_size,
        value_size=sizes.value_size,
        sliding_layers=sizes.sliding,
        sliding_window=index.integer(index.key("attention.sliding_window"), 0) if sliding else 0,
        layer_bytes=tuple(by_layer),
        embedding_bytes=embeddings,
        output_bytes=embeddings if output is None else output,
        other_bytes=sum(outer.values()),
        tensor_bytes=sum(by_type.values()),
        tied_embeddings=output is None,
        has_chat_template="tokenizer.chat_template" in index.metadata,
        quantization=dict(by_type.most_common()),
        verified=index.architecture in VERIFIED,
        obstacle=_obstacle(index, rules, sizes),
    )


def rules_of(index: GgufIndex) -> Architecture:
    """The architecture's entry of the table, or the general rules where it has none."""
    return VERIFIED.get(index.architecture) or unverified(index.architecture)


def legal_cuts(info: ModelInfo, *, allow_unverified: bool = False) -> tuple[int, ...]:
    """The layers before which the model may be cut, ascending; empty when it mustn't be."""
    if info.obstacle and not allow_unverified:
        return ()
    return tuple(range(1, info.total_layers))


def require_legal(
    info: ModelInfo, layers: LayerRange, *, allow_unverified: bool = False
) -> LayerRange:
    """Return ``layers`` if a shard may hold just them.

    Raises :class:`~meshnet.domain.errors.LayerRangeError` for a range out of bounds and
    :class:`ModelUnsupportedError` for a model or cut that isn't proven to give right answers.
    """
    layers.within(info.total_layers)
    if allow_unverified:
        return layers
    if not info.verified:
        raise ModelUnsupportedError(_advise(info, info.obstacle), architecture=info.architecture)
    counted = VERIFIED[info.architecture].counted_layers
    whole = len(layers) == info.total_layers
    if info.obstacle and not whole:
        raise ModelUnsupportedError(_advise(info, info.obstacle), architecture=info.architecture)
    if not whole and counted & {len(layers), len(layers) + 1}:
        problem = (
            f"a slice of {len(layers)} layers would be taken for another model; choose a "
            f"different number"
        )
        raise ModelUnsupportedError(_advise(info, problem), architecture=info.architecture)
    return layers


def _advise(info: ModelInfo, problem: str) -> str:
    return f"{info.name}: {problem}. Add --allow-unverified to try it; answers may be wrong"


def _obstacle(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> str:
    name = index.architecture
    if name not in VERIFIED:
        return f"architecture {name!r} isn't among those proven to give right answers when cut"
    if sizes.layers in rules.counted_layers:
        return (
            f"libllama recognises {name} with {sizes.layers} layers by their number and would "
            f"compute a slice differently"
        )
    for key in (*_UNPROVEN_KEYS, *map(index.key, rules.refused_keys)):
        if key in index.metadata:
            return f"models with {key} aren't proven to give right answers when cut"
    for tensor in index.tensors.values():
        if tensor.name in _UNPROVEN_TENSORS or tensor.type in _UNPROVEN_TYPES:
            return f"{tensor.name} ({tensor.type.name}) isn't proven to survive a cut"
    return ""
