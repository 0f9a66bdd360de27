"""What a model is, in numbers, and where it may be cut."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gguf import GGMLQuantizationType

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import REFUSED, VERIFIED
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import (
    Hyperparameters,
    layer_of,
    read_hyperparameters,
    window_of,
)
from meshnet.model.layout import Structure, lay_out, nulls_computed
from meshnet.model.rules import Architecture, Kind, kinds_of, unverified

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
    layer_weights: tuple[int, ...]
    """Numbers in each layer's tensors: what many rows at once take time by, rather than bytes."""
    output_weights: int
    """Likewise in the output matrix."""
    other_bytes: int
    """Tensors that every slice holds: norms, rotation factors."""
    tensor_bytes: int
    """All of the model's tensors."""
    tied_embeddings: bool
    has_chat_template: bool
    quantization: Mapping[str, int]
    """Bytes by type of tensor, the largest first."""
    layer_kinds: tuple[tuple[Kind, ...], ...]
    """What each layer is, as far as cuts go."""
    period: int
    """How often a layer's index repeats its meaning: cuts at its multiples cost no nulls."""
    joints: tuple[int, ...]
    """The layers before which a cut leaves all that it needs on its side."""
    verified: bool
    """Whether the architecture is in the table of proven ones."""
    obstacle: str
    """Why this model can't be cut without ``--allow-unverified``; empty when it can."""


def describe(index: GgufIndex) -> ModelInfo:
    """Read a model's sizes off its index.

    Raises :class:`~meshnet.domain.errors.ModelFileError`, naming the key, for a header that lacks
    a size or holds one that can't be, and :class:`ModelUnsupportedError` for a slice of a model.
    """
    if is_slice(index):
        raise ModelUnsupportedError(
            f"{index.path} is itself a slice; give the model that it was cut from"
        )
    rules, sizes = rules_of(index), sizes_of(index)
    structure = structure_of(index, rules, sizes)
    by_layer, weights = [0] * sizes.layers, [0] * sizes.layers
    by_type: Counter[str] = Counter()
    outer: dict[str, int] = {}
    for tensor in index.tensors.values():
        by_type[tensor.type.name] += tensor.size
        layer = layer_of(tensor.name)
        if layer is None:
            outer[tensor.name] = tensor.size
        elif layer < sizes.layers:
            by_layer[layer] += tensor.size
            weights[layer] += math.prod(tensor.shape)
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
        sliding_window=window_of(index, rules.window) if sliding else 0,
        layer_bytes=tuple(by_layer),
        embedding_bytes=embeddings,
        output_bytes=embeddings if output is None else output,
        layer_weights=tuple(weights),
        output_weights=math.prod(index.tensors[EMBEDDINGS if output is None else OUTPUT].shape),
        other_bytes=sum(outer.values()),
        tensor_bytes=sum(by_type.values()),
        tied_embeddings=output is None,
        has_chat_template="tokenizer.chat_template" in index.metadata,
        quantization=dict(by_type.most_common()),
        layer_kinds=structure.kinds,
        period=structure.period,
        joints=tuple(_joints(rules, sizes, structure)),
        verified=index.architecture in VERIFIED,
        obstacle=obstacle_of(index, rules, sizes),
    )


def is_slice(index: GgufIndex) -> bool:
    """Whether the file is a slice of a model."""
    return f"{SLICE_PREFIX}format" in index.metadata


def rules_of(index: GgufIndex) -> Architecture:
    """The architecture's entry of the table, or the general rules where it has none."""
    return _rules_named(index.architecture)


def sizes_of(index: GgufIndex) -> Hyperparameters:
    """The model's sizes, read by its architecture's rules; for errors see :func:`describe`."""
    rules = rules_of(index)
    return read_hyperparameters(index, rules.window, rules.recurrence)


def structure_of(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> Structure:
    """What the model's layers are, as far as cuts go."""
    kinds = tuple(kinds_of(sizes, layer) for layer in range(sizes.layers))
    return Structure(kinds, rules.period(sizes), sizes.vocabulary)


def legal_cuts(info: ModelInfo, *, allow_unverified: bool = False) -> tuple[int, ...]:
    """The layers before which the model may be cut, ascending; empty when it mustn't be."""
    if info.obstacle and not allow_unverified:
        return ()
    return info.joints


def nulls_of(info: ModelInfo, layers: LayerRange) -> int:
    """How many layers of zeros a step of a shard of ``layers`` computes besides its own.

    Each costs the time and the cache of a layer, so plans prefer :func:`free_cuts`. Raises
    :class:`ModelUnsupportedError` where no slice of just these layers would do.
    """
    if len(layers) == info.total_layers:
        return 0
    structure = Structure(info.layer_kinds, info.period, info.n_vocab)
    layout = lay_out(_rules_named(info.architecture), structure, layers)
    return nulls_computed(layout, info.total_layers)


def nulls_by_cut(info: ModelInfo, cuts: Iterable[int]) -> dict[int, int]:
    """How many layers of zeros a step computes if the model is cut in two before each of them.

    Raises as :func:`nulls_of` does.
    """
    return {
        cut: nulls_of(info, LayerRange(0, cut)) + nulls_of(info, LayerRange(cut, info.total_layers))
        for cut in cuts
    }


def free_cuts(info: ModelInfo, cuts: Iterable[int]) -> tuple[int, ...]:
    """Those of ``cuts`` on whose sides a step computes no layers of zeros, in the same order."""
    return tuple(cut for cut in cuts if _is_free(info, cut))


def _is_free(info: ModelInfo, cut: int) -> bool:
    try:
        return not nulls_by_cut(info, (cut,))[cut]
    except ModelUnsupportedError:
        # No slice ends here; who cuts here nevertheless is told so by require_legal.
        return False


def require_legal(
    info: ModelInfo, layers: LayerRange, *, allow_unverified: bool = False
) -> LayerRange:
    """Return ``layers`` if a shard may hold just them.

    Raises :class:`~meshnet.domain.errors.LayerRangeError` for a range out of bounds and
    :class:`ModelUnsupportedError` for a model or cut that isn't proven to give right answers.
    """
    layers.within(info.total_layers)
    whole = len(layers) == info.total_layers
    if not (info.verified and whole):
        require_cuttable(info, allow_unverified=allow_unverified)
    for cut in (layers.start, layers.end):
        if 0 < cut < info.total_layers and cut not in info.joints:
            raise ModelUnsupportedError(
                f"{info.name}: the layers on both sides of a cut before layer {cut} share state "
                f"that doesn't cross it; cut it elsewhere",
                architecture=info.architecture,
            )
    nulls_of(info, layers)
    return layers


def require_cuttable(info: ModelInfo, *, allow_unverified: bool = False) -> None:
    """Raise :class:`ModelUnsupportedError` for a model that isn't proven right when it is cut."""
    if info.obstacle and not allow_unverified:
        raise ModelUnsupportedError(_advise(info, info.obstacle), architecture=info.architecture)


def _joints(rules: Architecture, sizes: Hyperparameters, structure: Structure) -> Iterator[int]:
    for cut in range(1, sizes.layers):
        tapped = rules.last is None or rules.last in structure.kinds[cut - 1]
        if tapped and rules.may_cut(sizes, cut):
            yield cut


def _rules_named(name: str) -> Architecture:
    return VERIFIED.get(name) or unverified(name)


def _advise(info: ModelInfo, problem: str) -> str:
    return f"{info.name}: {problem}. Add --allow-unverified to try it; answers may be wrong"


def obstacle_of(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> str:
    """Why the model can't be cut; empty when it can."""
    name = index.architecture
    if name in REFUSED:
        return f"{name} can't be cut: {REFUSED[name]}"
    if name not in VERIFIED:
        return f"architecture {name!r} isn't among those proven to give right answers when cut"
    variant = rules.variant(index, sizes)
    if variant:
        return f"this {name} model can't be cut: {variant}"
    for key in (*_UNPROVEN_KEYS, *map(index.key, rules.refused_keys)):
        if key in index.metadata:
            return f"models with {key} aren't proven to give right answers when cut"
    for tensor in index.tensors.values():
        if tensor.name in _UNPROVEN_TENSORS or tensor.type in _UNPROVEN_TYPES:
            return f"{tensor.name} ({tensor.type.name}) isn't proven to survive a cut"
    return ""
