"""The metadata of a slice: the model's own, with what a cut changes changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.description import SLICE_PREFIX
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import SLIDING_PATTERN, Hyperparameters
from meshnet.model.metadata import MetadataValue, boolean, boolean_array, string, uint32
from meshnet.model.rules import PER_LAYER_KEYS, Architecture

SLICE_FORMAT: Final = 1
"""Grows when the same model and range give another file; old files are then written anew."""

PLACEHOLDER_VOCABULARY: Final = 32
"""Tokens of a slice that neither embeds nor samples."""


def slice_metadata(
    index: GgufIndex,
    rules: Architecture,
    sizes: Hyperparameters,
    layers: LayerRange,
    stubs: tuple[int, ...],
    digest: Digest,
    tap: str | None,
    *,
    all_rows: bool,
) -> Iterator[tuple[str, MetadataValue]]:
    """The slice's keys and values, in the model's order, its own description last."""
    blocks = (*range(layers.start, layers.end), *stubs)
    changed = _changed(index, rules, sizes, blocks)
    middle = not layers.is_head() and not layers.is_tail(sizes.layers)
    dropped = () if layers.is_head() else tuple(map(index.key, rules.head_only_keys))
    if middle:
        changed[index.key("vocab_size")] = uint32(PLACEHOLDER_VOCABULARY)
        changed["tokenizer.ggml.model"] = string("none")
    for key, value in index.metadata.items():
        if key in changed:
            yield key, changed.pop(key)
        elif key in dropped or key.startswith(("split.", SLICE_PREFIX)):
            continue
        elif not (middle and key.startswith("tokenizer.")):
            yield key, value
    yield from changed.items()
    yield from _own_description(index, layers, sizes.layers, digest, tap, all_rows=all_rows)


def _changed(
    index: GgufIndex, rules: Architecture, sizes: Hyperparameters, blocks: tuple[int, ...]
) -> dict[str, MetadataValue]:
    changed = {index.key("block_count"): uint32(len(blocks))}
    if index.key("nextn_predict_layers") in index.metadata:
        changed[index.key("nextn_predict_layers")] = uint32(0)
    if index.key("leading_dense_block_count") in index.metadata:
        dense = sum(block < sizes.leading_dense for block in blocks)
        changed[index.key("leading_dense_block_count")] = uint32(dense)
    for key in map(index.key, PER_LAYER_KEYS):
        if index.is_array(key):
            changed[key] = index.metadata[key].pick(blocks)
    if rules.sliding_window is not None and any(sizes.sliding):
        flags = [sizes.sliding[block] for block in blocks]
        changed[index.key(SLIDING_PATTERN)] = boolean_array(flags)
    return changed


def _own_description(
    index: GgufIndex,
    layers: LayerRange,
    total_layers: int,
    digest: Digest,
    tap: str | None,
    *,
    all_rows: bool,
) -> Iterator[tuple[str, MetadataValue]]:
    yield SLICE_PREFIX + "format", uint32(SLICE_FORMAT)
    yield SLICE_PREFIX + "start", uint32(layers.start)
    yield SLICE_PREFIX + "end", uint32(layers.end)
    yield SLICE_PREFIX + "total_layers", uint32(total_layers)
    yield SLICE_PREFIX + "architecture", string(index.architecture)
    yield SLICE_PREFIX + "model_digest", string(digest)
    if tap is not None:
        yield SLICE_PREFIX + "tap", string(tap)
        yield SLICE_PREFIX + "all_rows", boolean(all_rows)
