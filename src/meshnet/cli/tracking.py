"""Runs a cluster's tracker in this process: its store, its authority, its HTTPS port."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from meshnet.cli.cluster import Membership, StateFolder
from meshnet.cli.runtime import alongside
from meshnet.domain.errors import InvalidArgumentError, MeshnetError, ModelNotFoundError
from meshnet.domain.ids import Address, Digest
from meshnet.tracker.events import ModelOffered
from meshnet.tracker.face import create_face
from meshnet.tracker.face_server import face_served
from meshnet.tracker.service import TrackerService
from meshnet.tracker.store.sql import open_store
from meshnet.transport.certificates import Role
from meshnet.transport.identity_folder import IdentityFolder, load_or_make_authority
from meshnet.transport.tls import Identity, present, server_context

LOGGER: Final = logging.getLogger(__name__)
TICK_SECONDS: Final = 0.5
RENEWAL_CHECK_TICKS: Final = 7200
PLANS_IN_VAIN: Final = 4
"""Plans in a row that the cluster overtook, after which it is held up for one."""


@dataclass(frozen=True, slots=True)
class OfferedModel:
    """A model that the tracker's machine has, and its files."""

    event: ModelOffered
    manifest_json: bytes
    parts: tuple[Path, ...]


class OfferedFiles:
    """The files of the models that are offered; it fulfils the face's ``Weights``."""

    def __init__(self, models: Sequence[OfferedModel]) -> None:
        self._models = {it.event.digest: it for it in models}

    def manifest(self, digest: Digest) -> bytes:
        """The manifest; raises ``ModelNotFoundError`` for another model."""
        return self._model(digest).manifest_json

    def path(self, digest: Digest, name: str) -> Path:
        """The part of that name; raises ``ModelNotFoundError`` for anything else."""
        for part in self._model(digest).parts:
            if part.name == name:
                if not part.exists():
                    raise ModelNotFoundError(f"{name!r} is gone from the first machine")
                return part
        raise ModelNotFoundError(f"the model has no part {name!r}")

    def _model(self, digest: Digest) -> OfferedModel:
        if digest not in self._models:
            raise ModelNotFoundError(f"no model {digest} here; there is {', '.join(self._models)}")
        return self._models[digest]


@dataclass(frozen=True, slots=True)
class RunningTracker:
    """A tracker that serves."""

    service: TrackerService
    address: Address
    """Where other machines reach it."""
    fingerprint: str
    state: StateFolder

    def folder(self, role: Role) -> IdentityFolder:
        """Where a role that a process of this machine has keeps its identity."""
        return self.state.node() if role is Role.NODE else self.state.role(role.value)

    def identity(self, role: Role, name: str) -> Identity:
        """The identity of a process of this machine, certified anew."""
        folder = self.folder(role)
        _, certificate = self.service.admit(folder.public_key(), name, role)
        return folder.keep(certificate, _authority(self.state))


@asynccontextmanager
async def tracker_running(
    state: StateFolder,
    listener: socket.socket,
    membership: Membership,
    offered: Sequence[OfferedModel],
    place: str | None,
) -> AsyncIterator[RunningTracker]:
    """A tracker on a bound socket, which goes on from what it wrote down before.

    That is in the store at ``place``, a path or a URL; None: a file in the state folder.
    Raises ``InvalidArgumentError`` if another one uses the same state folder, and what
    ``open_store`` does.
    """
    with _alone(state.tracker):
        authority = load_or_make_authority(state.tracker, membership.cluster)
        store = open_store(place or str(state.tracker / "cluster.db"))
        async with AsyncExitStack() as stack:
            stack.callback(store.close)
            store.belong_to(authority.fingerprint)
            service = TrackerService(store, authority)
            service.found(membership.cluster)
            service.offer(*(it.event for it in offered))
            address = Address(membership.tracker)
            running = RunningTracker(service, address, authority.fingerprint, state)
            identity = running.identity(Role.TRACKER, membership.name)
            running.identity(Role.ADMIN, membership.name)
            # Before anybody shows a receipt that it signed.
            running.identity(Role.GATEWAY, membership.name)
            state.remember(membership)
            context = server_context(identity)
            app = create_face(service, OfferedFiles(offered), authority.certificate_pem)
            await stack.enter_async_context(face_served(app, listener, context))
            renew = partial(_renew, running, context, membership.name)
            ticking = alongside(_tick(service, renew), "tracker's tick")
            await stack.enter_async_context(ticking)
            yield running


async def _tick(service: TrackerService, renew: Callable[[], None]) -> None:
    for count in itertools.count(1):
        await asyncio.sleep(TICK_SECONDS)
        try:
            await _replan(service)
            if count % RENEWAL_CHECK_TICKS == 0:
                renew()
        except MeshnetError as error:
            if error.details.get("field") == "store":
                # Another tracker wrote there: this one's state isn't the cluster's any more.
                raise
            # A disk that is full now may not be later, and machines go on serving meanwhile.
            LOGGER.error("the tracker can't go on for now: %s", error.message)  # noqa: TRY400


async def _replan(service: TrackerService) -> None:
    """Bring the cluster to what it should be, without holding up those that are being served."""
    for _ in range(PLANS_IN_VAIN):
        draft = service.draft()
        if service.settle(draft, await asyncio.to_thread(draft.events)):
            return
    # Machines come and go faster than it can be planned for them.
    service.tick()


def _renew(tracker: RunningTracker, context: ssl.SSLContext, name: str) -> None:
    """Certify this machine's own roles anew in good time; its node asks for that by itself."""
    for role in (Role.TRACKER, Role.ADMIN, Role.GATEWAY):
        identity = tracker.folder(role).identity()
        if identity is not None and identity.due_for_renewal(time.time()):
            renewed = tracker.identity(role, name)
            if role is Role.TRACKER:
                present(context, renewed)


def _authority(state: StateFolder) -> bytes:
    return (state.tracker / "authority.pem").read_bytes()


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep a second tracker from using the folder."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise InvalidArgumentError("state", f"{folder} can't be used: {error.strerror}") from error
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InvalidArgumentError(
                "state", f"another `meshnet up` uses {folder}; end it, or set MESHNET_STATE"
            ) from None
        yield
    finally:
        os.close(handle)
