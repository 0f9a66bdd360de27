"""Writing a planned slice: one pass over the weights, in order, gone on with where it broke off.

Every byte must be hashed, so every byte passes through here once; letting the kernel copy file
ranges would read them a second time for the hash, and GGUF's 32-byte alignment keeps file systems
from sharing the blocks anyway.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.model.files import new_file
from meshnet.model.gguf import TensorInfo, padded
from meshnet.model.progress import Progress, silent
from meshnet.model.slice_image import image_of
from meshnet.model.slice_plan import SlicePlan
from meshnet.model.weights import CHUNK, WeightFiles, Weights

CHECKPOINT: Final = 64 << 20
"""Bytes after which it is noted how far the file has got."""

_ZEROS: Final = bytes(CHUNK)
_ONE: Final = struct.pack("<f", 1.0)


@dataclass(frozen=True, slots=True)
class WrittenSlice:
    """A slice on disk: ``digest`` is that of the file's bytes, ``size`` their number."""

    path: Path
    digest: Digest
    size: int


@dataclass(frozen=True, slots=True)
class Grown:
    """How far a file has got: its first ``position`` bytes, whose SHA-256 (hex) is ``digest``."""

    position: int
    digest: str


class Journal(Protocol):
    """Remembers how far a file has got, so that another process can go on."""

    def read(self) -> Grown | None:
        """What was noted last; None where the file is new."""

    def note(self, grown: Grown) -> None:
        """Make durable what is in the file, and then that it is."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a slice is filled with."""

    plan: SlicePlan
    weights: Weights
    digests: Mapping[str, str]
    """SHA-256 (hexadecimal) of the model's tensors by name; those that aren't here aren't checked.
    """


def write_slice(
    plan: SlicePlan,
    destination: Path,
    progress: Progress = silent,
    contents: Contents | None = None,
) -> WrittenSlice:
    """Write the slice; ``destination`` appears, or is replaced, only once it is complete.

    ``contents`` is where its weights come from, by default the plan's own files. Raises
    :class:`~meshnet.domain.errors.ModelFileError` when they change or end early meanwhile; for the
    disk's errors see :func:`~meshnet.model.files.new_file`.
    """
    if destination.resolve() in {part.path.resolve() for part in plan.parts}:
        raise InvalidArgumentError("output", "it is the model itself; choose another file")
    contents = contents or Contents(plan, WeightFiles(plan.parts), {})
    with new_file(destination.parent, disk_bytes(plan), "output") as new:
        digest, size = fill_slice(contents, new.file, None, progress)
        return WrittenSlice(new.publish(destination.name), digest, size)


def fill_slice(
    contents: Contents, file: BinaryIO, journal: Journal | None, progress: Progress
) -> tuple[Digest, int]:
    """Write the slice to a file not yet published, from where ``journal`` says it has got to.

    Returns the digest and number of its bytes.
    """
    filling = _Filling(contents, file, journal, progress)
    filling.copy()
    return filling.finish()


def disk_bytes(plan: SlicePlan) -> int:
    """What the slice takes on disk; zeros at the end take nothing."""
    head = len(image_of(plan).head)
    return head + sum(tensor.size for tensor in plan.tensors if not tensor.zeros)


class _Filling:
    """A file in the making: all before ``_position`` is written, and tensor ``_number`` is next."""

    def __init__(
        self, contents: Contents, file: BinaryIO, journal: Journal | None, progress: Progress
    ) -> None:
        plan = contents.plan
        self._plan, self._weights, self._digests = plan, contents.weights, contents.digests
        self._file, self._journal, self._progress = file, journal, progress
        self._image = image_of(plan)
        self._sources = [tensor.source for tensor in plan.tensors if tensor.source is not None]
        # Where each copied tensor starts, and where the last one's padding ends.
        self._starts = [*self._image.offsets, self._image.total][: len(self._sources) + 1]
        self._label = f"slice {plan.layers}"
        self._number = self._position = self._noted = 0
        self._taken_up: int | None = None
        # Hashes of all before the position, of all before the tensor, and of the tensor so far.
        self._all, self._before, self._inside = (hashlib.sha256() for _ in range(3))

    def copy(self) -> None:
        """Write the head and all that comes from the model."""
        if not self._go_on():
            self._restart(0, hashlib.sha256())
            self._write(memoryview(self._image.head))
            self._begin_tensor()
        try:
            with self._weights as weights:
                self._copy_tensors(weights)
                weights.require_unchanged()
        except BaseException:
            self._note()
            raise

    def finish(self) -> tuple[Digest, int]:
        """Write what is the same for every model: ones, and holes that read as zeros."""
        for tensor in self._plan.tensors[len(self._sources) :]:
            left = padded(tensor.size, self._plan.alignment)
            if tensor.ones:
                self._write(memoryview(_ONE * (tensor.size // len(_ONE))))
                left -= tensor.size
            for start in range(0, left, CHUNK):
                zeros = memoryview(_ZEROS)[: min(CHUNK, left - start)]
                self._file.seek(len(zeros), os.SEEK_CUR)
                self._count(zeros)
        self._file.truncate(self._image.total)
        return Digest(f"sha256:{self._all.hexdigest()}"), self._image.total

    def _copy_tensors(self, weights: Weights) -> None:
        """Copy all tensors that aren't there yet; one that isn't what it should be, once more."""
        left = self._sources[self._number :]
        if not left:
            return
        chunks = weights.stream(left, self._position - self._starts[self._number])
        with closing(chunks):
            for source in left:
                self._copy_tensor(source, chunks)
                while self._digests.get(source.name) not in {None, self._inside.hexdigest()}:
                    self._restart(self._starts[self._number], self._before)
                    # What an earlier attempt left of it may be at fault.
                    if self._number != self._taken_up:
                        weights.distrust(source)
                    self._taken_up = None
                    # On its own, so that of what is coming already nothing is asked for again.
                    with closing(weights.stream([source], 0)) as again:
                        self._copy_tensor(source, again)
                padding = self._starts[self._number + 1] - self._position
                self._write(memoryview(bytes(padding)))
                self._number += 1
                self._begin_tensor()

    def _copy_tensor(self, source: TensorInfo, chunks: Iterator[memoryview]) -> None:
        """Copy what is missing of the tensor that is next."""
        end = self._starts[self._number] + source.size
        while self._position < end:
            chunk = next(chunks)
            self._inside.update(chunk)
            self._write(chunk)

    def _go_on(self) -> bool:
        """Take up what an earlier attempt left, if it still is what was noted."""
        grown = self._journal.read() if self._journal is not None else None
        if grown is None or not len(self._image.head) <= grown.position <= self._starts[-1]:
            return False
        self._position = self._noted = grown.position
        self._number = sum(start <= grown.position for start in self._starts[1:])
        self._taken_up = self._number
        self._file.seek(0)
        self._hash_up_to(self._starts[self._number])
        self._begin_tensor()
        self._hash_up_to(grown.position)
        self._file.truncate(grown.position)
        self._file.seek(grown.position)
        return self._all.hexdigest() == grown.digest

    def _hash_up_to(self, end: int) -> None:
        while chunk := self._file.read(min(end - self._file.tell(), CHUNK)):
            self._all.update(chunk)
            self._inside.update(chunk)

    def _begin_tensor(self) -> None:
        self._before, self._inside = self._all.copy(), hashlib.sha256()

    def _restart(self, position: int, before: hashlib._Hash) -> None:
        """Drop all from ``position`` on, before which ``before`` is the hash."""
        self._all, self._position = before.copy(), position
        self._begin_tensor()
        self._noted = min(self._noted, position)
        if not position:
            self._number = 0
        self._file.seek(position)
        self._file.truncate()

    def _write(self, chunk: memoryview) -> None:
        self._file.write(chunk)
        self._count(chunk)
        if self._position - self._noted >= CHECKPOINT and self._number < len(self._sources):
            self._note()

    def _count(self, chunk: memoryview) -> None:
        self._all.update(chunk)
        self._position += len(chunk)
        self._progress(self._label, self._position, self._image.total)

    def _note(self) -> None:
        if self._journal is not None and self._position > self._noted:
            self._journal.note(Grown(self._position, self._all.hexdigest()))
            self._noted = self._position
