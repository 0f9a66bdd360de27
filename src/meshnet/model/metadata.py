"""Metadata values of a GGUF file: kept as the bytes they are, decoded only when asked for.

The layout is that of the GGUF specification, version 3 (ggml, ``docs/gguf.md``), little-endian.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from gguf import GGUFValueType

Scalar = int | float | bool | str

_NUMPY: Final = {
    GGUFValueType.UINT8: "<u1",
    GGUFValueType.INT8: "<i1",
    GGUFValueType.UINT16: "<u2",
    GGUFValueType.INT16: "<i2",
    GGUFValueType.UINT32: "<u4",
    GGUFValueType.INT32: "<i4",
    GGUFValueType.FLOAT32: "<f4",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "<u8",
    GGUFValueType.INT64: "<i8",
    GGUFValueType.FLOAT64: "<f8",
}
WIDTHS: Final = {kind: np.dtype(code).itemsize for kind, code in _NUMPY.items()}
"""Bytes of one value of each kind of fixed width."""

_LENGTH: Final = struct.Struct("<Q")
_ARRAY_HEAD: Final = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class MetadataValue:
    """One value as it stands in the file, behind its type tag.

    ``raw`` of an array starts with its element type (uint32) and count (uint64). ``element`` and
    ``count`` repeat them; a single value has ``element`` None and ``count`` 1.
    """

    kind: GGUFValueType
    raw: bytes
    element: GGUFValueType | None = None
    count: int = 1

    def encode(self) -> bytes:
        """The type tag and the value, as they stand in a file."""
        return struct.pack("<I", self.kind) + self.raw

    def scalar(self) -> Scalar:
        """The single value; raises ``ValueError`` for an array and for text that isn't UTF-8."""
        if self.element is not None:
            raise ValueError("is an array")
        if self.kind is GGUFValueType.STRING:
            return self.raw[_LENGTH.size :].decode()
        value: Scalar = np.frombuffer(self.raw, _NUMPY[self.kind])[0].item()
        return value

    def items(self) -> list[Scalar]:
        """All values of an array; raises ``ValueError`` for a single value and for bad UTF-8."""
        if self.element is None:
            raise ValueError("is not an array")
        if self.element is GGUFValueType.STRING:
            return [text.decode() for text in self.texts()]
        values: list[Scalar] = self._numbers(self.element).tolist()
        return values

    def texts(self) -> list[bytes]:
        """The undecoded items of an array of strings."""
        raw, unpack, start = self.raw, _LENGTH.unpack_from, _ARRAY_HEAD.size
        found: list[bytes] = []
        for _ in range(self.count):
            begin = start + _LENGTH.size
            start = begin + unpack(raw, start)[0]
            found.append(raw[begin:start])
        return found

    def pick(self, indices: Sequence[int]) -> MetadataValue:
        """An array of the items at ``indices``, of the same element type (not of strings)."""
        if self.element is None or self.element is GGUFValueType.STRING:
            raise ValueError("is not an array of numbers")
        picked = self._numbers(self.element)[list(indices)]
        return _array(self.element, len(indices), picked.tobytes())

    def _numbers(self, element: GGUFValueType) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
        return np.frombuffer(self.raw, _NUMPY[element], offset=_ARRAY_HEAD.size)


def uint32(value: int) -> MetadataValue:
    """An unsigned 32-bit value."""
    return MetadataValue(GGUFValueType.UINT32, struct.pack("<I", value))


def float32(value: float) -> MetadataValue:
    """A 32-bit floating-point value."""
    return MetadataValue(GGUFValueType.FLOAT32, struct.pack("<f", value))


def boolean(value: bool) -> MetadataValue:  # noqa: FBT001 - the value itself, not a switch
    """A truth value."""
    return MetadataValue(GGUFValueType.BOOL, struct.pack("<?", value))


def string(value: str) -> MetadataValue:
    """A text value, UTF-8."""
    return MetadataValue(GGUFValueType.STRING, encode_string(value))


def uint32_array(values: Sequence[int]) -> MetadataValue:
    """An array of unsigned 32-bit values."""
    return _array(GGUFValueType.UINT32, len(values), struct.pack(f"<{len(values)}I", *values))


def boolean_array(values: Sequence[bool]) -> MetadataValue:
    """An array of truth values."""
    return _array(GGUFValueType.BOOL, len(values), bytes(values))


def encode_string(text: str) -> bytes:
    """A text with its length (uint64) in front, as GGUF stores keys, names and values."""
    data = text.encode()
    return _LENGTH.pack(len(data)) + data


def _array(element: GGUFValueType, count: int, items: bytes) -> MetadataValue:
    head = _ARRAY_HEAD.pack(element, count)
    return MetadataValue(GGUFValueType.ARRAY, head + items, element, count)
