"""Both transports in one form, for tests that run over either."""

from __future__ import annotations

import abc
import asyncio
import socket
from collections.abc import Awaitable, Callable

import grpc
import grpc.aio

from meshnet.domain.frames import DecodeFrame, TokenReply
from meshnet.domain.ids import Address
from meshnet.transport.base import ClientSeam, ShardService, Transport
from meshnet.transport.certificates import Role
from meshnet.transport.loopback import LoopbackNetwork
from meshnet.transport.methods import SERVICE_NAME
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from tests.support.frames import decode_step
from tests.support.identities import AUTHORITY, member
from tests.support.tcp_relay import TcpRelay

ANY_PORT = "127.0.0.1:0"

Serve = Callable[..., Awaitable[Address]]


class Network(abc.ABC):
    """A transport with services behind it."""

    transport: Transport

    @abc.abstractmethod
    async def serve(self, service: ShardService) -> Address:
        """Put a service somewhere."""

    @abc.abstractmethod
    async def kill(self, address: Address) -> None:
        """Lose what is at an address, abruptly."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Free everything."""

    nowhere: Address


class Loopback(Network):
    def __init__(self) -> None:
        self._network = LoopbackNetwork()
        self.transport = self._network.transport()
        self.nowhere = Address("nowhere")
        self._served: list[Address] = []

    async def serve(self, service: ShardService) -> Address:
        address = Address(f"node-{len(self._served)}")
        self._network.register(address, service)
        self._served.append(address)
        return address

    async def kill(self, address: Address) -> None:
        self._network.drop(address)

    async def close(self) -> None:
        for address in self._served:
            self._network.drop(address)


class Grpc(Network):
    """Servers behind TCP relays, so that a connection can break without a word from the server."""

    def __init__(
        self, client: GrpcOptions | None = None, server: GrpcOptions | None = None
    ) -> None:
        self.transport = GrpcTransport(options=client)
        self._options = server
        self._servers: list[GrpcNodeServer] = []
        self._relays: dict[Address, TcpRelay] = {}
        self.nowhere = nowhere()

    async def serve(self, service: ShardService) -> Address:
        server = GrpcNodeServer(service, ANY_PORT, options=self._options)
        self._servers.append(server)
        relay = TcpRelay(await server.start())
        address = Address(await relay.start())
        self._relays[address] = relay
        return address

    async def kill(self, address: Address) -> None:
        await self._relays[address].cut()

    async def close(self) -> None:
        for server in self._servers:
            await server.stop()
        for relay in self._relays.values():
            await relay.cut()


class GrpcTls(Grpc):
    """The same, where a gateway and the nodes prove who they are."""

    def __init__(self) -> None:
        gateway, node = member(AUTHORITY, Role.GATEWAY), member(AUTHORITY, Role.NODE)
        super().__init__(GrpcOptions(tls=gateway), GrpcOptions(tls=node))


def nowhere() -> Address:
    """An address at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return Address(f"127.0.0.1:{unused.getsockname()[1]}")


async def echo(seam: ClientSeam, step: int) -> None:
    """Have one decode step answered by a service that gives a token for it."""
    seam.send(DecodeFrame((decode_step(1, step),)))
    async with asyncio.timeout(5):
        reply = await seam.receive()
    assert isinstance(reply, TokenReply)
    assert reply.step == step


async def foreign_server(
    session: Callable[..., Awaitable[None]] | None = None,
) -> tuple[grpc.aio.Server, Address]:
    """A gRPC server that isn't ours; with ``session``, it has a stream of our name."""
    server = grpc.aio.server()
    if session is not None:
        handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
            "Session": grpc.stream_stream_rpc_method_handler(session)
        }
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(SERVICE_NAME, handlers),)
        )
    port = server.add_insecure_port(ANY_PORT)
    await server.start()
    return server, Address(f"127.0.0.1:{port}")
