"""A relay with a node behind it, for tests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from meshnet.domain.ids import Address, NodeId
from meshnet.transport.base import Peer, ShardService, Transport
from meshnet.transport.certificates import Role
from meshnet.transport.options import GrpcOptions
from meshnet.transport.relay import Relay, RelayLimits
from meshnet.transport.relay_client import RelayClient
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from meshnet.transport.tls import Identity, server_context
from tests.support.identities import AUTHORITY, member
from tests.support.networks import ANY_PORT, Network, nowhere


@dataclass
class RunningRelay:
    """A relay on a port of its own."""

    relay: Relay
    address: Address

    @asynccontextmanager
    async def node(self, worker: Address, identity: Identity) -> AsyncIterator[RelayClient]:
        """Have a node wait at the relay for as long as the block runs."""
        client = RelayClient(self.address, worker, identity)
        client.start()
        try:
            await until(lambda: identity.node_id in self.relay.waiting)
            yield client
        finally:
            await client.close()


def start_relay(
    *nodes: NodeId, limits: RelayLimits | None = None, identity: Identity | None = None
) -> RunningRelay:
    """A relay that takes these nodes; to be closed."""
    relay = Relay(server_context(identity or member(AUTHORITY, Role.TRACKER)), limits)
    relay.admit(nodes, nodes)
    listener = socket.create_server(("127.0.0.1", 0))
    address = Address(f"127.0.0.1:{listener.getsockname()[1]}")
    relay.start(listener)
    return RunningRelay(relay, address)


@asynccontextmanager
async def relay_running(
    *nodes: NodeId, limits: RelayLimits | None = None, identity: Identity | None = None
) -> AsyncIterator[RunningRelay]:
    """The same for as long as the block runs."""
    running = start_relay(*nodes, limits=limits, identity=identity)
    try:
        yield running
    finally:
        await running.relay.close()


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while True:
            if true():
                return
            await asyncio.sleep(0.005)


class GrpcRelayed(Network):
    """Servers that are reached over the cluster's relay alone, each over one of its own.

    So that an address means one of them, as the tests have it.
    """

    def __init__(self) -> None:
        self._known: dict[Address, NodeId] = {}
        self.transport = _Naming(member(AUTHORITY, Role.GATEWAY), self._known)
        self._servers: list[GrpcNodeServer] = []
        self._clients: list[RelayClient] = []
        self._relays: dict[Address, Relay] = {}
        self.nowhere = nowhere()

    async def serve(self, service: ShardService) -> Address:
        node = member(AUTHORITY, Role.NODE)
        server = GrpcNodeServer(service, ANY_PORT, options=GrpcOptions(tls=node))
        self._servers.append(server)
        running = start_relay(node.node_id)
        self._relays[running.address] = running.relay
        client = RelayClient(running.address, await server.start(), node)
        self._clients.append(client)
        client.start()
        await until(lambda: node.node_id in running.relay.waiting)
        self._known[running.address] = node.node_id
        return running.address

    async def kill(self, address: Address) -> None:
        await self._relays[address].close()

    async def close(self) -> None:
        for client in self._clients:
            await client.close()
        for relay in self._relays.values():
            await relay.close()
        for server in self._servers:
            await server.stop()


class _Naming(Transport):
    """Reaches each address's own node, where a test names none."""

    def __init__(self, identity: Identity, known: dict[Address, NodeId]) -> None:
        self._inner = GrpcTransport(options=GrpcOptions(tls=identity))
        self._known = known

    @property
    def proves_identity(self) -> bool:
        return True

    def peer(self, address: Address, node_id: NodeId | None = None) -> Peer:
        return self._inner.peer(address, node_id or self._known.get(address))
