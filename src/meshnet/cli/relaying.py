"""Runs the relay for a tracker's machines, and a machine's own connections to it."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, Protocol

from meshnet.cli.output import print_note
from meshnet.cli.renewing import ShownCertificate
from meshnet.cli.runtime import alongside
from meshnet.domain.errors import InvalidArgumentError, MeshnetError
from meshnet.domain.ids import Address, NodeId
from meshnet.gateway.server import open_listener
from meshnet.tracker.asking import MAX_RELAYED, RelayReply, RelayRequest
from meshnet.transport.address import format_address, parse_address
from meshnet.transport.relay import Relay
from meshnet.transport.relay_client import RelayClient
from meshnet.transport.tls import IdentitySource, server_context

LOGGER: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.5
"""How often the tracker is told who waits at the relay, and asked who may."""


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


class Desk(Protocol):
    """The tracker, as far as the relay asks it; raises any ``MeshnetError``."""

    async def relay(self, request: RelayRequest) -> RelayReply:
        """Who may wait at the relay."""


def relay_address(tracker: Address, listener: socket.socket) -> Address:
    """Where other machines reach the relay that listens on a socket beside the tracker."""
    host, _ = parse_address(tracker, "address")
    return Address(format_address(host, listener.getsockname()[1]))


@asynccontextmanager
async def relay_running(
    desk: Desk, identity: IdentitySource, listener: socket.socket
) -> AsyncIterator[None]:
    """A relay for the tracker's machines, on a bound socket, for as long as the block runs.

    ``identity``: the tracker's. While the tracker isn't there, it serves those that it knew.
    """
    context = server_context(identity.load())
    relay = Relay(context)
    relay.start(listener)
    looks = _Looks(relay, desk, ShownCertificate("the relay", identity, context))
    try:
        async with alongside(looks.run(), "who needs the relay"):
            yield
    finally:
        await relay.close()


class _Looks:
    """Keeps the relay to those that need it, and its certificate fresh."""

    def __init__(self, relay: Relay, desk: Desk, certificate: ShownCertificate) -> None:
        self._relay = relay
        self._desk = desk
        self._certificate = certificate

    async def run(self) -> None:
        """Go on until cancelled."""
        while True:
            await self._look()
            self._certificate.renew()
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        waiting = tuple(sorted(self._relay.waiting))[:MAX_RELAYED]
        carried = tuple(sorted(self._relay.carrying))[:MAX_RELAYED]
        try:
            reply = await self._desk.relay(RelayRequest(waiting=waiting, carried=carried))
        except MeshnetError as error:
            LOGGER.info("the tracker doesn't say who needs the relay: %s", error.message)
        else:
            gone = frozenset(carried) - frozenset(map(NodeId, reply.members))
            # Whoever came meanwhile wasn't asked about, and isn't gone.
            self._relay.admit(set(map(NodeId, reply.admitted)), self._relay.carrying - gone)


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
                print_note("others reach this machine without the relay again", kept=True)
        if client is None and relay is not None and worker is not None:
            self._client = RelayClient(relay, worker, self._identity)
            self._client.start()
            come = f"others can't reach {worker}: they come over the relay at {relay}"
            print_note(come, kept=True)

    async def close(self) -> None:
        """End all connections."""
        for client in [*self._left, *([] if self._client is None else [self._client])]:
            await client.close()
