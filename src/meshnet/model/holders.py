"""Who has a model's tensors, and where in whose files they lie."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshnet.domain.errors import CancelledError, MeshnetError
from meshnet.model.gguf import GgufIndex, TensorInfo
from meshnet.model.gguf_cursor import file_error
from meshnet.model.slice_image import image_of
from meshnet.model.slice_plan import SlicePlan

Reader = Callable[[bytearray, int, int, int], None]
"""Adds to an empty buffer what is in a file (its number), from an offset on, of a length; what came
before an error stays in the buffer."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Bytes ``[start, stop)`` of a tensor's data."""

    tensor: TensorInfo
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's data start: in which of a holder's files, and at which byte."""

    file: int
    offset: int


def places_in_model(index: GgufIndex) -> dict[str, Place]:
    """Where the model's tensors lie in its own files."""
    return {name: Place(each.part, each.offset) for name, each in index.tensors.items()}


def places_in_slice(plan: SlicePlan) -> tuple[dict[str, Place], int]:
    """Where those of the model's tensors lie that a slice has, and the size of its file."""
    image = image_of(plan)
    offsets = zip(plan.tensors, image.offsets, strict=True)
    places = {each.source.name: Place(0, offset) for each, offset in offsets if each.source}
    return places, image.total


@dataclass(frozen=True, slots=True)
class Came:
    """What came of the segments that were asked for, in their order."""

    pieces: tuple[tuple[Segment, memoryview], ...]
    """With an error not all of them, and of the last one maybe its beginning."""
    error: MeshnetError | None = None


class Holder(ABC):
    """Something that has some or all of a model's tensors; those of a low ``tier`` come first."""

    def __init__(
        self, name: str, places: Mapping[str, Place], alignment: int, tier: int = 0
    ) -> None:
        self.name, self.tier = name, tier
        self._places, self._alignment = places, alignment

    def has(self, tensor: TensorInfo) -> bool:
        """Whether it has this tensor."""
        return tensor.name in self._places

    def fetch(self, segments: Sequence[Segment]) -> Came:
        """The segments' bytes, or what came of them; raises :class:`CancelledError` alone."""
        found: list[tuple[Segment, memoryview]] = []
        for run in self._runs(segments):
            first = self._places[run[0].tensor.name]
            begin, end = first.offset + run[0].start, self._end(run[-1])
            content, problem = bytearray(), None
            try:
                self._fill(content, first.file, begin, end - begin)
            except CancelledError:
                raise
            except MeshnetError as error:
                problem = error
            found += self._cut(memoryview(content), run, begin)
            if problem is not None:
                return Came(tuple(found), problem)
        return Came(tuple(found))

    def _cut(
        self, content: memoryview, run: Sequence[Segment], begin: int
    ) -> Iterator[tuple[Segment, memoryview]]:
        """What ``content``, which starts at byte ``begin``, has of the segments."""
        for segment in run:
            start = self._places[segment.tensor.name].offset + segment.start - begin
            part = content[start : start + len(segment)]
            if part:
                yield replace(segment, stop=segment.start + len(part)), part

    def abort(self) -> None:
        """End what other threads are reading."""
        return

    @abstractmethod
    def _fill(self, content: bytearray, file: int, offset: int, length: int) -> None:
        """Add just those bytes to ``content``; what came before an error stays there."""

    def _runs(self, segments: Sequence[Segment]) -> Iterator[list[Segment]]:
        """Segments that follow on each other with nothing but padding between them."""
        run: list[Segment] = []
        for segment in segments:
            place = self._places[segment.tensor.name]
            if run:
                gap = place.offset + segment.start - self._end(run[-1])
                same = place.file == self._places[run[-1].tensor.name].file
                if not (same and 0 <= gap < self._alignment):
                    yield run
                    run = []
            run.append(segment)
        if run:
            yield run

    def _end(self, segment: Segment) -> int:
        return self._places[segment.tensor.name].offset + segment.stop


class DiskHolder(Holder):
    """A slice in this machine's own cache; it stays readable though it may be removed meanwhile."""

    def __init__(self, path: Path, places: Mapping[str, Place], alignment: int) -> None:
        super().__init__(str(path), places, alignment)
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Give the file back."""
        os.close(self._descriptor)

    def _fill(self, content: bytearray, file: int, offset: int, length: int) -> None:
        try:
            content += os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise file_error(self.name, "file", f"can't be read: {error.strerror}") from error
        if len(content) < length:
            raise file_error(self.name, "file", "became shorter meanwhile")


class RangeHolder(Holder):
    """Files that ``read`` gives ranges of until ``abort``."""

    def __init__(
        self,
        name: str,
        places: Mapping[str, Place],
        alignment: int,
        read: Reader,
        abort: Callable[[], None],
        tier: int = 0,
    ) -> None:
        super().__init__(name, places, alignment, tier)
        self._ranges, self._abort = read, abort

    def abort(self) -> None:
        """End what other threads are reading."""
        self._abort()

    def _fill(self, content: bytearray, file: int, offset: int, length: int) -> None:
        self._ranges(content, file, offset, length)


def pieces(tensors: Sequence[TensorInfo], skip: int, most: int) -> Iterator[tuple[Segment, ...]]:
    """The tensors' data from byte ``skip`` of the first on, in pieces of up to ``most`` bytes."""
    piece: list[Segment] = []
    room = most
    for number, tensor in enumerate(tensors):
        start = 0 if number else skip
        while start < tensor.size:
            stop = min(tensor.size, start + room)
            piece.append(Segment(tensor, start, stop))
            room -= stop - start
            start = stop
            if not room:
                yield tuple(piece)
                piece, room = [], most
    if piece:
        yield tuple(piece)
