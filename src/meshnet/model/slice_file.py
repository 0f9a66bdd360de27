"""Writing a planned slice: one pass over the weights, in chunks, nothing left behind on failure.

Every byte must be hashed, so every byte passes through here once; letting the kernel copy file
ranges would read them a second time for the hash, and GGUF's 32-byte alignment keeps file systems
from sharing the blocks anyway.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.model.files import NewFile, new_file
from meshnet.model.gguf import MAGIC, padded
from meshnet.model.metadata import encode_string
from meshnet.model.progress import Progress, silent
from meshnet.model.slice_plan import SlicePlan
from meshnet.model.weights import CHUNK, WeightFiles

_VERSION: Final = 3
_ZEROS: Final = bytes(CHUNK)
_ONE: Final = struct.pack("<f", 1.0)


@dataclass(frozen=True, slots=True)
class WrittenSlice:
    """A slice on disk: ``digest`` is that of the file's bytes, ``size`` their number."""

    path: Path
    digest: Digest
    size: int


def write_slice(plan: SlicePlan, destination: Path, progress: Progress = silent) -> WrittenSlice:
    """Write the slice; ``destination`` appears, or is replaced, only once it is complete.

    Raises :class:`~meshnet.domain.errors.ModelFileError` when the model's files change or end
    early meanwhile; for the disk's errors see :func:`~meshnet.model.files.new_file`.
    """
    if destination.resolve() in {part.path.resolve() for part in plan.parts}:
        raise InvalidArgumentError("output", "it is the model itself; choose another file")
    with new_file(destination.parent, copied_bytes(plan), "output") as new:
        digest, size = fill_slice(plan, new, progress)
        return WrittenSlice(new.publish(destination.name), digest, size)


def fill_slice(plan: SlicePlan, new: NewFile, progress: Progress) -> tuple[Digest, int]:
    """Write the slice to a file not yet published; returns the digest and number of its bytes."""
    head = _head(plan)
    total = len(head) + sum(padded(tensor.size, plan.alignment) for tensor in plan.tensors)
    hashed, done, label = hashlib.sha256(), 0, f"slice {plan.layers}"
    with WeightFiles(plan.parts) as weights:
        for chunk in _contents(plan, head, weights):
            hashed.update(chunk)
            if chunk.obj is _ZEROS:
                new.file.seek(len(chunk), os.SEEK_CUR)
            else:
                new.file.write(chunk)
            done += len(chunk)
            progress(label, done, total)
        weights.require_unchanged()
    new.file.truncate(total)
    return Digest(f"sha256:{hashed.hexdigest()}"), total


def copied_bytes(plan: SlicePlan) -> int:
    """What the slice's weights take on disk; zeros at the end take nothing."""
    return sum(tensor.size for tensor in plan.tensors if not tensor.zeros)


def _contents(plan: SlicePlan, head: bytes, weights: WeightFiles) -> Iterator[memoryview]:
    yield memoryview(head)
    for tensor in plan.tensors:
        size = padded(tensor.size, plan.alignment)
        if tensor.source is not None:
            yield from weights.read(tensor.source)
            size -= tensor.size
        elif tensor.ones:
            yield memoryview(_ONE * (tensor.size // len(_ONE)))
            size -= tensor.size
        yield from _zeros(size)


def _zeros(count: int) -> Iterator[memoryview]:
    for start in range(0, count, CHUNK):
        yield memoryview(_ZEROS)[: min(CHUNK, count - start)]


def _head(plan: SlicePlan) -> bytes:
    head = bytearray(MAGIC)
    head += struct.pack("<IQQ", _VERSION, len(plan.tensors), len(plan.metadata))
    for key, value in plan.metadata:
        head += encode_string(key) + value.encode()
    offset = 0
    for tensor in plan.tensors:
        head += encode_string(tensor.name)
        head += struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        head += struct.pack("<IQ", tensor.type, offset)
        offset += padded(tensor.size, plan.alignment)
    return bytes(head.ljust(padded(len(head), plan.alignment), b"\0"))
