"""Files that can be read at any place, wherever they lie."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from io import FileIO
from pathlib import Path
from typing import Final

_LOCAL_STEP: Final = 1 << 20


class ByteSource(ABC):
    """A file of ``size`` bytes; ``name`` is what errors call it."""

    name: str
    size: int
    step: int
    """Bytes that are worth asking for at least."""

    @abstractmethod
    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only where the file ends."""


class LocalBytes(ByteSource):
    """An open file of this machine."""

    step = _LOCAL_STEP

    def __init__(self, file: FileIO, path: Path) -> None:
        status = os.fstat(file.fileno())
        self.name = str(path)
        self.size = status.st_size
        self.mtime_ns = status.st_mtime_ns
        self._file = file

    def read(self, offset: int, length: int) -> bytes:
        """The bytes; raises ``OSError`` where the disk does."""
        content = bytearray()
        while len(content) < length:
            piece = os.pread(self._file.fileno(), length - len(content), offset + len(content))
            if not piece:
                break
            content += piece
        return bytes(content)
