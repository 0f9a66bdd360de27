"""Reading the head of a GGUF file front to back, never further than the file or a limit goes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

from meshnet.domain.errors import ModelFileError
from meshnet.model.bytesource import ByteSource

MAX_HEADER: Final = 256 << 20
"""Bytes of metadata and tensor list; the largest vocabularies take some 30 MiB."""

_MAX_KEY: Final = 65535
_UINT32: Final = struct.Struct("<I")
_UINT64: Final = struct.Struct("<Q")


def file_error(path: Path | str, field: str, problem: str) -> ModelFileError:
    """The error that names a file, a key, tensor or header field of it, and what is wrong."""
    return ModelFileError(f"{path}: {field}: {problem}", file=str(path), field=field)


class GgufCursor:
    """A position in the head of a file; ``field`` in its methods names what is being read."""

    def __init__(self, source: ByteSource) -> None:
        self.size = source.size
        self.position = 0
        self._source = source
        self._head = bytearray()

    def error(self, field: str, problem: str) -> ModelFileError:
        """The error that says what is wrong with ``field`` of this file."""
        return file_error(self._source.name, field, problem)

    def expect(self, count: int, field: str) -> None:
        """Check that the file has ``count`` more bytes, without reading them."""
        if self.position + count > self.size:
            raise self.error(
                field, f"needs {count} bytes at byte {self.position}, but the file has {self.size}"
            )

    def skip(self, count: int, field: str) -> None:
        """Go past ``count`` bytes, which :meth:`since` can return."""
        self._load(self.position + count, field)
        self.position += count

    def take(self, count: int, field: str) -> bytes:
        """The next ``count`` bytes."""
        start = self.position
        self.skip(count, field)
        return self.since(start)

    def since(self, start: int) -> bytes:
        """The bytes from ``start`` to here."""
        return bytes(self._head[start : self.position])

    def uint32(self, field: str) -> int:
        """The next unsigned 32-bit integer."""
        value: int = _UINT32.unpack(self.take(_UINT32.size, field))[0]
        return value

    def uint64(self, field: str) -> int:
        """The next unsigned 64-bit integer."""
        value: int = _UINT64.unpack(self.take(_UINT64.size, field))[0]
        return value

    def name(self, field: str, limit: int = _MAX_KEY) -> str:
        """The next key or name: UTF-8 of 1 to ``limit`` bytes."""
        length = self.uint64(field)
        if not 0 < length <= limit:
            raise self.error(field, f"is {length} bytes long; 1 to {limit} are allowed")
        try:
            text = self.take(length, field).decode()
        except UnicodeDecodeError as error:
            raise self.error(field, "isn't UTF-8") from error
        if "\0" in text:
            raise self.error(field, "has a zero byte in it")
        return text

    def skip_strings(self, count: int, field: str) -> None:
        """Go past ``count`` strings, each with its length in front."""
        self.expect(count * _UINT64.size, field)
        head, unpack, width = self._head, _UINT64.unpack_from, _UINT64.size
        position, loaded = self.position, len(head)
        for left in range(count, 0, -1):
            if position + width > loaded:
                self._load(position + width, field, position + width * left)
                loaded = len(head)
            position += width + unpack(head, position)[0]
        self._load(position, field)
        self.position = position

    def _load(self, end: int, field: str, at_least: int = 0) -> None:
        """Have the bytes up to ``end``; ``at_least`` is as far as will surely be read."""
        missing = end - len(self._head)
        if missing <= 0:
            return
        self.expect(end - self.position, field)
        if end > MAX_HEADER:
            raise self.error(field, f"lies behind {MAX_HEADER} bytes of header, the most allowed")
        wanted = max(missing, self._source.step, min(at_least, MAX_HEADER) - len(self._head))
        self._head += self._source.read(len(self._head), wanted)
        if len(self._head) < end:
            raise self.error(field, "the file became shorter while it was read")
