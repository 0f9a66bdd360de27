"""Reading the weights of a model's files, chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from meshnet.model.gguf import GgufPart, TensorInfo
from meshnet.model.gguf_cursor import file_error

CHUNK: Final = 4 << 20


class WeightFiles:
    """The open files of a model.

    Its methods raise :class:`~meshnet.domain.errors.ModelFileError`, naming the file, when one is
    gone, can't be read, ends early, or isn't the one any more that was indexed.
    """

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

    def read(self, tensor: TensorInfo) -> Iterator[memoryview]:
        """The tensor's data in chunks; each is valid until the next one is asked for."""
        path, file = self._parts[tensor.part].path, self._files[tensor.part]
        buffer = memoryview(bytearray(min(CHUNK, tensor.size)))
        left = tensor.size
        try:
            file.seek(tensor.offset)
            while left:
                count = file.readinto(buffer[: min(left, len(buffer))])
                if not count:
                    raise file_error(path, tensor.name, "the file became shorter meanwhile")
                yield buffer[:count]
                left -= count
        except OSError as error:
            raise file_error(path, tensor.name, f"can't be read: {error.strerror}") from error

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
