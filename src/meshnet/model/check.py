"""Checks made before libllama sees a file, since its assertions end the whole process.

They mirror what llama.cpp asserts while it loads a model and computes its first step
(``load_hparams``, ``llama_vocab::impl::load``, the graphs of ``src/models``, ggml's shape rules),
for the architectures of the table. For others only the general ones apply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.architectures import VERIFIED
from meshnet.model.description import rules_of
from meshnet.model.gguf import GgufIndex, TensorInfo, read_index
from meshnet.model.hyperparameters import (
    SLIDING_PATTERN,
    Hyperparameters,
    layer_of,
    layer_tensors,
    read_hyperparameters,
)
from meshnet.model.rules import Architecture, TensorRule

_ROTATION_SCALINGS: Final = ("none", "linear", "yarn", "longrope")
_NO_WEIGHTS: Final = (Type.I8, Type.I16, Type.I32, Type.I64, Type.F64, Type.Q8_1, Type.Q8_K)


def check_loadable(path: Path, *, allow_unverified: bool = False) -> None:
    """Check a model or a slice; see :func:`check_index`."""
    check_index(read_index(path), allow_unverified=allow_unverified)


def check_index(index: GgufIndex, *, allow_unverified: bool = False) -> None:
    """Raise unless libllama can load the file and compute with it.

    Raises :class:`~meshnet.domain.errors.ModelFileError` naming the key or tensor at fault, and
    :class:`ModelUnsupportedError` for an architecture outside the table.
    """
    if index.architecture not in VERIFIED and not allow_unverified:
        raise ModelUnsupportedError(
            f"{index.path}: architecture {index.architecture!r} isn't among the verified ones. Add "
            f"--allow-unverified to try it",
            architecture=index.architecture,
        )
    rules = rules_of(index)
    sizes = read_hyperparameters(index, rules.sliding_window)
    _check_keys(index, rules)
    _check_experts(index, sizes)
    if rules.layer:
        _check_attention(index, rules, sizes)
        _check_sliding_sizes(index, sizes)
        _check_window(index, rules, sizes)
        _check_tensors(index, rules, sizes)
    _check_types(index, sizes)
    _check_vocabulary(index, sizes)


def _check_keys(index: GgufIndex, rules: Architecture) -> None:
    for name in rules.required_keys:
        if index.key(name) not in index.metadata:
            raise index.error(index.key(name), "is missing")
    if rules.epsilon:
        epsilon = index.number(index.key(rules.epsilon))
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise index.error(index.key(rules.epsilon), f"is {epsilon}, which is no epsilon")
    key = index.key("rope.scaling.type")
    scaling = index.text(key, "none")
    if scaling not in _ROTATION_SCALINGS:
        raise index.error(key, f"{scaling!r} is none of {', '.join(_ROTATION_SCALINGS)}")


def _check_experts(index: GgufIndex, sizes: Hyperparameters) -> None:
    used, groups = max(sizes.experts_used), index.integer(index.key("expert_group_count"), 0)
    if used > sizes.experts or (sizes.experts > 0) != (used > 0):
        raise index.error(
            index.key("expert_used_count"), f"is {used}, but there are {sizes.experts} experts"
        )
    if groups < 0 or (groups and groups >= sizes.experts):
        raise index.error(
            index.key("expert_group_count"), f"is {groups}, with {sizes.experts} experts"
        )
    if groups > 1:
        chosen = index.integer(index.key("expert_group_used_count"), 0)
        if sizes.experts % groups or not 0 < chosen < groups:
            raise index.error(
                index.key("expert_group_used_count"),
                f"can't use {chosen} of {groups} groups of {sizes.experts} experts",
            )


def _check_attention(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    for heads, kv_heads in zip(sizes.heads, sizes.kv_heads, strict=True):
        if heads == 0:
            raise index.error(index.key("attention.head_count"), "is missing, or 0")
        if kv_heads == 0 or heads % kv_heads:
            raise index.error(
                index.key("attention.head_count_kv"), f"{kv_heads} doesn't divide {heads} heads"
            )
    if index.key("attention.key_length") not in index.metadata and (
        sizes.embedding % sizes.heads[0]
    ):
        raise index.error(
            index.key("attention.head_count"),
            f"{sizes.heads[0]} doesn't divide the embedding's {sizes.embedding} values",
        )
    if not sizes.key_size or sizes.value_size != sizes.key_size:
        raise index.error(
            index.key("attention.value_length"),
            f"a head's value of {sizes.value_size} must be as long as its key of {sizes.key_size}",
        )
    least = sizes.key_size if rules.full_rotary else 2
    if sizes.rotary % 2 or not least <= sizes.rotary <= sizes.key_size:
        raise index.error(
            index.key("rope.dimension_count"),
            f"is {sizes.rotary}; it must be even, and {least} to {sizes.key_size}",
        )


def _check_sliding_sizes(index: GgufIndex, sizes: Hyperparameters) -> None:
    """No proven architecture has heads of another size in its sliding layers."""
    for name, size in (
        ("attention.key_length", sizes.key_size),
        ("attention.value_length", sizes.value_size),
        ("rope.dimension_count", sizes.rotary),
    ):
        key = index.key(f"{name}_swa")
        if index.integer(key, size) != size:
            raise index.error(key, f"differs from {size}, as it is in the other layers")


def _check_window(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    if rules.sliding_window is None:
        return
    key = index.key("attention.sliding_window")
    window = index.integer(key, 0)
    if window == 0 and rules.sliding_window.optional:
        return
    if window <= 0:
        raise index.error(key, f"is {window}, but must be more than 0")
    if not any(sizes.sliding):
        raise index.error(
            index.key(SLIDING_PATTERN), "no layer slides; libllama needs one that does"
        )


def _check_tensors(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    outer = [name for name in index.tensors if layer_of(name) is None]
    _check_rules(index, rules.outer, outer, "", sizes, 0)
    for layer, names in layer_tensors(index, LayerRange(0, sizes.layers)).items():
        prefix = f"blk.{layer}."
        applying = [rule for rule in rules.layer if rule.applies(sizes, layer)]
        _check_rules(index, applying, names, prefix, sizes, layer)


def _check_rules(
    index: GgufIndex,
    rules: Iterable[TensorRule],
    names: Iterable[str],
    prefix: str,
    sizes: Hyperparameters,
    layer: int,
) -> None:
    present = {name.removeprefix(prefix) for name in names}
    rules = tuple(rules)
    replaced = {name for rule in rules if rule.name in present for name in rule.instead_of}
    extents = sizes.sizes(layer)
    for rule in rules:
        if rule.name in present:
            expected = tuple(extents[dimension] for dimension in rule.shape)
            shape = index.tensors[prefix + rule.name].shape
            if _significant(shape) != _significant(expected):
                raise index.error(
                    prefix + rule.name, f"its shape is {shape}, but should be {expected}"
                )
        elif rule.required and rule.name not in replaced:
            raise index.error(prefix + rule.name, "the tensor is missing")


def _significant(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without ones at its end, which ggml doesn't tell from their absence."""
    end = len(shape)
    while end > 1 and shape[end - 1] == 1:
        end -= 1
    return shape[:end]


def _check_types(index: GgufIndex, sizes: Hyperparameters) -> None:
    for tensor in index.tensors.values():
        if (layer_of(tensor.name) or 0) >= sizes.layers:
            continue
        if tensor.type in _NO_WEIGHTS:
            raise index.error(
                tensor.name, f"nothing is computed with weights of type {_of(tensor)}"
            )
        if len(tensor.shape) == 1 and tensor.type is not Type.F32:
            raise index.error(tensor.name, f"a vector must be F32, but is {_of(tensor)}")


def _of(tensor: TensorInfo) -> str:
    return tensor.type.name


def _check_vocabulary(index: GgufIndex, sizes: Hyperparameters) -> None:
    if index.text("tokenizer.ggml.model") in {"none", "no_vocab"}:
        stated = index.integer(index.key("vocab_size"))
        if stated != sizes.vocabulary:
            raise index.error(
                index.key("vocab_size"), f"is {stated}, but {sizes.vocabulary} are embedded"
            )
        return
    key = "tokenizer.ggml.tokens"
    tokens = index.metadata.get(key)
    if tokens is None or tokens.element is not GGUFValueType.STRING:
        raise index.error(key, "must be there, as an array of texts")
    if tokens.count != sizes.vocabulary:
        raise index.error(key, f"holds {tokens.count}, but {sizes.vocabulary} are embedded")
    # libllama asserts that texts are unique, after naming empty ones by their number.
    named = {text or b"[EMPTY_%d]" % number for number, text in enumerate(tokens.texts())}
    if len(named) != tokens.count:
        raise index.error(key, f"{tokens.count - len(named)} tokens are there twice")
    for beside in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        values = index.metadata.get(beside)
        if values is not None and values.count < tokens.count:
            raise index.error(beside, f"has {values.count} entries for {tokens.count} tokens")
