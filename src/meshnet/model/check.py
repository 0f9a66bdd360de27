"""Checks made before libllama sees a file, since its assertions end the whole process.

They mirror what llama.cpp asserts while it loads a model and computes its first step
(``load_hparams``, ``llama_vocab::impl::load``, the graphs of ``src/models``, ggml's shape rules).
Tensors that are missing or of a wrong shape it refuses by itself. For architectures outside the
table only the general checks apply.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gguf import GGMLQuantizationType as Type
from gguf import GGUFValueType

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.model.architectures import VERIFIED
from meshnet.model.charsmap import check_charsmap
from meshnet.model.check_slice import check_scale, check_slice, check_variant, check_zeros
from meshnet.model.description import is_slice, obstacle_of, rules_of, sizes_of
from meshnet.model.gguf import GgufIndex, TensorInfo, read_index
from meshnet.model.hyperparameters import (
    SLIDING_PATTERN,
    Hyperparameters,
    layer_of,
    window_of,
)
from meshnet.model.rules import Architecture, Kind, kinds_of

_EPSILONS: Final = (
    "attention.layer_norm_epsilon",
    "attention.layer_norm_rms_epsilon",
    "attention.group_norm_epsilon",
)
_KEYS_OF_KINDS: Final[Mapping[Kind, str]] = {
    "sliding": SLIDING_PATTERN,
    "full": SLIDING_PATTERN,
    "recurrent": "attention.head_count_kv",
    "attention": "attention.head_count_kv",
    "plain": "feed_forward_length",
    "sparse": "leading_dense_block_count",
    "wide": "feed_forward_length",
    "dense": "leading_dense_block_count",
    "own_indexer": "attention.indexer.types",
}
_ROTATION_SCALINGS: Final = ("none", "linear", "yarn", "longrope")
_NO_WEIGHTS: Final = (Type.I8, Type.I16, Type.I32, Type.I64, Type.F64, Type.Q8_1, Type.Q8_K)


def check_loadable(path: Path, *, allow_unverified: bool = False) -> None:
    """Check a model or a slice, see :func:`check_index`, and that a slice has zeros where it must.

    Raises :class:`~meshnet.domain.errors.ModelFileError` too when the file can't be read.
    """
    index = read_index(path)
    check_index(index, allow_unverified=allow_unverified)
    if is_slice(index) and index.architecture in VERIFIED:
        check_zeros(index, rules_of(index))


def check_index(index: GgufIndex, *, allow_unverified: bool = False) -> None:
    """Raise unless libllama can load the file and compute with it.

    Raises :class:`~meshnet.domain.errors.ModelFileError` naming the key or tensor at fault, and
    :class:`ModelUnsupportedError` for an architecture outside the table.
    """
    rules, sizes = rules_of(index), sizes_of(index)
    if rules.name not in VERIFIED and not allow_unverified:
        obstacle = obstacle_of(index, rules, sizes)
        raise ModelUnsupportedError(
            f"{index.path}: {obstacle}. Add --allow-unverified to try it",
            architecture=index.architecture,
        )
    _check_keys(index)
    _check_experts(index, sizes)
    _check_heads(index, sizes)
    if rules.name in VERIFIED:
        _check_head_sizes(index, rules, sizes)
        _check_kinds(index, rules, sizes)
        _check_tensors(index, rules, sizes)
        if is_slice(index):
            check_slice(index, rules, sizes)
            if not allow_unverified:
                check_variant(index, rules, sizes)
    if is_slice(index):
        check_scale(index, rules, sizes)
    _check_types(index, sizes)
    _check_vocabulary(index, sizes)


def _check_keys(index: GgufIndex) -> None:
    for key in map(index.key, _EPSILONS):
        epsilon = index.number(key, 0)
        if not (math.isfinite(epsilon) and epsilon >= 0):
            raise index.error(key, f"is {epsilon}, which is no epsilon")
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


def _check_heads(index: GgufIndex, sizes: Hyperparameters) -> None:
    for heads, kv_heads in zip(sizes.heads, sizes.kv_heads, strict=True):
        if heads and kv_heads and heads % kv_heads:
            raise index.error(
                index.key("attention.head_count_kv"), f"{kv_heads} doesn't divide {heads} heads"
            )
    if sizes.rotary % 2:
        raise index.error(index.key("rope.dimension_count"), f"is {sizes.rotary}; it must be even")


def _check_head_sizes(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    if rules.head_size == "any":
        return
    if 0 in sizes.heads:
        raise index.error(index.key("attention.head_count"), "is missing, or 0")
    if 0 in sizes.kv_heads:
        raise index.error(index.key("attention.head_count_kv"), "is 0")
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
    least = sizes.key_size if rules.head_size == "rotated" else 2
    if not least <= sizes.rotary <= sizes.key_size:
        raise index.error(
            index.key("rope.dimension_count"),
            f"is {sizes.rotary}; it must be {least} to {sizes.key_size}",
        )
    for name, size in (
        ("attention.key_length", sizes.key_size),
        ("attention.value_length", sizes.value_size),
        ("rope.dimension_count", sizes.rotary),
    ):
        key = index.key(f"{name}_swa")
        if index.integer(key, size) != size:
            raise index.error(key, f"differs from {size}, as it is in the other layers")


def _check_kinds(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    """Caches and inputs are made for kinds of layers that libllama expects to find."""
    window = window_of(index, rules.window)
    required = rules.window is not None and not (rules.window.optional or rules.window.only_layers)
    if required and window <= 0:
        raise index.error(
            index.key("attention.sliding_window"), f"is {window}, but must be more than 0"
        )
    held = {kind for layer in range(sizes.layers) for kind in kinds_of(sizes, layer)}
    for kind in rules.needs:
        if kind not in held and (window or kind != "sliding"):
            raise index.error(
                index.key(_KEYS_OF_KINDS[kind]),
                f"there is no layer of the kind {kind!r}; libllama needs one",
            )


def _check_tensors(index: GgufIndex, rules: Architecture, sizes: Hyperparameters) -> None:
    for layer in range(sizes.layers):
        kinds = kinds_of(sizes, layer)
        for kind, group in rules.tensors:
            names = [f"blk.{layer}.{name}" for name in group]
            if kind in kinds and not any(name in index.tensors for name in names):
                beside = f", and so is {' and '.join(names[1:])}" if names[1:] else ""
                raise index.error(names[0], f"the tensor is missing{beside}")


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
    kind = index.text("tokenizer.ggml.model")
    if kind == "rwkv":
        # libllama asserts that the texts, escaped in a way of their own, hold a line break.
        raise index.error("tokenizer.ggml.model", "vocabularies of the kind 'rwkv' aren't served")
    if kind == "t5":
        check_charsmap(index)
    if kind in {"none", "no_vocab"}:
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
