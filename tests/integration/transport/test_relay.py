"""The relay: who may use it, what it passes on, and that nothing holds it up."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from meshnet.domain.errors import NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.transport.address import parse_address
from meshnet.transport.certificates import Authority, Role, host_name_of
from meshnet.transport.options import GrpcOptions
from meshnet.transport.reachable import trouble
from meshnet.transport.relay import Relay, RelayLimits
from meshnet.transport.relay_client import WAITING, RelayClient
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from meshnet.transport.tls import Identity, client_context, present, server_context
from tests.support.frames import CAPABILITY
from tests.support.identities import AUTHORITY, member
from tests.support.networks import ANY_PORT
from tests.support.relays import relay_running, until
from tests.support.services import ScriptedService

GATEWAY = member(AUTHORITY, Role.GATEWAY)
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0.05)
    others = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in others if "meshnet" in repr(task.get_coro())]


@pytest.fixture
def node() -> Identity:
    return member(AUTHORITY, Role.NODE)


@asynccontextmanager
async def worker(handler: Handler) -> AsyncIterator[Address]:
    """A server of bytes, in a worker's place."""
    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


@asynccontextmanager
async def tls_worker(identity: Identity, handler: Handler) -> AsyncIterator[Address]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    present(context, identity)
    server = await asyncio.start_server(handler, "127.0.0.1", 0, ssl=context)
    try:
        yield Address(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
    finally:
        server.close()


async def connect(
    relay: Address, node: Identity, authority_pem: bytes = AUTHORITY.certificate_pem
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A TLS connection to a node by way of the relay."""
    context = ssl.create_default_context(cadata=authority_pem.decode())
    host, port = parse_address(relay, "relay")
    async with asyncio.timeout(5):
        return await asyncio.open_connection(
            host, port, ssl=context, server_hostname=host_name_of(node.node_id)
        )


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.close()


async def ended(reader: asyncio.StreamReader, seconds: float = 5.0) -> bytes:
    """What comes until the other end is over."""
    async with asyncio.timeout(seconds):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def test_bytes_pass_as_they_are_and_the_end_passes_too(node: Identity) -> None:
    sent = bytes(range(256)) * 4096
    async with (
        tls_worker(node, echo) as serving,
        relay_running(node.node_id) as running,
        running.node(serving, node),
    ):
        for _ in range(WAITING + 2):
            reader, writer = await connect(running.address, node)
            writer.write(sent)
            async with asyncio.timeout(10):
                assert await reader.readexactly(len(sent)) == sent
            writer.close()
            await writer.wait_closed()
        both_ways = (WAITING + 2) * 2 * len(sent)
        assert running.relay.carried_bytes[node.node_id] >= both_ways


async def test_a_node_is_called_over_the_relay_and_proves_who_it_is(node: Identity) -> None:
    server = GrpcNodeServer(ScriptedService(), ANY_PORT, options=GrpcOptions(tls=node))
    serving = await server.start()
    try:
        async with relay_running(node.node_id) as running, running.node(serving, node):
            transport = GrpcTransport(options=GrpcOptions(tls=GATEWAY))
            peer = transport.peer(running.address, node.node_id)
            assert await peer.capability(5.0) == CAPABILITY
            await peer.close()
            assert await trouble(serving, node.node_id, GATEWAY, 5.0) is None
            other = member(AUTHORITY, Role.NODE).node_id
            assert await trouble(serving, other, GATEWAY, 5.0)
            assert await trouble(running.address, other, GATEWAY, 5.0)
    finally:
        await server.stop()


async def test_strangers_get_nothing(node: Identity) -> None:
    other = member(AUTHORITY, Role.NODE)
    async with tls_worker(node, echo) as serving, relay_running(node.node_id) as running:
        host, port = parse_address(running.address, "relay")
        with pytest.raises(ConnectionError):  # nobody waits yet
            await connect(running.address, node)
        waiting = (
            other,  # a node that wasn't told to use the relay
            member(AUTHORITY, Role.GATEWAY),
            member(Authority.create("another"), Role.NODE),
        )
        for stranger in waiting:
            context = client_context(stranger)
            context.load_verify_locations(cadata=AUTHORITY.certificate_pem.decode())
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            assert await ended(reader) == b""
            writer.transport.abort()
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\xff\xff", b""):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(said)
            writer.write_eof()
            assert await ended(reader) == b""
            writer.transport.abort()
        assert running.relay.waiting == frozenset()
        async with running.node(serving, node):
            with pytest.raises(ConnectionError):
                await connect(running.address, other)


async def test_a_hello_that_does_not_come_is_not_waited_for(node: Identity) -> None:
    limits = RelayLimits(greeting_seconds=0.3, greeting=2)
    async with relay_running(node.node_id, limits=limits) as running:
        host, port = parse_address(running.address, "relay")
        began = time.monotonic()
        slow = [await asyncio.open_connection(host, port) for _ in range(2)]
        for _, writer in slow:
            writer.write(b"\x16\x03\x01\x02\x00\x01")
        reader, writer = await asyncio.open_connection(host, port)
        assert await ended(reader, 0.25) == b""  # one too many is closed at once
        writer.transport.abort()
        for reader, writer in slow:
            assert await ended(reader) == b""
            writer.transport.abort()
        assert 0.3 <= time.monotonic() - began < 2.0


async def test_a_relay_that_would_read_along_is_refused_by_both_ends(node: Identity) -> None:
    """Not even one with a certificate of the cluster can stand for a node or for the tracker."""
    reached = asyncio.Event()

    async def note(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.set()
        writer.close()

    for impostor in (member(AUTHORITY, Role.NODE), member(Authority.create("x"), Role.TRACKER)):
        async with tls_worker(impostor, note) as middle:
            peer = GrpcTransport(options=GrpcOptions(tls=GATEWAY)).peer(middle, node.node_id)
            with pytest.raises(NodeUnreachableError):
                await peer.capability(2.0)
            await peer.close()
            reached.clear()
            waiting = RelayClient(middle, Address("127.0.0.1:1"), node)
            waiting.start()
            await asyncio.sleep(0.3)
            await waiting.close()
            assert not reached.is_set()


async def test_a_node_gets_no_more_than_its_rate(node: Identity) -> None:
    size, rate = 600_000, 400_000.0
    limits = RelayLimits(bytes_per_second=rate, burst_bytes=100_000.0)

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(bytes(size // 2))
        await writer.drain()
        writer.close()

    async with (
        tls_worker(node, pour) as serving,
        relay_running(node.node_id, limits=limits) as running,
        running.node(serving, node),
    ):
        began = time.monotonic()
        both = [await connect(running.address, node) for _ in range(2)]
        got = await asyncio.gather(*(ended(reader, 20) for reader, _ in both))
        assert [len(each) for each in got] == [size // 2] * 2
        took = time.monotonic() - began
        assert (size - 100_000) / rate * 0.8 < took < 6.0
        for _, writer in both:
            writer.close()


async def test_one_end_that_does_not_read_holds_the_other_back(node: Identity) -> None:
    written = 0

    async def pour(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        with contextlib.suppress(OSError):
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                written += 65536
        over.set()

    over = asyncio.Event()
    limits = RelayLimits(idle_seconds=1.0, bytes_per_second=1e12, burst_bytes=1e12)
    async with (
        tls_worker(node, pour) as serving,
        relay_running(node.node_id, limits=limits) as running,
        running.node(serving, node),
    ):
        _, writer = await connect(running.address, node)
        await asyncio.sleep(0.7)
        stuck = written
        await asyncio.sleep(0.2)
        assert 0 < written == stuck < 32 * 2**20
        # Nothing passes, so it ends by itself.
        async with asyncio.timeout(5):
            await over.wait()
        writer.transport.abort()


async def test_connections_to_a_node_have_a_bound(node: Identity) -> None:
    limits = RelayLimits(connections=2)
    async with (
        tls_worker(node, echo) as serving,
        relay_running(node.node_id, limits=limits) as running,
        running.node(serving, node),
    ):
        taken = [await connect(running.address, node) for _ in range(2)]
        with pytest.raises(ConnectionError):
            await connect(running.address, node)
        taken[0][1].close()
        await taken[0][1].wait_closed()
        await asyncio.sleep(0.1)
        taken.append(await connect(running.address, node))
        for _, writer in taken:
            writer.transport.abort()


async def test_a_node_that_is_gone_is_not_waited_on(node: Identity) -> None:
    async with tls_worker(node, echo) as serving, relay_running(node.node_id) as running:
        async with running.node(serving, node):
            assert running.relay.waiting == {node.node_id}
        await until(lambda: not running.relay.waiting, 1.0)


async def test_a_node_that_fell_silent_is_not_waited_on(node: Identity) -> None:
    limits = RelayLimits(wait_seconds=0.2)
    async with relay_running(node.node_id, limits=limits) as running:
        host, port = parse_address(running.address, "relay")
        _, writer = await asyncio.open_connection(host, port, ssl=client_context(node))
        await until(lambda: node.node_id in running.relay.waiting)
        await until(lambda: not running.relay.waiting, 2.0)
        writer.transport.abort()


async def test_a_node_that_answers_is_waited_on_for_long(node: Identity) -> None:
    limits = RelayLimits(wait_seconds=0.1)
    async with (
        tls_worker(node, echo) as serving,
        relay_running(node.node_id, limits=limits) as running,
        running.node(serving, node),
    ):
        await asyncio.sleep(1.0)
        reader, writer = await connect(running.address, node)
        writer.write(b"hello")
        assert await reader.readexactly(5) == b"hello"
        writer.transport.abort()


async def test_a_node_whose_worker_is_gone_is_not_connected(node: Identity) -> None:
    async with relay_running(node.node_id) as running:
        async with worker(echo) as gone:
            pass
        async with running.node(gone, node):
            with pytest.raises(ConnectionError):
                await connect(running.address, node)


async def test_what_is_given_up_takes_no_more_and_lets_what_runs_end(node: Identity) -> None:
    async with (
        tls_worker(node, echo) as serving,
        relay_running(node.node_id) as running,
        running.node(serving, node) as client,
    ):
        reader, writer = await connect(running.address, node)
        await client.leave()
        running.relay.admit((), (node.node_id,))
        await until(lambda: not running.relay.waiting)
        writer.write(b"still")
        assert await reader.readexactly(5) == b"still"
        with pytest.raises(ConnectionError):
            await connect(running.address, node)
        running.relay.admit((), ())  # the node was removed
        assert await ended(reader) == b""
        writer.transport.abort()


async def test_a_node_comes_back_to_a_relay_that_was_started_again(node: Identity) -> None:
    async with (
        tls_worker(node, echo) as serving,
        relay_running(node.node_id) as first,
        first.node(serving, node),
    ):
        await first.relay.close()
        again = Relay(server_context(member(AUTHORITY, Role.TRACKER)))
        again.admit((node.node_id,), (node.node_id,))
        again.start(socket.create_server(parse_address(first.address, "relay")))
        await until(lambda: node.node_id in again.waiting, 10.0)
        await again.close()
