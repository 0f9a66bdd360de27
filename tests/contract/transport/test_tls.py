"""Who gets anything from a node that has an identity, and from whom a client takes anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from meshnet.domain.errors import (
    InvalidArgumentError,
    NodeUnreachableError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.status import StatusCode
from meshnet.transport import connection
from meshnet.transport.base import Peer, ServerSeam
from meshnet.transport.certificates import Authority, Role, public_key_of
from meshnet.transport.channel import ChannelPool
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.methods import SERVICE_NAME, method_path
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.tls import Identity, IdentitySource, channel_credentials
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.status import status_from_trailer
from tests.support.identities import AUTHORITY, member
from tests.support.networks import Serve, echo, foreign_server
from tests.support.services import ScriptedService
from tests.support.tcp_relay import TcpRelay

TIMEOUT = 5.0
SHORT = 0.5
DAY = 86400.0
NODE = member()
GATEWAY = member(role=Role.GATEWAY)
FOREIGN = member(Authority.create("another"))


class Untouched(ScriptedService):
    """Notes whether anything of a caller came through to the service."""

    touched = False

    async def health(self) -> Any:
        self.touched = True
        return await super().health()

    async def serve_seam(self, seam: ServerSeam) -> None:
        self.touched = True
        await super().serve_seam(seam)


def expired(role: Role = Role.NODE) -> Identity:
    return member(role=role, days=1, now=time.time() - 3 * DAY)


def secured(identity: Identity | None) -> GrpcOptions:
    return GrpcOptions(tls=identity)


@pytest.fixture
async def peer_of() -> AsyncIterator[Callable[..., Peer]]:
    """Peers as somebody sees them; closed after the test."""
    made: list[Peer] = []

    def make(
        address: Address, identity: Identity | None = GATEWAY, node_id: NodeId | None = None
    ) -> Peer:
        made.append(GrpcTransport(options=secured(identity)).peer(address, node_id))
        return made[-1]

    yield make
    for peer in made:
        await peer.close()


@pytest.mark.parametrize("identity", [GATEWAY, member(), NODE], ids=["gateway", "node", "itself"])
async def test_members_reach_the_node_they_mean(
    serve: Serve, peer_of: Callable[..., Peer], identity: Identity
) -> None:
    address = await serve(ScriptedService(), None, secured(NODE))
    for node_id in (NODE.node_id, None):
        peer = peer_of(address, identity, node_id)
        await peer.health(TIMEOUT)
        seam = await peer.open_seam(TIMEOUT)
        await echo(seam, 1)
        await seam.close()


@pytest.mark.parametrize(
    "identity", [None, FOREIGN, expired()], ids=["plain text", "another cluster's", "expired"]
)
async def test_nobody_else_gets_anything(
    serve: Serve, peer_of: Callable[..., Peer], identity: Identity | None
) -> None:
    service = Untouched()
    peer = peer_of(await serve(service, None, secured(NODE)), identity)
    with pytest.raises(NodeUnreachableError):
        await peer.health(TIMEOUT)
    with pytest.raises(NodeUnreachableError):
        await peer.open_seam(SHORT)
    assert not service.touched


async def test_a_stranger_who_trusts_our_authority_gets_nothing(serve: Serve) -> None:
    """A certificate's own side of the matter: one of another authority, and none at all."""
    service = Untouched()
    address = await serve(service, None, secured(NODE))
    name = [("grpc.ssl_target_name_override", Role.NODE.host_name)]
    ours = AUTHORITY.certificate_pem
    for credentials in (
        grpc.ssl_channel_credentials(ours),
        grpc.ssl_channel_credentials(ours, FOREIGN.key_pem, FOREIGN.certificate_pem),
    ):
        async with grpc.aio.secure_channel(address, credentials, name) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await _unary(channel, "Health")(b"", timeout=TIMEOUT)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert not service.touched


@pytest.mark.parametrize("role", [Role.TRACKER, Role.ADMIN])
async def test_a_member_of_another_role_is_told_so(
    serve: Serve, peer_of: Callable[..., Peer], role: Role
) -> None:
    service = Untouched()
    other = member(role=role)
    peer = peer_of(await serve(service, None, secured(NODE)), other)
    with pytest.raises(UnauthenticatedError, match=f"{role.value} {other.node_id} may not call"):
        await peer.health(TIMEOUT)
    with pytest.raises(UnauthenticatedError):
        await (await peer.open_seam(TIMEOUT)).receive()
    assert not service.touched


async def test_a_node_that_was_removed_is_refused_from_then_on(
    serve: Serve, peer_of: Callable[..., Peer], tmp_path: Path
) -> None:
    folder = IdentityFolder(tmp_path)
    public = folder.public_key()
    folder.keep(AUTHORITY.issue(public, folder.node_id(), role=Role.NODE), NODE.authority_pem)
    service = Untouched()
    other = member()
    peer = peer_of(await serve(service, None, GrpcOptions(tls=folder.files)), other)
    await peer.health(TIMEOUT)
    folder.refuse([other.node_id])
    service.touched = False
    with pytest.raises(UnauthenticatedError, match="was removed"):
        await peer.health(TIMEOUT)
    with pytest.raises(UnauthenticatedError, match="was removed"):
        await (await peer.open_seam(TIMEOUT)).receive()
    assert not service.touched


async def test_the_standard_services_are_for_members_only_too(serve: Serve) -> None:
    address = await serve(ScriptedService(), None, secured(NODE))
    assert await _check(address, GATEWAY) is None
    assert SERVICE_NAME in await _reflected(address, GATEWAY)
    assert await _watched(address, GATEWAY) == health_pb2.HealthCheckResponse.SERVING
    refused = member(role=Role.ADMIN)
    assert await _check(address, refused) is StatusCode.UNAUTHENTICATED
    for ask in (_reflected, _watched):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await ask(address, refused)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


async def test_every_call_of_the_schema_asks_who_calls(serve: Serve) -> None:
    address = await serve(ScriptedService(), None, secured(NODE))
    async with _channel(address, member(role=Role.ADMIN)) as channel:
        for method in pb.DESCRIPTOR.services_by_name["ShardRuntime"].methods:
            path = method_path(method.name)
            call: Any = (
                channel.stream_stream(path)()
                if method.client_streaming
                else _unary(channel, method.name)(b"", timeout=TIMEOUT)
            )
            assert await call.code() is grpc.StatusCode.UNAUTHENTICATED, method.name


@pytest.mark.parametrize(
    ("server", "expected", "words"),
    [
        (member(), NODE.node_id, "isn't the node that was expected"),
        (member(role=Role.GATEWAY), None, "isn't the node that was expected"),
        (FOREIGN, FOREIGN.node_id, "isn't of this cluster"),
        (expired(), None, "has expired"),
        (None, None, "doesn't speak TLS"),
    ],
    ids=["another node", "not a node", "another cluster's", "expired", "plain text"],
)
async def test_a_client_takes_nothing_from_others_and_says_why(
    serve: Serve,
    peer_of: Callable[..., Peer],
    server: Identity | None,
    expected: NodeId | None,
    words: str,
) -> None:
    service = Untouched()
    address = await serve(service, None, secured(server))
    peer = peer_of(address, GATEWAY, expected)
    with pytest.raises(NodeUnreachableError, match=f"{address}: .*{words}"):
        await peer.health(TIMEOUT)
    with pytest.raises(NodeUnreachableError, match=f"{address}: .*{words}"):
        await peer.open_seam(SHORT)
    assert not service.touched


async def test_a_member_that_is_no_node_program_is_said_to_be_none() -> None:
    server, address = await foreign_server()
    peer = GrpcTransport(options=secured(GATEWAY)).peer(address)
    with pytest.raises(NodeUnreachableError, match="doesn't speak TLS"):
        await peer.health(TIMEOUT)
    await peer.close()
    await server.stop(None)


async def test_a_name_that_is_no_node_id_cannot_be_meant(serve: Serve) -> None:
    """Else a chain that calls a hop ``node`` would have any node for it."""
    address = await serve(ScriptedService(), None, secured(NODE))
    pool = ChannelPool(GrpcTransport(options=secured(GATEWAY)))
    with pytest.raises(InvalidArgumentError, match="node_id"):
        await pool.channel(address, TIMEOUT, NodeId("node"))
    await pool.close()


@dataclass
class Changing(IdentitySource):
    """An identity that is renewed, or can't be read, when the test says so."""

    identity: Identity | None

    def load(self) -> Identity:
        if self.identity is None:
            raise InvalidArgumentError("certificate", "it is being written")
        return self.identity

    @property
    def removed(self) -> None:
        return None


def renewed(identity: Identity) -> Identity:
    public = public_key_of(identity.key_pem)
    made = AUTHORITY.issue(public, identity.node_id, role=identity.role)
    return Identity(identity.key_pem, made, identity.authority_pem)


def brief(role: Role) -> Identity:
    """Of a member whose certificate ends in one to two seconds, for it ends on a full one."""
    return member(role=role, days=2.0 / DAY)


async def test_a_node_shows_a_renewed_certificate_to_whoever_connects_then(
    serve: Serve, peer_of: Callable[..., Peer], caplog: pytest.LogCaptureFixture
) -> None:
    source = Changing(brief(Role.NODE))
    assert source.identity is not None
    old, node_id = source.identity, source.identity.node_id
    address = await serve(ScriptedService(), None, GrpcOptions(tls=source))
    early = peer_of(address, GATEWAY, node_id)
    seam = await early.open_seam(TIMEOUT)
    source.identity = None
    await peer_of(address, GATEWAY, node_id).health(TIMEOUT)
    assert "it is being written" in caplog.text
    await asyncio.sleep(max(0.0, old.expires + 0.1 - time.time()))
    with pytest.raises(NodeUnreachableError, match="has expired"):
        await peer_of(address, GATEWAY, node_id).health(TIMEOUT)
    source.identity = renewed(old)
    await peer_of(address, GATEWAY, node_id).health(TIMEOUT)
    await echo(seam, 1)
    await seam.close()


async def test_a_client_shows_its_renewed_certificate_once_the_old_one_has_expired(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "RENEWAL_SECONDS", 0.0)
    source = Changing(brief(Role.GATEWAY))
    assert source.identity is not None
    relay = TcpRelay(await serve(ScriptedService(), None, secured(NODE)))
    peer = GrpcTransport(options=GrpcOptions(tls=source)).peer(Address(await relay.start()))
    seam = await peer.open_seam(TIMEOUT)
    await asyncio.sleep(max(0.0, source.identity.expires + 0.1 - time.time()))
    await peer.health(TIMEOUT)
    source.identity = renewed(source.identity)
    await peer.health(TIMEOUT)
    await echo(seam, 1)
    assert relay.connections == 2, "what began on the old connection stays there"
    await seam.close()
    await peer.close()
    await relay.cut()


async def test_a_pool_takes_a_connection_for_the_node_it_was_made_to(serve: Serve) -> None:
    service = ScriptedService()
    address = await serve(service, None, secured(NODE))
    pool = ChannelPool(GrpcTransport(options=secured(GATEWAY)))
    channel = await pool.channel(address, TIMEOUT, NODE.node_id)
    assert await pool.channel(address, TIMEOUT, NODE.node_id) is channel
    with pytest.raises(NodeUnreachableError, match="isn't the node"):
        await pool.channel(address, SHORT, member().node_id)
    assert channel.broken is None
    await pool.close()


async def test_a_pool_without_tls_has_one_connection_whoever_is_meant(serve: Serve) -> None:
    pool = ChannelPool(GrpcTransport())
    address = await serve(ScriptedService())
    channel = await pool.channel(address, TIMEOUT, NodeId("node-1"))
    assert await pool.channel(address, TIMEOUT) is channel
    await pool.close()


def _unary(
    channel: grpc.aio.Channel, method: str
) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(method_path(method))


def _channel(address: Address, identity: Identity) -> grpc.aio.Channel:
    name = [("grpc.ssl_target_name_override", Role.NODE.host_name)]
    return grpc.aio.secure_channel(address, channel_credentials(identity), name)


async def _check(address: Address, identity: Identity) -> StatusCode | None:
    """What the health service refuses with; None if it answers."""
    async with _channel(address, identity) as channel:
        call = channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        try:
            await call(health_pb2.HealthCheckRequest(), timeout=TIMEOUT)
        except grpc.aio.AioRpcError as error:
            status = status_from_trailer(error.trailing_metadata() or ())
            assert status is not None
            return status.code
    return None


async def _watched(address: Address, identity: Identity) -> int:
    async with _channel(address, identity) as channel, asyncio.timeout(TIMEOUT):
        call: Any = channel.unary_stream(
            "/grpc.health.v1.Health/Watch",
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest())
        status = (await call.read()).status
        call.cancel()
        return int(status)


async def _reflected(address: Address, identity: Identity) -> set[str]:
    async with _channel(address, identity) as channel, asyncio.timeout(TIMEOUT):
        call: Any = channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )()
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        answer = await call.read()
        call.cancel()
        return {service.name for service in answer.list_services_response.service}
