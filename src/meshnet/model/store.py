"""The files of a cache: which are used by whom, and which must go when there are too many.

A process that uses a slice pins it: it holds a shared lock on the file, which ends with the process
however it dies. What is pinned by anybody is never removed; of the rest, the one that was asked for
the longest ago goes first.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.files import lock, new_file
from meshnet.model.partial import PARTIAL, journal_of

_BLOBS: Final = "blobs"
_ENTRIES: Final = "slices"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Stored:
    """What is remembered of a slice."""

    digest: Digest
    size: int
    """Bytes of the file, holes included."""
    model: str = ""
    """What tells models apart whose tensors have the same bytes; empty where nothing does."""
    start: int = 0
    end: int = 0
    """The layers; both 0 in entries of older versions."""
    whole: str = ""
    """The model's digest; empty for what was cut from files of this machine."""


class SliceStore:
    """The slices under ``root``, of which ``limit`` bytes on disk are kept, or all if it is None.

    Pins last until they are released, the store is closed or collected, or the process ends.
    """

    def __init__(self, root: Path, limit: int | None) -> None:
        if limit is not None and limit <= 0:
            raise InvalidArgumentError("cache-size", f"is {limit} bytes, but must be more than 0")
        self.folder = root / _BLOBS
        self._entries = root / _ENTRIES
        self._limit = limit
        self._pins: dict[Path, int] = {}
        self._lock = threading.Lock()
        weakref.finalize(self, _close_all, self._pins)

    def find(self, key: str) -> tuple[Stored, Path] | None:
        """The slice and its file, pinned, if it still looks like the one that was written."""
        entry = self._entries / f"{key}.json"
        stored = _read_entry(entry)
        if stored is None:
            return None
        path = self.folder / blob_name(stored.digest)
        if not self._pin(path, stored.size):
            return None
        with suppress(OSError):  # in somebody else's cache, who keeps it as they use it
            os.utime(entry)
        return stored, path

    def record(self, key: str, stored: Stored) -> None:
        """Remember the slice, whose file will be in its place at once."""
        with new_file(self._entries) as new:
            entry = {
                "digest": stored.digest,
                "size": stored.size,
                "model": stored.model,
                "start": stored.start,
                "end": stored.end,
                "whole": stored.whole,
            }
            new.file.write(json.dumps(entry).encode())
            new.publish(f"{key}.json")

    def slices_of(self, model: str) -> Iterator[tuple[LayerRange, Path]]:
        """The slices that are kept of a model, and their files; the last used first."""
        for stored, path in self.kept():
            if stored.model == model:
                yield LayerRange(stored.start, stored.end), path

    def kept(self) -> Iterator[tuple[Stored, Path]]:
        """The slices whose layers are known, and their files; the last used first."""
        entries = [(_used(path), path) for path in self._entries.glob("*.json")]
        for _, entry in sorted(entries, reverse=True):
            stored = _read_entry(entry)
            if stored is None or stored.end <= stored.start:
                continue
            path = self.folder / blob_name(stored.digest)
            if _size(path) == stored.size:
                yield stored, path

    def make_room(self, size: int, growing: str) -> None:
        """Remove what isn't in use until ``size`` more bytes fit within the limit.

        ``growing`` names the partial file that they are for. Raises
        :class:`ResourceExhaustedError` when they can't.
        """
        if self._limit is None:
            return
        own = self.folder / f"{growing}{PARTIAL}"
        held = {path: _on_disk(path) for path in self._files() if path != own}
        used = self._used_by_blob()
        for path in sorted(held, key=lambda path: used.get(path) or _used(path)):
            if sum(held.values()) + size <= self._limit:
                return
            if _remove(path):
                held.pop(path)
                self._forget(path)
        if sum(held.values()) + size > self._limit:
            raise ResourceExhaustedError(
                f"{size} bytes are needed in the cache, which may hold {self._limit}, of which "
                f"{sum(held.values())} are in use: raise --cache-size, or end nodes that use them"
            )

    def release(self, path: Path) -> None:
        """Give up this store's pin on a file."""
        with self._lock:
            descriptor = self._pins.pop(path, None)
            if descriptor is not None:
                os.close(descriptor)

    def close(self) -> None:
        """Give up all of this store's pins."""
        with self._lock:
            _close_all(self._pins)

    def _pin(self, path: Path, size: int) -> bool:
        with self._lock:
            if path in self._pins and _is(self._pins[path], path, size):
                return True
            pinned = _shared(path)
            if pinned is not None and not _is(pinned, path, size):
                os.close(pinned)
                pinned = None
            if pinned is None:
                return False
            before = self._pins.pop(path, None)
            if before is not None:
                os.close(before)
            self._pins[path] = pinned
            return True

    def _files(self) -> Iterator[Path]:
        yield from self.folder.glob("sha256-*.gguf")
        yield from self.folder.glob(f"*{PARTIAL}")

    def _used_by_blob(self) -> Mapping[Path, float]:
        used: dict[Path, float] = {}
        for entry in self._entries.glob("*.json"):
            stored = _read_entry(entry)
            if stored is not None:
                path = self.folder / blob_name(stored.digest)
                used[path] = max(used.get(path, 0.0), _used(entry))
        return used

    def _forget(self, blob: Path) -> None:
        for entry in self._entries.glob("*.json"):
            stored = _read_entry(entry)
            if stored is not None and blob_name(stored.digest) == blob.name:
                entry.unlink(missing_ok=True)


def blob_name(digest: Digest) -> str:
    """What the file of that digest is called."""
    return f"{digest.replace(':', '-')}.gguf"


def _shared(path: Path) -> int | None:
    """The file, open and held as one that is used; None where it is gone or about to be."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _remove(path: Path) -> bool:
    """Remove a file unless somebody uses it."""
    try:
        with path.open("rb") as file:
            if not lock(file):
                return False
            path.unlink(missing_ok=True)
            if path.suffix == PARTIAL:
                journal_of(path).unlink(missing_ok=True)
    except FileNotFoundError:
        return True
    return True


def _is(descriptor: int, path: Path, size: int) -> bool:
    """Whether the open file is the one at ``path``, and as long as it should be."""
    status = os.fstat(descriptor)
    try:
        return status.st_size == size and os.path.samestat(status, path.stat())
    except FileNotFoundError:
        return False


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _size(path: Path) -> int | None:
    """Bytes of a file; None for one that is gone, as any may be at any moment."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _on_disk(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except FileNotFoundError:
        return 0


def _close_all(pins: dict[Path, int]) -> None:
    while pins:
        os.close(pins.popitem()[1])


def _read_entry(path: Path) -> Stored | None:
    """The entry, or None where there is none, or one that is no entry: it is then made anew."""
    try:
        entry = json.loads(path.read_bytes())
        digest, size = entry["digest"], entry["size"]
        about = entry.get("model", ""), entry.get("start", 0), entry.get("end", 0)
        whole = entry.get("whole", "")
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None
    except OSError as error:
        raise InvalidArgumentError("cache", f"{path} can't be read: {error.strerror}") from error
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest) and isinstance(size, int)):
        return None
    if not (isinstance(about[0], str) and isinstance(about[1], int) and isinstance(about[2], int)):
        return None
    return Stored(Digest(digest), size, *about, whole if isinstance(whole, str) else "")
