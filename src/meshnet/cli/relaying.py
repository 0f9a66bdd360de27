"""Runs the relay beside a tracker, and finds out which machines need it."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from meshnet.cli.output import print_note
from meshnet.cli.runtime import alongside
from meshnet.cli.tracking import RunningTracker
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.gateway.server import open_listener
from meshnet.tracker.reach import Reach
from meshnet.tracker.service import TrackerService
from meshnet.transport.address import format_address, parse_address
from meshnet.transport.certificates import Role
from meshnet.transport.reachable import answers
from meshnet.transport.relay import Relay
from meshnet.transport.relay_client import RelayClient
from meshnet.transport.tls import IdentitySource, present, server_context

LOGGER: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.2
"""How often the relay is told who may wait there, and asked who does."""
ANSWER_SECONDS: Final = 3.0
"""How long a machine may take to prove that it is where it says."""
RENEWAL_CHECK_SECONDS: Final = 3600.0


def relay_listener(stated: str | None, tracker: socket.socket) -> socket.socket:
    """The relay's socket: at ``stated``, else at the port after the tracker's, or a free one.

    Raises ``InvalidArgumentError`` ("relay") if ``stated`` can't be had.
    """
    if stated is not None:
        host, port = parse_address(stated, "relay")
        try:
            return open_listener(host, port)
        except InvalidArgumentError as error:
            raise InvalidArgumentError("relay", error.message) from error
    host, port = tracker.getsockname()[:2]
    try:
        return open_listener(host, port + 1 if port < 65535 else 0)
    except InvalidArgumentError:
        return open_listener(host, 0)


@asynccontextmanager
async def relay_running(tracker: RunningTracker, listener: socket.socket) -> AsyncIterator[None]:
    """A relay for the tracker's machines, on a bound socket, for as long as the block runs."""
    files = tracker.folder(Role.TRACKER).files
    context = server_context(files.load())
    relay = Relay(context)
    host, _ = parse_address(tracker.address, "address")
    address = Address(format_address(host, listener.getsockname()[1]))
    tracker.service.reach = Reach(address)
    relay.start(listener)
    LOGGER.info("machines that can't be reached use the relay at %s", address)
    looks = _Looks(relay, tracker.service, files, context)
    try:
        async with alongside(looks.run(), "who needs the relay"):
            yield
    finally:
        await relay.close()


class _Looks:
    """Tries machines' addresses, and keeps the relay to those that need it."""

    def __init__(
        self,
        relay: Relay,
        service: TrackerService,
        identity: IdentitySource,
        context: ssl.SSLContext,
    ) -> None:
        self._relay = relay
        self._service = service
        self._identity = identity
        self._context = context
        self._trying: set[asyncio.Task[None]] = set()
        self._renew_at = time.monotonic() + RENEWAL_CHECK_SECONDS

    async def run(self) -> None:
        """Go on until cancelled."""
        try:
            while True:
                self._look()
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._trying:
                task.cancel()
            await asyncio.gather(*self._trying, return_exceptions=True)

    def _look(self) -> None:
        service, reach = self._service, self._service.reach
        self._relay.admit(reach.relayed, service.state.members.keys())
        reach.wait_at_relay(self._relay.waiting)
        for node_id, address in reach.due(service.now):
            task = asyncio.create_task(self._try(node_id, address), name=f"trying {address}")
            self._trying.add(task)
            task.add_done_callback(self._trying.discard)
        if time.monotonic() >= self._renew_at:
            self._renew_at = time.monotonic() + RENEWAL_CHECK_SECONDS
            try:
                present(self._context, self._identity.load())
            except InvalidArgumentError as error:
                LOGGER.warning("the relay keeps its old certificate: %s", error.message)

    async def _try(self, node_id: NodeId, address: Address) -> None:
        try:
            identity = self._identity.load()
            answered = await answers(address, node_id, identity, ANSWER_SECONDS)
        except InvalidArgumentError as error:
            LOGGER.warning("machines' addresses can't be tried: %s", error.message)
            return
        now = self._service.now
        self._service.reach.looked(node_id, address, answered=answered, now=now)


class RelayedWorker:
    """A machine's own connections to the relay, as the tracker tells it."""

    def __init__(self, identity: IdentitySource) -> None:
        self._identity = identity
        self._client: RelayClient | None = None
        self._left: list[RelayClient] = []
        """Those that still carry what began before."""

    async def follow(self, relay: Address | None, worker: Address | None) -> None:
        """Wait at ``relay`` for the worker at an address; None: nowhere, or none."""
        client = self._client
        self._left = [each for each in self._left if each.carries]
        if client is not None and (client.relay, client.worker) != (relay, worker):
            await client.leave()
            self._left.append(client)
            client = self._client = None
            if relay is None:
                print_note("others reach this machine without the relay again")
        if client is None and relay is not None and worker is not None:
            self._client = RelayClient(relay, worker, self._identity)
            self._client.start()
            print_note(f"others can't reach {worker}: they come over the relay at {relay}")

    async def close(self) -> None:
        """End all connections."""
        for client in [*self._left, *([] if self._client is None else [self._client])]:
            await client.close()
