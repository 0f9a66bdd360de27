"""What a slice of a model holds: a GGUF file of its own that an unmodified libllama loads.

A slice has the model's metadata with ``block_count`` lowered, its own layers numbered from 0, and
of the other tensors only what its place in the chain needs:

- The head keeps the token embeddings. The tail keeps the output matrix, under the name of the
  embeddings where the architecture allows it (``ties_output``), so that nothing stands in for
  them. A slice in the middle has neither: its vocabulary is cut to 32 nameless tokens, whose
  matrices are zeros of a few KiB, and it loses the tokenizer.
- Rows. In a model's last layer libllama keeps only those rows of a batch that are flagged as
  outputs, but all of them must cross to the next shard. A middle slice has every row flagged:
  with 32 logits a row that costs nothing. A head would copy its whole vocabulary's logits for
  every row, so it gets one more layer, a stub, behind the real ones. The graph stops at the tap in
  front of it, so the stub is never computed, and no row need be flagged.
- libllama aborts on a model with sliding windows in which no layer has one. Such a slice gets a
  stub of that kind. On the tail it is computed, and changes nothing: all its weights are zero, so
  the residual passes through unchanged.
- Zeros take no disk, but libllama's MAP_POPULATE maps them into memory, so the stub's matrices
  have the smallest type of which whole blocks fill a row. In all of these types zero bytes mean
  zero.

Measured with gemma-3 270M (vocabulary 262,144), resident memory above an empty process: layers
[6, 12) take 41 MiB once loaded, and 259 with holes in place of the embeddings; the head [0, 6)
after a step of 128 rows takes 262 MiB, and 387 with every row flagged in place of the stub.

The slice says in its own metadata, under ``meshnet.slice.``, what it is and what to tap.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from meshnet.domain.errors import LayerRangeError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.description import (
    EMBEDDINGS,
    OUTPUT,
    describe,
    require_legal,
    rules_of,
)
from meshnet.model.gguf import GgufIndex, GgufPart, TensorInfo, tensor_size
from meshnet.model.hyperparameters import (
    Hyperparameters,
    layer_of,
    layer_tensors,
    read_hyperparameters,
)
from meshnet.model.metadata import MetadataValue
from meshnet.model.rules import Architecture
from meshnet.model.slice_metadata import PLACEHOLDER_VOCABULARY, slice_metadata

_TYPES_OF_ZEROS: Final = (
    GGMLQuantizationType.IQ1_S,
    GGMLQuantizationType.Q1_0,
    GGMLQuantizationType.Q4_0,
)
"""By the length of their blocks: 256, 128 and 32 values."""


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """A tensor of a slice: copied from the model, or zeros where ``source`` is None."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    source: TensorInfo | None = None

    @property
    def size(self) -> int:
        """Bytes of its data."""
        return tensor_size(self.type, self.shape)


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """All that is needed to write a slice; made without reading a weight."""

    parts: tuple[GgufPart, ...]
    """The model's files, which the tensors' sources point into."""
    layers: LayerRange
    total_layers: int
    architecture: str
    tap: str | None
    """The tensor that crosses to the next shard; None on the tail."""
    all_rows: bool
    """Whether a batch must flag every row as an output for the tap to see it."""
    metadata: tuple[tuple[str, MetadataValue], ...]
    tensors: tuple[PlannedTensor, ...]
    """In file order: copies as they come in the model, zeros at the end."""
    alignment: int


def plan_slice(
    index: GgufIndex, layers: LayerRange, digest: Digest, *, allow_unverified: bool = False
) -> SlicePlan:
    """Decide what a slice of ``layers`` holds; ``digest`` is the whole model's.

    Raises :class:`LayerRangeError` for a range out of bounds, or for all layers, since the model
    itself serves those; :class:`~meshnet.domain.errors.ModelUnsupportedError` for a model or cut
    that isn't proven; :class:`~meshnet.domain.errors.ModelFileError` for a header that lies.
    """
    info = describe(index)
    require_legal(info, layers, allow_unverified=allow_unverified)
    if len(layers) == info.total_layers:
        raise LayerRangeError(f"{layers} are all layers: the model itself serves them, uncut")
    rules = rules_of(index)
    sizes = read_hyperparameters(index, rules.sliding_window)
    stubs = _stubs(sizes, layers)
    tail = layers.is_tail(info.total_layers)
    tap = None if tail else rules.tap.format(len(layers) - 1)
    all_rows = not tail and not stubs
    tensors = (
        *_outer_tensors(index, rules, layers, sizes),
        *_layer_tensors(index, layers),
        *_stub_tensors(index, stubs, len(layers)),
    )
    copied = sorted((t for t in tensors if t.source is not None), key=_place)
    zeros = (t for t in tensors if t.source is None)
    return SlicePlan(
        parts=index.parts,
        layers=layers,
        total_layers=info.total_layers,
        architecture=info.architecture,
        tap=tap,
        all_rows=all_rows,
        metadata=tuple(
            slice_metadata(index, rules, sizes, layers, stubs, digest, tap, all_rows=all_rows)
        ),
        tensors=(*copied, *zeros),
        alignment=index.alignment,
    )


def _place(tensor: PlannedTensor) -> tuple[int, int]:
    return (tensor.source.part, tensor.source.offset) if tensor.source is not None else (0, 0)


def _stubs(sizes: Hyperparameters, layers: LayerRange) -> tuple[int, ...]:
    """The model's layers that stubs are shaped after, in the order they follow the real ones."""
    sliding = [layer for layer, slides in enumerate(sizes.sliding) if slides]
    if sliding and not any(layer in layers for layer in sliding):
        return (min(sliding, key=lambda layer: abs(layer - layers.end)),)
    return (layers.end,) if layers.is_head() else ()


def _layer_tensors(index: GgufIndex, layers: LayerRange) -> Iterator[PlannedTensor]:
    for layer, names in layer_tensors(index, layers).items():
        for name in names:
            source = index.tensors[name]
            yield _copy(source, _renumbered(name, layer - layers.start))


def _stub_tensors(index: GgufIndex, stubs: tuple[int, ...], first: int) -> Iterator[PlannedTensor]:
    for number, stub in enumerate(stubs, first):
        for name in layer_tensors(index, LayerRange(stub, stub + 1))[stub]:
            model = index.tensors[name]
            kind = _type_of_zeros(model)
            yield PlannedTensor(_renumbered(name, number), kind, model.shape)


def _outer_tensors(
    index: GgufIndex, rules: Architecture, layers: LayerRange, sizes: Hyperparameters
) -> Iterator[PlannedTensor]:
    head, tail = layers.is_head(), layers.is_tail(sizes.layers)
    shrink = not head and not tail
    output = index.tensors.get(OUTPUT)
    for tensor in index.tensors.values():
        if layer_of(tensor.name) is not None:
            continue
        if tensor.name == EMBEDDINGS:
            if tail and output is not None and rules.ties_output:
                yield _copy(output, EMBEDDINGS)
            elif head or (tail and output is None):
                yield _copy(tensor, EMBEDDINGS)
            else:
                yield _placeholder(tensor, shrink=shrink)
        elif not tensor.name.startswith("output."):
            yield _copy(tensor, tensor.name)
        elif tensor.name == OUTPUT and rules.ties_output:
            continue
        elif tail:
            yield _copy(tensor, tensor.name)
        elif tensor.name not in _optional(rules):
            yield _placeholder(tensor, shrink=shrink)


def _optional(rules: Architecture) -> frozenset[str]:
    return frozenset(rule.name for rule in rules.outer if not rule.required)


def _copy(source: TensorInfo, name: str) -> PlannedTensor:
    return PlannedTensor(name, source.type, source.shape, source)


def _placeholder(tensor: TensorInfo, *, shrink: bool) -> PlannedTensor:
    """Zeros in place of a tensor whose last extent is the vocabulary."""
    shape = (*tensor.shape[:-1], PLACEHOLDER_VOCABULARY) if shrink else tensor.shape
    return PlannedTensor(tensor.name, _type_of_zeros(tensor), shape)


def _type_of_zeros(tensor: TensorInfo) -> GGMLQuantizationType:
    if len(tensor.shape) == 1 or tensor.type is GGMLQuantizationType.F32:
        return tensor.type
    for kind in _TYPES_OF_ZEROS:
        if tensor.shape[0] % GGML_QUANT_SIZES[kind][0] == 0:
            return min(kind, tensor.type, key=lambda kind: tensor_size(kind, tensor.shape))
    return tensor.type


def _renumbered(name: str, layer: int) -> str:
    return f"blk.{layer}.{name.split('.', 2)[2]}"
