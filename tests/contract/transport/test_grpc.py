"""How gRPC connections come about, break, fall silent and end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time

import pytest

from meshnet.domain.errors import (
    InternalError,
    InvalidArgumentError,
    NodeError,
    NodeLostError,
    NodeUnreachableError,
)
from meshnet.domain.ids import Address
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from tests.support.networks import ANY_PORT, Serve, echo, foreign_server
from tests.support.services import FailingService, ScriptedService, StubbornService
from tests.support.tcp_relay import TcpRelay

TIMEOUT = 5.0


async def test_what_is_no_node_is_said_to_be_none() -> None:
    server, address = await foreign_server()
    peer = GrpcTransport().peer(address)
    with pytest.raises(NodeUnreachableError, match="isn't a Meshnet node"):
        await peer.health(TIMEOUT)
    # gRPC may tell that there is no such call when the stream opens, or a moment later.
    with pytest.raises(NodeError, match="isn't a Meshnet node"):
        await (await peer.open_seam(TIMEOUT)).receive()
    await peer.close()
    await server.stop(None)


async def test_a_server_that_does_not_speak_grpc_is_unreachable() -> None:
    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    peer = GrpcTransport().peer(Address(f"{host}:{port}"))
    with pytest.raises(NodeUnreachableError, match=f"{host}:{port}"):
        await peer.health(TIMEOUT)
    await peer.close()
    server.close()


async def test_a_silent_connection_is_noticed_at_both_ends(serve: Serve) -> None:
    options = GrpcOptions(keepalive_seconds=1.0, keepalive_timeout_seconds=0.3)
    service = ScriptedService()
    relay = TcpRelay(await serve(service, None, options))
    address = Address(await relay.start())
    peer = GrpcTransport(options=options).peer(address)
    seam = await peer.open_seam(TIMEOUT)
    await echo(seam, 1)
    relay.fall_silent()
    async with asyncio.timeout(3.0):
        with pytest.raises(NodeLostError, match=address):
            await seam.receive()
        await service.saw_end.wait()
    await seam.close()
    await peer.close()
    await relay.cut()


@pytest.mark.slow
async def test_a_quiet_connection_is_kept(serve: Serve) -> None:
    """Keep-alive pings with nothing going on must not look like abuse to the server."""
    options = GrpcOptions(keepalive_seconds=1.0, keepalive_timeout_seconds=0.3)
    peer = GrpcTransport(options=options).peer(await serve(ScriptedService(), None, options))
    seam = await peer.open_seam(TIMEOUT)
    await asyncio.sleep(3.5)
    await echo(seam, 1)
    await seam.close()
    await peer.close()


async def test_a_port_in_use_is_named() -> None:
    first = GrpcNodeServer(ScriptedService(), ANY_PORT)
    address = await first.start()
    port = address.rsplit(":", 1)[1]
    with pytest.raises(InvalidArgumentError, match=f"listen: port {port} .* in use") as caught:
        await GrpcNodeServer(ScriptedService(), address).start()
    assert caught.value.details["field"] == "listen"
    await first.stop()
    again = GrpcNodeServer(ScriptedService(), address)
    assert await again.start() == address
    await again.stop()


@pytest.mark.parametrize("listen", ["no.such.host.invalid:50051", "192.0.2.1:50051"])
async def test_an_address_of_another_machine_is_refused(listen: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"listen: {listen} can't be listened at"):
        await GrpcNodeServer(ScriptedService(), listen).start()


@pytest.mark.parametrize("service", [ScriptedService, StubbornService])
async def test_a_server_stops_within_a_second(service: type[ScriptedService]) -> None:
    served = service()
    server = GrpcNodeServer(served, ANY_PORT)
    peer = GrpcTransport().peer(await server.start())
    seam = await peer.open_seam(TIMEOUT)
    await asyncio.sleep(0.05)
    before = time.monotonic()
    await server.stop()
    assert time.monotonic() - before < 1.0
    assert served.serving == 0
    with pytest.raises(NodeLostError):
        await seam.receive()
    await server.stop()
    await seam.close()
    await peer.close()


async def test_opening_waits_for_a_node_that_is_about_to_start() -> None:
    first = GrpcNodeServer(ScriptedService(), ANY_PORT)
    address = await first.start()
    await first.stop()
    peer = GrpcTransport().peer(address)
    opening = asyncio.create_task(peer.open_seam(TIMEOUT))
    await asyncio.sleep(0.2)
    second = GrpcNodeServer(ScriptedService(), address)
    await second.start()
    seam = await opening
    await echo(seam, 1)
    await seam.close()
    await peer.close()
    await second.stop()


async def test_a_peer_that_is_closed_meanwhile_does_not_cancel_its_callers(serve: Serve) -> None:
    peer = GrpcTransport().peer(await serve(StubbornService()))
    asking = asyncio.create_task(peer.capability(TIMEOUT))
    await asyncio.sleep(0.1)
    await peer.close()
    with pytest.raises(NodeUnreachableError, match="closed"):
        await asking
    with pytest.raises(NodeUnreachableError, match="closed"):
        await peer.health(TIMEOUT)


async def test_an_error_text_too_long_for_metadata_still_arrives(serve: Serve) -> None:
    peer = GrpcTransport().peer(await serve(FailingService(InternalError("x" * 100_000))))
    with pytest.raises(InternalError, match="xxx") as caught:
        await peer.health(TIMEOUT)
    assert 1000 < len(caught.value.message) < 5000
    await peer.close()


_PROCESS = """
import asyncio
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from tests.support.services import ScriptedService

async def main():
    server = GrpcNodeServer(ScriptedService(), "127.0.0.1:0")
    address = await server.start()
    try:
        await GrpcNodeServer(ScriptedService(), address).start()
    except Exception as error:
        print(type(error).__name__)
    peer = GrpcTransport().peer(address)
    seam = await peer.open_seam(5)
    await peer.health(5)
    await server.stop()
    try:
        await seam.receive()
    except Exception as error:
        print(type(error).__name__)
    await seam.close()
    await peer.close()

asyncio.run(main())
"""


def test_a_process_says_nothing_of_its_own_and_exits_cleanly() -> None:
    """The command sets GRPC_VERBOSITY; without it, gRPC's core writes to the terminal."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-X", "dev", "-c", _PROCESS],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "GRPC_VERBOSITY": "NONE", "PYTHONPATH": "."},
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["InvalidArgumentError", "NodeLostError"]


def test_an_address_is_checked_where_it_is_given() -> None:
    with pytest.raises(InvalidArgumentError, match="address"):
        GrpcTransport().peer(Address("not an address"))
    with pytest.raises(InvalidArgumentError, match="listen"):
        GrpcNodeServer(ScriptedService(), "50051")


async def test_traffic_is_told_of_addresses_that_are_connected(serve: Serve) -> None:
    transport = GrpcTransport()
    address = await serve(ScriptedService())
    one, other = transport.peer(address), transport.peer(address)
    await echo(await one.open_seam(TIMEOUT), 1)
    await one.close()
    await one.close()
    assert transport.traffic[address].sent_messages == 1
    await other.close()
    assert not transport.traffic
