"""Files that appear whole or not at all, and what becomes of those whose writer died."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError

_UNFINISHED: Final = ".unfinished"
_OURS: Final = ".meshnet-"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class NewFile:
    """A file under a name of its own until :meth:`publish` gives it its real one."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self.file = file
        self._path = path

    def publish(self, name: str) -> Path:
        """Make it durable and give it ``name`` in the same folder, replacing what was there."""
        return publish(self.file, self._path, name)


def publish(file: BinaryIO, path: Path, name: str) -> Path:
    """Make the open ``file`` at ``path`` durable under ``name`` in the same folder."""
    target = path.with_name(name)
    file.flush()
    os.fsync(file.fileno())
    path.replace(target)
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return target


@contextmanager
def new_file(folder: Path, size: int = 0, field: str = "cache") -> Iterator[NewFile]:
    """A new file in ``folder``, which is made if need be; gone at the end unless published.

    Raises :class:`ResourceExhaustedError` when the disk has no ``size`` bytes left or gets full,
    and :class:`InvalidArgumentError` naming ``field`` when the folder can't be written.
    """
    with disk_errors(folder, size, field):
        prepare_folder(folder, size)
        remove_unfinished(folder)
        file, path = _create(folder)
        try:
            with file:
                yield NewFile(file, path)
        finally:
            path.unlink(missing_ok=True)


def prepare_folder(folder: Path, size: int) -> None:
    """Make the folder; raises :class:`ResourceExhaustedError` unless ``size`` bytes are free."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < size:
        raise ResourceExhaustedError(
            f"{folder} has {free} bytes left, but {size} are needed; free some or choose "
            f"another folder"
        )


@contextmanager
def disk_errors(folder: Path, size: int, field: str = "cache") -> Iterator[None]:
    """Tell the disk's errors as ours; ``size`` is how many bytes were to be written at least.

    Raises :class:`ResourceExhaustedError` when it is full, and :class:`InvalidArgumentError` naming
    ``field`` when the folder can't be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            needed = f"; {size} bytes are needed in all" if size else ""
            raise ResourceExhaustedError(f"{folder}: no space left on the disk{needed}") from error
        problem = f"{folder} can't be written: {error.strerror}"
        raise InvalidArgumentError(field, problem) from error


def remove_unfinished(folder: Path) -> None:
    """Delete what killed writers left in ``folder``; a living writer holds a lock on its file."""
    for path in folder.glob(f"{_OURS}*{_UNFINISHED}"):
        try:
            with path.open("rb") as file:
                if lock(file):
                    path.unlink(missing_ok=True)
        except (FileNotFoundError, PermissionError):
            continue  # its writer published it just now, or it is somebody else's


def _create(folder: Path) -> tuple[BinaryIO, Path]:
    while True:
        path = folder / f"{_OURS}{secrets.token_hex(8)}{_UNFINISHED}"
        file = path.open("xb+")
        # Between creation and lock another process may have taken it for a dead writer's.
        if lock(file) and path.exists():
            return file, path
        file.close()


def lock(file: BinaryIO) -> bool:
    """Take the file for this process alone; False if another one has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
