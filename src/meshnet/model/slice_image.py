"""Where everything lies in a slice's file: known from its plan alone, without reading a weight.

So a node that wants a tensor knows where it is in a slice that another node holds.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from meshnet.model.gguf import MAGIC, padded
from meshnet.model.metadata import encode_string
from meshnet.model.slice_plan import SlicePlan

_VERSION: Final = 3


@dataclass(frozen=True, slots=True)
class SliceImage:
    """A slice's file, its data aside."""

    head: bytes
    """All up to the first tensor's data."""
    offsets: tuple[int, ...]
    """Of the planned tensors' data, in bytes from the file's start."""
    total: int
    """Bytes of the whole file."""


def image_of(plan: SlicePlan) -> SliceImage:
    """Lay the planned tensors out one behind the other, aligned as in the model."""
    head = bytearray(MAGIC)
    head += struct.pack("<IQQ", _VERSION, len(plan.tensors), len(plan.metadata))
    for key, value in plan.metadata:
        head += encode_string(key) + value.encode()
    offsets, offset = [], 0
    for tensor in plan.tensors:
        head += encode_string(tensor.name)
        head += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", tensor.type, offset)
        offsets.append(offset)
        offset += padded(tensor.size, plan.alignment)
    start = padded(len(head), plan.alignment)
    return SliceImage(
        bytes(head.ljust(start, b"\0")), tuple(start + each for each in offsets), start + offset
    )
