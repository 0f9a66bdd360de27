"""Whether a slice obeys its architecture's rules: what it would abort on, or be wrong with.

A slice comes from this project's own slicer, or from anybody: either may be at fault.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from gguf import GGUFValueType

from meshnet.domain.errors import LayerRangeError, ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.description import SLICE_PREFIX
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import (
    RECURRENT_LAYERS,
    SLIDING_PATTERN,
    Hyperparameters,
    layer_of,
)
from meshnet.model.rules import FACTOR, Architecture, any_cut, kinds_of
from meshnet.model.slice_metadata import EMBEDDING_SCALE, HEAD_COUNT
from meshnet.model.weights import WeightFiles

_START: Final = SLICE_PREFIX + "start"
_BEFORE: Final = SLICE_PREFIX + "nulls_before"
_AFTER: Final = SLICE_PREFIX + "nulls_after"
_TOTAL: Final = SLICE_PREFIX + "total_layers"
_VOCABULARY: Final = SLICE_PREFIX + "vocabulary"
_INPUT_SCALE: Final = SLICE_PREFIX + "input_scale"
_TAP: Final = SLICE_PREFIX + "tap"
_ALL_ROWS: Final = SLICE_PREFIX + "all_rows"
_LOOK: Final = 4096
"""Bytes of a tensor that are looked at: no real one has so many zeros."""


def check_slice(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    """Raise :class:`~meshnet.domain.errors.ModelFileError`, naming the key, unless it does."""
    layers = _range(index)
    before = index.integer(_BEFORE)
    _check_count(index, rules, sizes, layers, before)
    _check_place(index, rules, sizes, layers, before)
    _check_tap(index, rules, layers, before)
    _check_arrays(index, rules, sizes)
    _check_cuts(index, rules, sizes, layers, before)
    for key in map(index.key, rules.dropped_keys):
        if key in index.metadata:
            raise index.error(key, "has no place in a slice")
    for key, value in rules.rewrite(index, sizes, layers).items():
        raise index.error(index.key(key), f"is missing; it should be {value}")


def check_scale(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    """Raise unless the slice's input gets the one scale that its architecture asks for, if any."""
    head = _range(index).is_head()
    scales = rules.scaled_input == "root" and not head
    if not scales and _INPUT_SCALE in index.metadata:
        raise index.error(_INPUT_SCALE, "must be absent: libllama doesn't scale this slice's input")
    scaled = index.key(EMBEDDING_SCALE)
    if rules.scaled_input == "key" and not head and index.number(scaled, 0) != 1:
        raise index.error(scaled, "must be 1 in a slice that doesn't embed")
    if scales:
        scale = index.text(_INPUT_SCALE, "1")
        expected = repr(1 / math.sqrt(sizes.embedding))
        if scale != expected:
            raise index.error(_INPUT_SCALE, f"is {scale}, but should be {expected}")


def check_variant(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    """Raise :class:`ModelUnsupportedError` for a slice of a model that can't be cut."""
    problem = rules.variant(index, sizes)
    for key in map(index.key, rules.refused_keys):
        if key in index.metadata:
            problem = f"models with {key} aren't proven to give right answers when cut"
    if problem:
        raise ModelUnsupportedError(
            f"{index.path}: {problem}. Add --allow-unverified to try it",
            architecture=index.architecture,
        )


def check_zeros(index: GgufIndex, rules: Architecture) -> None:
    """Raise unless what must add nothing starts with zeros; reads the start of each such tensor."""
    layers, before = _range(index), index.integer(_BEFORE)
    real = range(before, before + len(layers))
    silent = () if layers.is_head() else tuple(rules.stands_in.values())
    with WeightFiles(index.parts) as weights:
        for tensor in index.tensors.values():
            layer = layer_of(tensor.name)
            if layer is None:
                zeros = tensor.name in rules.only_head and not layers.is_head()
            elif layer in real:
                zeros = tensor.name.split(".", 2)[2] in silent
            else:
                zeros = not tensor.name.endswith(FACTOR)
            start = replace(tensor, size=min(tensor.size, _LOOK))
            if zeros and any(any(chunk) for chunk in weights.read(start)):
                raise index.error(tensor.name, "must be zeros in this slice")


def _range(index: GgufIndex) -> LayerRange:
    try:
        layers = LayerRange(index.integer(_START), index.integer(SLICE_PREFIX + "end"))
        return layers.within(index.integer(_TOTAL))
    except LayerRangeError as error:
        raise index.error(_START, error.message) from error


def _check_count(
    index: GgufIndex,
    rules: Architecture,
    sizes: Hyperparameters,
    layers: LayerRange,
    before: int,
) -> None:
    after = index.integer(_AFTER)
    if before < 0 or after < 0 or before + len(layers) + after != sizes.layers:
        raise index.error(
            index.key("block_count"),
            f"is {sizes.layers}, but there are {before} layers of zeros, {len(layers)} of the "
            f"model and {after} of zeros",
        )
    model = rules.recognise(index.integer(_TOTAL), index.integer(_VOCABULARY))
    if rules.recognise(sizes.layers, sizes.vocabulary) != model:
        raise index.error(
            index.key("block_count"),
            f"libllama takes a model of {sizes.layers} layers for another one",
        )
    if rules.whole_vocabulary and sizes.vocabulary != index.integer(_VOCABULARY):
        raise index.error(_VOCABULARY, f"differs from the {sizes.vocabulary} tokens embedded")


def _check_place(
    index: GgufIndex,
    rules: Architecture,
    sizes: Hyperparameters,
    layers: LayerRange,
    before: int,
) -> None:
    period = rules.period(sizes)
    if (layers.start - before) % period:
        raise index.error(
            _BEFORE,
            f"is {before}; layers from {layers.start} on need {layers.start % period} in front, "
            f"since libllama looks at their index modulo {period}",
        )
    if rules.first is not None and rules.first not in kinds_of(sizes, 0):
        raise index.error(_BEFORE, f"the first layer isn't of the kind {rules.first!r}")


def _check_cuts(
    index: GgufIndex,
    rules: Architecture,
    sizes: Hyperparameters,
    layers: LayerRange,
    before: int,
) -> None:
    """Whether the slice holds all state that its layers share, and something to tap."""
    if not layers.is_head() and not rules.may_cut(sizes, before):
        raise index.error(_START, f"a cut before layer {layers.start} parts what belongs together")
    if layers.is_tail(index.integer(_TOTAL)):
        return
    if sizes.shared_kv and rules.may_cut is not any_cut:
        raise index.error(SLICE_PREFIX + "end", "layers that share a cache must be on the tail")
    for block in (before + len(layers) - 1, sizes.layers - 1):
        if rules.last is not None and rules.last not in kinds_of(sizes, block):
            raise index.error(_AFTER, f"layer {block} isn't of the kind {rules.last!r}")


def _check_tap(index: GgufIndex, rules: Architecture, layers: LayerRange, before: int) -> None:
    if layers.is_tail(index.integer(_TOTAL)):
        if _TAP in index.metadata:
            raise index.error(_TAP, "a tail has none")
        return
    last = before + len(layers) - 1
    behind = index.integer(_AFTER) > 0
    name = rules.tap if behind or not rules.last_tap else rules.last_tap
    expected = name.format(last=last, next=last + 1)
    if index.text(_TAP) != expected:
        raise index.error(_TAP, f"is {index.text(_TAP)!r}, but should be {expected!r}")
    flagged = index.metadata.get(_ALL_ROWS)
    if flagged is not None and flagged.kind is not GGUFValueType.BOOL:
        raise index.error(_ALL_ROWS, f"must be true or false, but is of type {flagged.kind.name}")
    if not behind and (flagged is None or flagged.scalar() is not True):
        raise index.error(_ALL_ROWS, "must be true where no layer follows")


def _check_arrays(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    if rules.heads_everywhere and 0 in sizes.heads:
        raise index.error(index.key(HEAD_COUNT), "must be the same in layers without attention")
    if any(sizes.sliding) and rules.window is not None and not rules.window.attention_layers:
        _require_flags(index, SLIDING_PATTERN, sizes.layers)
    if rules.recurrence == "interval":
        _require_flags(index, RECURRENT_LAYERS, sizes.layers)


def _require_flags(index: GgufIndex, name: str, layers: int) -> None:
    key = index.key(name)
    if not index.is_array(key) or index.metadata[key].count != layers:
        raise index.error(key, f"must hold a flag for each of the slice's {layers} layers")
