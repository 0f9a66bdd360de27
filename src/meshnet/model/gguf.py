"""What a GGUF model holds: its metadata and where its tensors lie. Never reads a weight.

The file is untrusted: every length and count is checked against the file's size before anything
is read or allocated by it. The format is ggml's ``docs/gguf.md``; the rules about counts, names,
dimensions and contiguous offsets are those of ggml's own ``gguf.cpp``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from meshnet.domain.errors import ModelFileError, ModelNotFoundError
from meshnet.model.bytesource import ByteSource, LocalBytes
from meshnet.model.gguf_cursor import GgufCursor, file_error
from meshnet.model.metadata import WIDTHS, MetadataValue, Scalar

MAGIC: Final = b"GGUF"
DEFAULT_ALIGNMENT: Final = 32
MAX_TENSOR_NAME: Final = 63
"""Bytes of a tensor's name; ggml keeps names in 64 with a zero at the end."""

_VERSIONS: Final = (2, 3)
_MAX_ENTRIES: Final = 1 << 16
_MAX_DIMENSIONS: Final = 4
_MAX_ALIGNMENT: Final = 1 << 20
_MAX_PARTS: Final = 9999
_SMALLEST_ENTRY: Final = 13
_PART_NAME: Final = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class GgufPart:
    """One file of a model. Size and time tell whether it is still the file that was read."""

    path: Path
    size: int
    mtime_ns: int
    header_bytes: int = 0
    """Bytes of metadata and tensor list, at its start."""


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a model. ``shape`` is in ggml's order: the length of a row comes first."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""
    size: int
    part: int = 0
    """Which of the model's files holds it."""


@dataclass(frozen=True, slots=True)
class GgufIndex:
    """Metadata and tensors of a model, all its parts together.

    The readers of single values raise :class:`ModelFileError`, naming the key, when it is absent
    and has no default, or has another type.
    """

    parts: tuple[GgufPart, ...]
    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo] = field(default_factory=dict)
    alignment: int = DEFAULT_ALIGNMENT

    @property
    def path(self) -> Path:
        """The first part: the file to hand to libllama."""
        return self.parts[0].path

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture."""
        return self.text("general.architecture")

    def key(self, name: str) -> str:
        """The full key of one of the architecture's own values."""
        return f"{self.architecture}.{name}"

    def error(self, subject: str, problem: str) -> ModelFileError:
        """The error that says what is wrong with a key or tensor of this model."""
        return file_error(self.path, subject, problem)

    def text(self, key: str, default: str | None = None) -> str:
        """A text value."""
        value = self._scalar(key, default)
        if not isinstance(value, str):
            raise self.error(key, f"is {value!r}, but should be a text")
        return value

    def integer(self, key: str, default: int | None = None) -> int:
        """An integer value, of any width."""
        value = self._scalar(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(key, f"is {value!r}, but should be an integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """An integer or floating-point value."""
        value = self._scalar(key, default)
        if isinstance(value, bool | str):
            raise self.error(key, f"is {value!r}, but should be a number")
        return float(value)

    def items(self, key: str) -> list[Scalar]:
        """The values of an array."""
        try:
            return self._value(key).items()
        except ValueError as error:
            raise self.error(key, str(error)) from error

    def is_array(self, key: str) -> bool:
        """Whether the key is there and holds an array."""
        value = self.metadata.get(key)
        return value is not None and value.element is not None

    def _value(self, key: str) -> MetadataValue:
        if key not in self.metadata:
            raise self.error(key, "is missing")
        return self.metadata[key]

    def _scalar(self, key: str, default: Scalar | None) -> Scalar:
        if default is not None and key not in self.metadata:
            return default
        try:
            return self._value(key).scalar()
        except ValueError as error:
            raise self.error(key, str(error)) from error


@dataclass(frozen=True, slots=True)
class GgufHead:
    """What the start of one file says; ``size`` is how long that start is, in bytes."""

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorInfo]
    alignment: int
    size: int


def read_head(source: ByteSource) -> GgufHead:
    """Read one file's metadata and tensor list.

    Raises :class:`ModelFileError`, naming file and field, when it lies or the data end early.
    """
    cursor = GgufCursor(source)
    tensor_count, key_count = _read_counts(cursor)
    metadata = dict(_read_metadata(cursor, key_count))
    part = GgufPart(Path(source.name), source.size, 0)
    alignment = _read_alignment(GgufIndex((part,), metadata))
    tensors = _read_tensors(cursor, tensor_count, alignment)
    return GgufHead(metadata, tensors, alignment, cursor.position)


def sibling_name(name: str, number: int, count: int) -> str | None:
    """What part ``number`` (from 0) is called if one of ``count`` is ``name``; None if it isn't."""
    match = _PART_NAME.fullmatch(name)
    if match is None or int(match[3]) != count:
        return None
    return f"{match[1]}-{number + 1:05}-of-{count:05}.gguf"


def part_count(split_count: int, subject: str) -> int:
    """The number of a model's files, from its key ``split.count``."""
    if split_count > _MAX_PARTS:
        raise file_error(subject, "split.count", f"{split_count} parts are more than {_MAX_PARTS}")
    return max(split_count, 1)


def read_index(path: Path) -> GgufIndex:
    """Read the headers of the model that ``path`` is, or is any part of.

    Raises :class:`ModelNotFoundError` when the file isn't there and :class:`ModelFileError`,
    naming file and field, when a header lies, the data end early, or another part is missing.
    """
    index = _read_part(path)
    count = part_count(index.integer("split.count", 0), str(path))
    if count == 1:
        return index
    return _join([_read_sibling(path, index, number, count) for number in range(count)])


def _read_sibling(path: Path, index: GgufIndex, number: int, count: int) -> GgufIndex:
    name = sibling_name(path.name, number, count)
    if name is None:
        raise index.error("split.count", misnamed(count))
    sibling = path.with_name(name)
    if sibling == path:
        part = index
    else:
        try:
            part = _read_part(sibling)
        except ModelNotFoundError as error:
            raise file_error(
                sibling, "file", f"part {number + 1} of {count} is missing; put it beside {path}"
            ) from error
    if part.integer("split.no") != number or part.integer("split.count") != count:
        raise part.error("split.no", f"isn't that of part {number + 1} of {count}")
    return part


def misnamed(count: int) -> str:
    """What is wrong with a file that says it is one of ``count``, but isn't named so."""
    return (
        f"says that the model has {count} parts, but the file isn't named as one of them; "
        f"rename it to end in -00001-of-{count:05}.gguf (with its own number)"
    )


def _join(parts: list[GgufIndex]) -> GgufIndex:
    first = parts[0]
    tensors: dict[str, TensorInfo] = {}
    for number, part in enumerate(parts):
        for info in part.tensors.values():
            if info.name in tensors:
                raise part.error(info.name, "another part has a tensor of the same name")
            tensors[info.name] = TensorInfo(
                info.name, info.type, info.shape, info.offset, info.size, number
            )
    expected = first.integer("split.tensors.count")
    if expected != len(tensors):
        raise first.error("split.tensors.count", f"is {expected}, but there are {len(tensors)}")
    files = tuple(part.parts[0] for part in parts)
    return GgufIndex(files, first.metadata, tensors, first.alignment)


def _read_part(path: Path) -> GgufIndex:
    try:
        with path.open("rb", buffering=0) as file:
            source = LocalBytes(file, path)
            head = read_head(source)
    except FileNotFoundError as error:
        raise ModelNotFoundError(f"{path}: no such file", file=str(path)) from error
    except OSError as error:
        raise file_error(path, "file", f"can't be read: {error.strerror}") from error
    part = GgufPart(path.absolute(), source.size, source.mtime_ns, head.size)
    return GgufIndex((part,), head.metadata, head.tensors, head.alignment)


def _read_counts(cursor: GgufCursor) -> tuple[int, int]:
    if cursor.take(len(MAGIC), "magic") != MAGIC:
        raise cursor.error("magic", "isn't GGUF; this file is no GGUF model")
    version = cursor.uint32("version")
    if version and version & 0xFFFF == 0:
        raise cursor.error("version", "the file is big-endian; only little-endian ones are read")
    if version not in _VERSIONS:
        raise cursor.error("version", f"{version} isn't supported; convert the model to version 3")
    return _count(cursor, "tensor count"), _count(cursor, "metadata count")


def _count(cursor: GgufCursor, name: str) -> int:
    count = cursor.uint64(name)
    if count > _MAX_ENTRIES:
        raise cursor.error(name, f"{count} is more than {_MAX_ENTRIES}")
    cursor.expect(count * _SMALLEST_ENTRY, name)
    return count


def _read_metadata(cursor: GgufCursor, count: int) -> Iterator[tuple[str, MetadataValue]]:
    seen: set[str] = set()
    for number in range(count):
        key = cursor.name(f"key {number}")
        if key in seen:
            raise cursor.error(key, "the key is there twice")
        seen.add(key)
        yield key, _read_value(cursor, key)


def _read_value(cursor: GgufCursor, key: str) -> MetadataValue:
    kind = _value_type(cursor, key)
    start = cursor.position
    if kind is GGUFValueType.STRING:
        cursor.skip_strings(1, key)
    elif kind is not GGUFValueType.ARRAY:
        cursor.skip(WIDTHS[kind], key)
    else:
        element = _value_type(cursor, key)
        count = cursor.uint64(key)
        if element is GGUFValueType.ARRAY:
            raise cursor.error(key, "an array of arrays isn't allowed")
        if element is GGUFValueType.STRING:
            cursor.skip_strings(count, key)
        else:
            cursor.skip(count * WIDTHS[element], key)
        return MetadataValue(kind, cursor.since(start), element, count)
    return MetadataValue(kind, cursor.since(start))


def _value_type(cursor: GgufCursor, key: str) -> GGUFValueType:
    code = cursor.uint32(key)
    try:
        return GGUFValueType(code)
    except ValueError as error:
        raise cursor.error(key, f"{code} is no type of value") from error


def _read_alignment(index: GgufIndex) -> int:
    alignment = index.integer("general.alignment", DEFAULT_ALIGNMENT)
    if not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise index.error("general.alignment", f"{alignment} isn't a power of two up to 2^20")
    return alignment


def _read_tensors(cursor: GgufCursor, count: int, alignment: int) -> dict[str, TensorInfo]:
    heads = [_read_tensor(cursor, number) for number in range(count)]
    start = padded(cursor.position, alignment)
    tensors: dict[str, TensorInfo] = {}
    expected = 0
    for info in heads:
        if info.name in tensors:
            raise cursor.error(info.name, "the tensor is there twice")
        if info.offset != expected:
            raise cursor.error(
                info.name, f"its data start at {info.offset}, but should at {expected}"
            )
        if start + info.offset + info.size > cursor.size:
            raise cursor.error(
                info.name,
                f"its data end at byte {start + info.offset + info.size}, but the file has only "
                f"{cursor.size}; it is truncated",
            )
        expected += padded(info.size, alignment)
        tensors[info.name] = TensorInfo(
            info.name, info.type, info.shape, start + info.offset, info.size
        )
    return tensors


def _read_tensor(cursor: GgufCursor, number: int) -> TensorInfo:
    name = cursor.name(f"name of tensor {number}", MAX_TENSOR_NAME)
    dimensions = cursor.uint32(name)
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        raise cursor.error(name, f"has {dimensions} dimensions; 1 to {_MAX_DIMENSIONS} are allowed")
    shape: tuple[int, ...] = struct.unpack(f"<{dimensions}Q", cursor.take(8 * dimensions, name))
    code = cursor.uint32(name)
    offset = cursor.uint64(name)
    try:
        kind = GGMLQuantizationType(code)
        size = tensor_size(kind, shape)
    except ValueError as error:
        raise cursor.error(name, str(error)) from error
    return TensorInfo(name, kind, shape, offset, size)


def tensor_size(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor's data; raises ``ValueError`` when the shape can't have that type."""
    block, width = GGML_QUANT_SIZES[kind]
    elements = 1
    for extent in shape:
        elements *= extent
    if not 0 < elements < 1 << 63:
        raise ValueError(f"the shape {shape} holds nothing, or more than 2^63 values")
    if shape[0] % block:
        raise ValueError(f"rows of {shape[0]} values don't fill {kind.name} blocks of {block}")
    return elements // block * width


def padded(size: int, alignment: int) -> int:
    """``size`` rounded up to a multiple of ``alignment``, a power of two."""
    return (size + alignment - 1) & -alignment
