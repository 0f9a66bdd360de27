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
- Layers of zeros, where the architecture's rules ask for them (``layout``): libllama aborts on a
  model with sliding windows in which no layer has one, looks at a layer's index, or at how many
  there are. In front of the slice's own layers, and on the tail behind them, they are computed and
  change nothing: the residual passes through unchanged. All of them have a cache like any layer.
- Zeros take no disk, but libllama's MAP_POPULATE maps them into memory, so matrices of zeros have
  the smallest type of which whole blocks fill a row. In all of these types zero bytes mean zero.

Measured with gemma-3 270M (vocabulary 262,144), resident memory above an empty process: layers
[6, 12) take 41 MiB once loaded, and 259 with holes in place of the embeddings; the head [0, 6)
after a step of 128 rows takes 262 MiB, and 387 with every row flagged in place of the stub.

The slice says in its own metadata, under ``meshnet.slice.``, what it is, what to tap, and what to
multiply its input by.
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
    sizes_of,
    structure_of,
)
from meshnet.model.gguf import GgufIndex, GgufPart, TensorInfo, tensor_size
from meshnet.model.hyperparameters import Hyperparameters, layer_of, layer_tensors
from meshnet.model.layout import PLACEHOLDER_VOCABULARY, Layout, lay_out
from meshnet.model.metadata import MetadataValue
from meshnet.model.rules import FACTOR, Architecture
from meshnet.model.slice_metadata import Cut, slice_metadata

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
    ones: bool = False
    """Whether it is float32 ones rather than zeros."""

    @property
    def zeros(self) -> bool:
        """Whether it is nothing but zeros."""
        return self.source is None and not self.ones

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
    rules, sizes = rules_of(index), sizes_of(index)
    layout = lay_out(rules, structure_of(index, rules, sizes), layers)
    tap, all_rows = _tap(rules, layout, info.total_layers)
    tensors = (
        *_outer_tensors(index, rules, layers, sizes),
        *_layer_tensors(index, rules, layout),
        *_null_tensors(index, layout),
    )
    copied = sorted((t for t in tensors if t.source is not None), key=_place)
    made = (t for t in tensors if t.source is None)
    cut = Cut(index, rules, sizes, layout, digest, tap, all_rows)
    return SlicePlan(
        parts=index.parts,
        layers=layers,
        total_layers=info.total_layers,
        architecture=info.architecture,
        tap=tap,
        all_rows=all_rows,
        metadata=tuple(slice_metadata(cut)),
        tensors=(*copied, *made),
        alignment=index.alignment,
    )


def plan_whole(index: GgufIndex) -> SlicePlan:
    """Plan one file of all layers: the model as it is, its parts joined.

    Raises as :func:`~meshnet.model.description.describe` does.
    """
    info = describe(index)
    copied = (_copy(tensor, tensor.name) for tensor in index.tensors.values())
    return SlicePlan(
        parts=index.parts,
        layers=LayerRange(0, info.total_layers),
        total_layers=info.total_layers,
        architecture=info.architecture,
        tap=None,
        all_rows=False,
        metadata=tuple(
            (key, value) for key, value in index.metadata.items() if not key.startswith("split.")
        ),
        tensors=tuple(sorted(copied, key=_place)),
        alignment=index.alignment,
    )


def _tap(rules: Architecture, layout: Layout, total_layers: int) -> tuple[str | None, bool]:
    """The tensor to tap, None on a tail, and whether every row must be flagged for it."""
    if layout.real.is_tail(total_layers):
        return None, False
    last_of_all = not layout.after
    name = rules.last_tap if last_of_all and rules.last_tap else rules.tap
    return name.format(last=layout.last, next=layout.last + 1), last_of_all


def _place(tensor: PlannedTensor) -> tuple[int, int]:
    return (tensor.source.part, tensor.source.offset) if tensor.source is not None else (0, 0)


def _layer_tensors(
    index: GgufIndex, rules: Architecture, layout: Layout
) -> Iterator[PlannedTensor]:
    replaced = {} if layout.real.is_head() else rules.stands_in
    unused = set(replaced.values())
    for layer, names in layer_tensors(index, layout.real).items():
        number = layer - layout.real.start + len(layout.before)
        for name in names:
            own = name.split(".", 2)[2]
            if own in unused:
                yield _zeros_like(index.tensors[name], _renumbered(name, number))
            else:
                source = name.replace(own, replaced.get(own, own))
                yield _copy(
                    index.tensors.get(source, index.tensors[name]), _renumbered(name, number)
                )


def _null_tensors(index: GgufIndex, layout: Layout) -> Iterator[PlannedTensor]:
    """Layers that add nothing: all is zeros but a factor of the whole residual."""
    behind = len(layout.before) + len(layout.real)
    numbered = (*enumerate(layout.before), *enumerate(layout.after, behind))
    for number, shape_of in numbered:
        for name in layer_tensors(index, LayerRange(shape_of, shape_of + 1))[shape_of]:
            model, own = index.tensors[name], _renumbered(name, number)
            if name.endswith(FACTOR):
                yield PlannedTensor(own, GGMLQuantizationType.F32, model.shape, ones=True)
            else:
                yield _zeros_like(model, own)


def _outer_tensors(
    index: GgufIndex, rules: Architecture, layers: LayerRange, sizes: Hyperparameters
) -> Iterator[PlannedTensor]:
    head, tail = layers.is_head(), layers.is_tail(sizes.layers)
    shrink = not head and not tail and not rules.whole_vocabulary
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
        elif tensor.name in rules.only_head and not head:
            yield _zeros_like(tensor, tensor.name)
        elif tensor.name == OUTPUT and rules.ties_output:
            continue
        elif tail or not tensor.name.startswith("output."):
            yield _copy(tensor, tensor.name)
        else:
            yield _placeholder(tensor, shrink=shrink)


def _copy(source: TensorInfo, name: str) -> PlannedTensor:
    return PlannedTensor(name, source.type, source.shape, source)


def _zeros_like(tensor: TensorInfo, name: str) -> PlannedTensor:
    return PlannedTensor(name, _type_of_zeros(tensor), tensor.shape)


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
