"""What a node keeps about itself on its disk: its key, its certificate, and how often it started.

::

    key.pem           the private key, for the owner alone (0600)
    certificate.pem   what the cluster's authority issued for it, once joined
    authority.pem     that authority's certificate
    incarnation       how often the node has started, in decimal digits
    removed           ids of nodes that the cluster removed lately, one a line

A file is replaced as a whole or not at all, so a node that dies at any moment finds a valid folder.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import NodeId
from meshnet.transport.certificates import (
    Authority,
    new_key,
    node_id_of,
    public_key_of,
    read_private_key,
)
from meshnet.transport.tls import Identity

LOCK_SECONDS: Final = 5.0
"""How long another process may take to write into the folder."""
_LOCK_PAUSE_SECONDS: Final = 0.01


@dataclass(frozen=True, slots=True)
class IdentityFiles:
    """Where an identity is, for a process that is told of it."""

    key: Path
    certificate: Path
    authority: Path

    @property
    def removed(self) -> Path:
        """The list of nodes that the cluster removed lately; beside the key."""
        return self.key.with_name("removed")

    def load(self) -> Identity:
        """Read it; raises :class:`InvalidArgumentError` naming what is missing or wrong."""
        return Identity(
            _read_secret(self.key, "key"),
            _read(self.certificate, "certificate"),
            _read(self.authority, "authority"),
        )


class IdentityFolder:
    """A node's identity folder; made, for the owner alone, when it isn't there.

    Methods raise :class:`InvalidArgumentError` ("identity", "key", ...) for a folder that can't be
    used, and say why.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(path, error) from error

    @property
    def files(self) -> IdentityFiles:
        """Where its files are, whether they are there or not."""
        return IdentityFiles(
            self._path / "key.pem", self._path / "certificate.pem", self._path / "authority.pem"
        )

    def key(self) -> bytes:
        """The private key (PEM), made at first."""
        return _load_or_make_key(self._path, self.files.key)

    def public_key(self) -> bytes:
        """Its public half (PEM), which the tracker certifies."""
        return public_key_of(self.key())

    def node_id(self) -> NodeId:
        """The node's id, the same for as long as its key is kept."""
        return node_id_of(self.public_key())

    def keep(self, certificate_pem: bytes, authority_pem: bytes) -> Identity:
        """Store what a join or a renewal gave, which must fit the key; gives the identity."""
        identity = Identity(self.key(), certificate_pem, authority_pem)
        files = self.files
        if files.authority.exists() and _read(files.authority, "authority") != authority_pem:
            # Of another cluster: never beside that one's certificate, not even for a moment.
            files.certificate.unlink(missing_ok=True)
        _replace(files.authority, authority_pem)
        _replace(files.certificate, certificate_pem)
        return identity

    def refuse(self, removed: Iterable[NodeId]) -> None:
        """List the nodes that this one's server answers no more, these and no others."""
        file, text = self.files.removed, "".join(f"{node_id}\n" for node_id in sorted(removed))
        if text.encode() != (_read(file, "removed") if file.exists() else b""):
            _replace(file, text.encode())

    def identity(self) -> Identity | None:
        """The identity; None as long as the node hasn't joined."""
        files = self.files
        if not files.certificate.exists() or not files.authority.exists():
            return None
        return files.load()

    def next_incarnation(self) -> int:
        """Count a start, from 1; the number is on the disk before this returns."""
        file = self._path / "incarnation"
        with _locked(self._path):
            text = _read(file, "incarnation").decode(errors="replace") if file.exists() else "0"
            if not (text.isascii() and text.strip().isdigit()):
                raise InvalidArgumentError("incarnation", f"{file} holds no number: {text[:40]!r}")
            count = int(text) + 1
            _replace(file, f"{count}\n".encode())
        return count


def load_or_make_authority(path: Path, cluster_name: str) -> Authority:
    """The authority in a folder, made at first.

    It is ``authority.pem``, and ``authority-key.pem`` for the owner alone; neither is ever made
    beside the other. Raises
    :class:`InvalidArgumentError` if only one of them is there, or they can't be read.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable(path, error) from error
    key, certificate = path / "authority-key.pem", path / "authority.pem"
    with _locked(path):
        if not certificate.exists():
            if key.exists():
                # Another key would be another cluster, which no machine of this one belongs to.
                raise InvalidArgumentError(
                    "authority",
                    f"{key} is there, but {certificate} isn't; put it back (every machine that "
                    "joined has the same authority.pem), or delete the key to begin a new cluster",
                )
            authority = Authority.create(cluster_name)
            _replace(key, authority.key_pem, mode=0o600)
            try:
                _replace(certificate, authority.certificate_pem)
            except InvalidArgumentError:
                # Nobody has heard of this authority yet.
                key.unlink(missing_ok=True)
                raise
    return Authority(_read(certificate, "authority"), _read_secret(key, "key"))


def _load_or_make_key(folder: Path, file: Path) -> bytes:
    with _locked(folder):
        if not file.exists():
            _replace(file, new_key(), mode=0o600)
        pem = _read_secret(file, "key")
    read_private_key(pem)
    return pem


def _read_secret(file: Path, field: str) -> bytes:
    pem = _read(file, field)
    if file.stat().st_mode & 0o077:
        raise InvalidArgumentError(
            field, f"others than its owner can read {file}; run: chmod 600 {file}"
        )
    return pem


def _read(file: Path, field: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(field, f"{file} can't be read: {error.strerror}") from error


def _replace(file: Path, data: bytes, mode: int = 0o644) -> None:
    """Put ``data`` where ``file`` is, all of it or nothing, so that it outlives a power cut."""
    try:
        handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as written:
                os.fchmod(handle, mode)
                written.write(data)
                written.flush()
                os.fsync(handle)
            Path(name).replace(file)
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
        _sync_folder(file.parent)
    except OSError as error:
        raise _unusable(file, error) from error


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes out of the folder meanwhile."""
    try:
        handle = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise _unusable(folder, error) from error
    try:
        _wait_for(handle, folder)
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int, folder: Path) -> None:
    until = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                raise InvalidArgumentError(
                    "identity",
                    f"another process has used {folder} for {LOCK_SECONDS:g} s; end it",
                ) from None
            time.sleep(_LOCK_PAUSE_SECONDS)
        except OSError as error:
            raise _unusable(folder, error) from error
        else:
            return


def _unusable(path: Path, error: OSError) -> InvalidArgumentError:
    return InvalidArgumentError("identity", f"{path} can't be used: {error.strerror or error}")
