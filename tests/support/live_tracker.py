"""A tracker on a free port of this machine, for as long as a test needs it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from meshnet.domain.errors import ModelNotFoundError
from meshnet.domain.ids import Address, Digest
from meshnet.gateway.server import open_listener
from meshnet.tracker import messages as msg
from meshnet.tracker.client import join
from meshnet.tracker.clocks import Clocks
from meshnet.tracker.face import create_face
from meshnet.tracker.face_server import face_served
from meshnet.tracker.service import TrackerService
from meshnet.transport.certificates import Authority, Role, new_key, node_id_of, public_key_of
from meshnet.transport.jointoken import JoinToken
from meshnet.transport.tls import Identity, server_context
from tests.support.trackers import DIGEST, OFFER, MemoryStore


class Files:
    """The weights of one model in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def manifest(self, digest: Digest) -> bytes:
        if digest != DIGEST:
            raise ModelNotFoundError(f"no model {digest}")
        return b'{"manifest": true}'

    def path(self, digest: Digest, name: str) -> Path:
        if (digest, name) != (DIGEST, "m.gguf"):
            raise ModelNotFoundError(f"no part {name!r}")
        return self._path


@dataclass
class LiveTracker:
    """A tracker that serves on this machine."""

    service: TrackerService
    authority: Authority
    address: Address
    clock: list[float]
    """Its wall clock, to be changed."""

    def identity(self, role: Role = Role.NODE, authority: Authority | None = None) -> Identity:
        """A certificate that nobody asked for, of this cluster unless of another's authority."""
        signed_by = authority or self.authority
        key = new_key()
        public = public_key_of(key)
        certificate = signed_by.issue(public, node_id_of(public), role=role)
        return Identity(key, certificate, signed_by.certificate_pem)

    def token(self, secret: str | None = None, expires: int = 2**40) -> JoinToken:
        """A token with this secret, or with a new one that is good."""
        known = secret or self.service.issue_token(msg.TokenRequest()).secret
        return JoinToken(self.address, self.authority.fingerprint, known, expires)

    async def join(self) -> Identity:
        """A machine that has joined."""
        key = new_key()
        reply, authority = await join(self.token(), key, "one")
        return Identity(key, reply.certificate.encode(), authority)


@asynccontextmanager
async def live_tracker(files: Files, name: str = "test") -> AsyncIterator[LiveTracker]:
    """Serve a tracker of a new cluster."""
    authority = Authority.create(name)
    clock = [time.time()]
    service = TrackerService(MemoryStore(), authority, Clocks(wall=lambda: clock[0]))
    service.found(name)
    service.offer(OFFER)
    listener = open_listener("127.0.0.1", 0)
    address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
    made = LiveTracker(service, authority, address, clock)
    app = create_face(service, files, authority.certificate_pem)
    async with face_served(app, listener, server_context(made.identity(Role.TRACKER))):
        yield made
