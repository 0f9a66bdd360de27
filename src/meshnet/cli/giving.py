"""Gives other machines of the cluster the slices that this one has, on a thread that yields."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Final

import uvloop

from meshnet.cli.renewing import ShownCertificate
from meshnet.domain.errors import InvalidArgumentError, ModelNotFoundError
from meshnet.domain.ids import Address, Digest
from meshnet.domain.layers import LayerRange
from meshnet.gateway.server import open_listener
from meshnet.model.remote import RemoteModel
from meshnet.model.store import SliceStore
from meshnet.tracker import messages as msg
from meshnet.tracker.face_server import face_served
from meshnet.tracker.face_slices import AT_ONCE, SLOWEST_BYTES, Given, SlicesFace
from meshnet.transport.address import format_address
from meshnet.transport.admission import RemovedNodes
from meshnet.transport.identity_folder import IdentityFiles
from meshnet.transport.tls import server_context

CONNECTIONS: Final = 64
NICENESS: Final = 10
"""A worker that computes on all cores goes before whoever gives its slices away."""
SLOWEST_LIMIT: Final = AT_ONCE * SLOWEST_BYTES
"""Bytes a second, below which nobody would be given anything in time."""
LOOK_SECONDS: Final = 0.1


class Shelf:
    """What there is to give; fulfils the face's protocol of that name, for any thread."""

    def __init__(self, store: SliceStore) -> None:
        self._store = store
        self._slices: Mapping[tuple[str, LayerRange], Given] = {}
        self._headers: dict[tuple[Digest, str], Given] = {}

    def look(self) -> tuple[msg.SliceReport, ...]:
        """Find what is in the cache now; blocks."""
        found: dict[tuple[str, LayerRange], Given] = {}
        reports: dict[msg.SliceReport, None] = {}
        for stored, path in self._store.kept():
            if not stored.whole or len(found) == msg.MAX_SLICES:
                continue
            layers = LayerRange(stored.start, stored.end)
            given = Given(path, stored.size, stored.size, stored.digest)
            found.setdefault((stored.model, layers), given)
            report = msg.SliceReport(model=stored.whole, start=stored.start, end=stored.end)
            reports[report] = None
        self._slices = found
        return tuple(reports)

    def keep_headers(self, model: RemoteModel) -> None:
        """Give the headers of a model's files, which are here."""
        for part in model.index.parts:
            given = Given(part.path, part.size, part.header_bytes, str(model.digest))
            self._headers[model.digest, part.path.name] = given

    def slice(self, model: str, layers: LayerRange) -> Given:
        """The file of a slice; raises :class:`ModelNotFoundError`."""
        found = self._slices.get((model, layers))
        if found is None:
            raise ModelNotFoundError(f"layers {layers} of {model} aren't here")
        return found

    def header(self, digest: Digest, name: str) -> Given:
        """A file of a model with its header; raises :class:`ModelNotFoundError`."""
        found = self._headers.get((digest, name))
        if found is None:
            raise ModelNotFoundError(f"the header of {name!r} isn't here")
        return found


class Giving:
    """A running server of what is on the shelf."""

    def __init__(self, address: Address, shelf: Shelf, face: SlicesFace) -> None:
        self._address, self._face = address, face
        self.shelf = shelf
        self.over = threading.Event()
        """Set once nothing is given any more."""

    @property
    def address(self) -> Address | None:
        """Where others get slices; None once it is over."""
        return None if self.over.is_set() else self._address

    @property
    def given_bytes(self) -> int:
        """Bytes that others got so far."""
        return self._face.given_bytes


@asynccontextmanager
async def giving(
    store: SliceStore, identity: IdentityFiles, host: str, bytes_per_second: int
) -> AsyncIterator[Giving]:
    """Give slices at a free port of ``host`` for as long as the block runs.

    Raises ``InvalidArgumentError`` ("upload-limit", "host") for a limit that is too small and a
    host that isn't this machine's.
    """
    if bytes_per_second < SLOWEST_LIMIT:
        raise InvalidArgumentError(
            "upload-limit", f"give at least {SLOWEST_LIMIT >> 10}KiB, or 0 to give nothing"
        )
    shelf, context = Shelf(store), server_context(identity.load(), members_only=True)
    face = SlicesFace(shelf, RemovedNodes(identity.removed), bytes_per_second)
    with open_listener(host, 0) as listener, ThreadPoolExecutor(1, "meshnet-gives") as thread:
        given = Giving(Address(format_address(host, listener.getsockname()[1])), shelf, face)
        certificate = ShownCertificate("whoever gives slices", identity, context)
        stopped = threading.Event()

        def serve() -> None:
            _yield_to_others()
            try:
                with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                    runner.run(_serve(face, listener, context, certificate, stopped))
            finally:
                given.over.set()

        running = asyncio.get_running_loop().run_in_executor(thread, serve)
        try:
            yield given
        finally:
            stopped.set()
            await running


async def _serve(
    face: SlicesFace,
    listener: socket.socket,
    context: ssl.SSLContext,
    certificate: ShownCertificate,
    stopped: threading.Event,
) -> None:
    async with face_served(face, listener, context, CONNECTIONS):
        # Another thread says when.
        while not stopped.is_set():
            await asyncio.sleep(LOOK_SECONDS)
            certificate.renew()


def _yield_to_others() -> None:
    """Let the system give this thread, and those it starts, what others leave."""
    # Where threads have no niceness of their own, all is given at the usual one.
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
