"""The metadata of a slice: the model's own, with what a cut changes changed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from meshnet.domain.ids import Digest
from meshnet.model.description import SLICE_PREFIX
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import RECURRENT_LAYERS, SLIDING_PATTERN, Hyperparameters
from meshnet.model.layout import PLACEHOLDER_VOCABULARY, Layout
from meshnet.model.metadata import (
    MetadataValue,
    boolean,
    boolean_array,
    float32,
    string,
    uint32,
    uint32_array,
)
from meshnet.model.rules import PER_LAYER_GLOBAL_KEYS, PER_LAYER_KEYS, Architecture

SLICE_FORMAT: Final = 2
"""Grows when the same model and range give another file; old files are then written anew."""

HEAD_COUNT: Final = "attention.head_count"
EMBEDDING_SCALE: Final = "embedding_scale"


@dataclass(frozen=True, slots=True)
class Cut:
    """A slice and what it is cut from."""

    index: GgufIndex
    rules: Architecture
    sizes: Hyperparameters
    layout: Layout
    digest: Digest
    """Of the whole model."""
    tap: str | None
    all_rows: bool

    @property
    def middle(self) -> bool:
        """Whether the slice neither embeds nor samples."""
        real = self.layout.real
        return not real.is_head() and not real.is_tail(self.sizes.layers)

    @property
    def vocabulary(self) -> int:
        """Tokens of the slice."""
        small = self.middle and not self.rules.whole_vocabulary
        return PLACEHOLDER_VOCABULARY if small else self.sizes.vocabulary


def slice_metadata(cut: Cut) -> Iterator[tuple[str, MetadataValue]]:
    """The slice's keys and values, in the model's order, its own description last."""
    index = cut.index
    changed = {index.key(key): value for key, value in _changed(cut)} | dict(_changed_arrays(cut))
    dropped = tuple(map(index.key, cut.rules.dropped_keys))
    if cut.middle:
        changed[index.key("vocab_size")] = uint32(cut.vocabulary)
        changed["tokenizer.ggml.model"] = string("none")
    for key, value in index.metadata.items():
        if key in changed:
            yield key, changed.pop(key)
        elif key in dropped or key.startswith(("split.", SLICE_PREFIX)):
            continue
        elif not (cut.middle and key.startswith("tokenizer.")):
            yield key, value
    yield from changed.items()
    for key, value in _own_description(cut):
        yield SLICE_PREFIX + key, value


def _changed(cut: Cut) -> Iterator[tuple[str, MetadataValue]]:
    """Single values."""
    index, sizes, blocks = cut.index, cut.sizes, cut.layout.blocks
    yield "block_count", uint32(len(blocks))
    if index.key("nextn_predict_layers") in index.metadata:
        yield "nextn_predict_layers", uint32(0)
    if index.key("leading_dense_block_count") in index.metadata:
        dense = sum(block < sizes.leading_dense for block in blocks)
        yield "leading_dense_block_count", uint32(dense)
    if sizes.shared_kv:
        first = sizes.layers - sizes.shared_kv
        places = [place for place, block in enumerate(blocks) if block >= first]
        yield "attention.shared_kv_layers", uint32(len(blocks) - places[0] if places else 0)
    if cut.rules.scaled_input == "key" and not cut.layout.real.is_head():
        yield EMBEDDING_SCALE, float32(1)
    yield from cut.rules.rewrite(index, sizes, cut.layout.real).items()


def _changed_arrays(cut: Cut) -> Iterator[tuple[str, MetadataValue]]:
    """Full keys of arrays with one entry a layer."""
    index, rules, sizes, blocks = cut.index, cut.rules, cut.sizes, cut.layout.blocks
    for key in (*map(index.key, PER_LAYER_KEYS), *PER_LAYER_GLOBAL_KEYS):
        if index.is_array(key):
            yield key, _picked(index, key, blocks)
    if rules.heads_everywhere and index.is_array(index.key(HEAD_COUNT)):
        most = max(sizes.heads)
        yield index.key(HEAD_COUNT), uint32_array([sizes.heads[block] or most for block in blocks])
    if any(sizes.sliding):
        flags = [sizes.sliding[block] for block in blocks]
        yield index.key(SLIDING_PATTERN), boolean_array(flags)
    if rules.recurrence == "interval":
        flags = [sizes.recurrent[block] for block in blocks]
        yield index.key(RECURRENT_LAYERS), boolean_array(flags)


def _picked(index: GgufIndex, key: str, blocks: tuple[int, ...]) -> MetadataValue:
    values = index.metadata[key]
    if values.count <= max(blocks):
        raise index.error(key, f"has {values.count} entries, fewer than the model has layers")
    try:
        return values.pick(blocks)
    except ValueError as error:
        raise index.error(key, str(error)) from error


def _own_description(cut: Cut) -> Iterator[tuple[str, MetadataValue]]:
    """What the slice is, and what the engine must do with it."""
    layout = cut.layout
    yield "format", uint32(SLICE_FORMAT)
    yield "start", uint32(layout.real.start)
    yield "end", uint32(layout.real.end)
    yield "total_layers", uint32(cut.sizes.layers)
    yield "vocabulary", uint32(cut.sizes.vocabulary)
    yield "architecture", string(cut.index.architecture)
    yield "model_digest", string(cut.digest)
    yield "nulls_before", uint32(len(layout.before))
    yield "nulls_after", uint32(len(layout.after))
    if cut.rules.scaled_input == "root" and not layout.real.is_head():
        # A text, since libllama tells numbers with six digits behind the point.
        yield "input_scale", string(repr(1 / math.sqrt(cut.sizes.embedding)))
    if cut.tap is not None:
        yield "tap", string(cut.tap)
        yield "all_rows", boolean(cut.all_rows)
