"""Reading the weights of a model, chunk by chunk, wherever they lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from meshnet.model.gguf import GgufPart, TensorInfo
from meshnet.model.gguf_cursor import file_error

CHUNK: Final = 4 << 20


class Weights(ABC):
    """A model's weights, open for reading.

    Methods raise :class:`~meshnet.domain.errors.ModelFileError`, naming the file, when one is
    gone, can't be read, ends early, or isn't the one any more that was indexed.
    """

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @abstractmethod
    def stream(self, tensors: Sequence[TensorInfo], skip: int) -> Generator[memoryview, None, None]:
        """The tensors' data one after the other, from byte ``skip`` of the first one on.

        No chunk reaches from one tensor into the next; each is valid until the next is asked for.
        """

    @abstractmethod
    def distrust(self, tensor: TensorInfo) -> None:
        """Read this tensor from elsewhere from now on: what came wasn't what it should be.

        Raises :class:`~meshnet.domain.errors.ModelFileError` if there is no elsewhere.
        """

    @abstractmethod
    def require_unchanged(self) -> None:
        """Check, after the last read, that all of it came from the files that were indexed."""


class WeightFiles(Weights):
    """The open files of a model on this machine."""

    def __init__(self, parts: tuple[GgufPart, ...]) -> None:
        self._parts = parts
        self._files: list[FileIO] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._files = [opened.enter_context(_open(part.path)) for part in self._parts]
            self._stack = opened.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def stream(self, tensors: Sequence[TensorInfo], skip: int) -> Generator[memoryview, None, None]:
        """As in the base class; raises when a file becomes shorter meanwhile."""
        for number, tensor in enumerate(tensors):
            yield from self.read(tensor, 0 if number else skip)

    def read(self, tensor: TensorInfo, skip: int = 0) -> Iterator[memoryview]:
        """One tensor's data from byte ``skip`` on, in chunks as in :meth:`stream`."""
        path, file = self._parts[tensor.part].path, self._files[tensor.part]
        left = tensor.size - skip
        buffer = memoryview(bytearray(min(CHUNK, left)))
        try:
            file.seek(tensor.offset + skip)
            while left:
                count = file.readinto(buffer[: min(left, len(buffer))])
                if not count:
                    raise file_error(path, tensor.name, "the file became shorter meanwhile")
                yield buffer[:count]
                left -= count
        except OSError as error:
            raise file_error(path, tensor.name, f"can't be read: {error.strerror}") from error

    def distrust(self, tensor: TensorInfo) -> None:
        """Raise: there is one file of each part."""
        path = self._parts[tensor.part].path
        raise file_error(path, tensor.name, "its data aren't those that were hashed; try again")

    def require_unchanged(self) -> None:
        """Check, after the last read, that all of it came from the files that were indexed."""
        for part in self._parts:
            try:
                status = part.path.stat()
            except OSError as error:
                raise file_error(part.path, "file", f"is gone: {error.strerror}") from error
            if (status.st_size, status.st_mtime_ns) != (part.size, part.mtime_ns):
                raise file_error(part.path, "file", "changed while it was read; try again")


def _open(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise file_error(path, "file", f"can't be read: {error.strerror}") from error
