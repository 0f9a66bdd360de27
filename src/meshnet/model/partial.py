"""Files that grow over several attempts, one process at a time.

``<name>.partial`` is the file, whose writer holds a lock on it; ``<name>.journal`` says how far it
has got. A writer that dies leaves both, and the next one goes on from there.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.model.files import disk_errors, lock, new_file, prepare_folder, publish
from meshnet.model.slice_file import Grown

PARTIAL: Final = ".partial"
_JOURNAL: Final = ".journal"
_STUCK_SECONDS: Final = 600.0
"""How long another process may get on with nothing before it isn't waited for any more."""
_LOOK_SECONDS: Final = 0.1


class PartialFile:
    """A file in the making that this process alone writes."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self._path = path

    def read(self) -> Grown | None:
        """How far it has got; None where that isn't known."""
        try:
            noted = json.loads(journal_of(self._path).read_bytes())
            position, digest = noted["position"], noted["digest"]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None
        if not isinstance(position, int) or not isinstance(digest, str):
            return None
        return Grown(position, digest)

    def note(self, grown: Grown) -> None:
        """Make durable what is in the file, and then that it is."""
        self.file.flush()
        os.fsync(self.file.fileno())
        with new_file(self._path.parent) as new:
            noted = {"position": grown.position, "digest": grown.digest}
            new.file.write(json.dumps(noted).encode())
            new.publish(journal_of(self._path).name)

    def publish(self, name: str) -> None:
        """Give the finished file its real name in the same folder, unless one of it is there.

        From then on this process holds it as one that uses it.
        """
        fcntl.flock(self.file, fcntl.LOCK_SH)
        target = self._path.with_name(name)
        if target.exists() and target.stat().st_size == os.fstat(self.file.fileno()).st_size:
            self._path.unlink()
        else:
            publish(self.file, self._path, name)
        journal_of(self._path).unlink(missing_ok=True)


@contextmanager
def partial_file(
    folder: Path, name: str, size: int, wait: Callable[[float], object]
) -> Iterator[PartialFile]:
    """The file ``name`` that some process may have begun; waits while another one writes it.

    ``wait`` sleeps for some seconds, and raises when the caller has had enough. Raises
    :class:`ResourceExhaustedError` when the disk hasn't room for ``size`` bytes in all or the other
    process doesn't get on, and :class:`~meshnet.domain.errors.InvalidArgumentError` naming the
    cache when the folder can't be written.
    """
    path = folder / f"{name}{PARTIAL}"
    with disk_errors(folder, size):
        prepare_folder(folder, 0)
        with _opened(path, wait) as file:
            there = os.fstat(file.fileno()).st_blocks * 512
            prepare_folder(folder, max(0, size - there))
            yield PartialFile(file, path)


def journal_of(path: Path) -> Path:
    """The journal of the partial file at ``path``."""
    return path.with_suffix(_JOURNAL)


@contextmanager
def _opened(path: Path, wait: Callable[[float], object]) -> Iterator[BinaryIO]:
    """The file, for this process alone; whoever had it before may have published it meanwhile."""
    while True:
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644), "r+b") as file:
            if not _taken(file, path, wait):
                continue
            try:
                yield file
            finally:
                if not os.fstat(file.fileno()).st_size and _is_at(file, path):
                    path.unlink()
            return


def _taken(file: BinaryIO, path: Path, wait: Callable[[float], object]) -> bool:
    """Wait until no other process writes the file; False if it isn't the one at ``path`` then."""
    size, since = -1, time.monotonic()
    while _is_at(file, path):
        if lock(file):
            return _is_at(file, path)
        if (now := os.fstat(file.fileno()).st_size) != size:
            size, since = now, time.monotonic()
        if time.monotonic() - since > _STUCK_SECONDS:
            raise ResourceExhaustedError(
                f"{path}: another process writes it, and hasn't got on for "
                f"{_STUCK_SECONDS:.0f} s; end that process, or try again later"
            )
        wait(_LOOK_SECONDS)
    return False


def _is_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False
