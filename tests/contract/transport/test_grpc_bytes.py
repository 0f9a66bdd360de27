"""Bytes that don't obey the contract, and how both ends of a gRPC stream take them."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio
import pytest

from meshnet.domain.errors import (
    InternalError,
    InvalidArgumentError,
    MalformedFrameError,
    NodeLostError,
)
from meshnet.domain.frames import Release, SeamReply, SeamRequest, SessionFailed
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.nodes import FlowControl
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.transport.base import ServerSeam
from meshnet.transport.methods import method_path
from meshnet.transport.options import FRAME_SLACK_BYTES, GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.compression import Compression
from meshnet.wire.convert import encode_request
from meshnet.wire.status import status_from_trailer
from tests.support.frames import prefill_chunk
from tests.support.networks import Serve, echo, foreign_server
from tests.support.services import FailingService, ScriptedService

TIMEOUT = 5.0

Stream = grpc.aio.StreamStreamCall[bytes, bytes]


def _unary(
    channel: grpc.aio.Channel, method: str
) -> grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]:
    return channel.unary_unary(method_path(method))


def _status(error: grpc.aio.AioRpcError) -> StatusCode | None:
    status = status_from_trailer(error.trailing_metadata() or ())
    return status.code if status is not None else None


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff\xff\xff\xff",
        pb.SessionRequest(decode=pb.DecodeFrame(steps=[pb.DecodeStep()])).SerializeToString(),
        pb.SessionRequest(
            decode=pb.DecodeFrame(steps=[pb.DecodeStep(data=b"1234")])
        ).SerializeToString(),
    ],
    ids=["empty", "noise", "no data", "wrong sum"],
)
async def test_a_malformed_frame_ends_only_its_own_stream(serve: Serve, frame: bytes) -> None:
    service = ScriptedService()
    address = await serve(service)
    peer = GrpcTransport().peer(address)
    innocent = await peer.open_seam(TIMEOUT)
    await echo(innocent, 1)
    async with grpc.aio.insecure_channel(address) as channel:
        call: Stream = channel.stream_stream(method_path("Session"))()
        await call.write(frame)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(TIMEOUT):
                await call.read()
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert _status(caught.value) is StatusCode.MALFORMED_FRAME
    await echo(innocent, 2)
    assert (await peer.health(TIMEOUT)).open_sessions == 1
    await innocent.close()
    await peer.close()


async def test_a_malformed_frame_ends_the_stream_of_a_service_that_overlooks_it(
    serve: Serve,
) -> None:
    class Lenient(ScriptedService):
        async def serve_seam(self, seam: ServerSeam) -> None:
            try:
                await super().serve_seam(seam)
            except MalformedFrameError:
                return

    address = await serve(Lenient())
    async with grpc.aio.insecure_channel(address) as channel:
        call: Stream = channel.stream_stream(method_path("Session"))()
        await call.write(b"\xff")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert _status(caught.value) is StatusCode.MALFORMED_FRAME


@pytest.mark.parametrize("method", ["Release", "Cancel"])
@pytest.mark.parametrize("data", [b"\xff", b""], ids=["noise", "no session"])
async def test_a_malformed_call_is_refused(serve: Serve, method: str, data: bytes) -> None:
    address = await serve(ScriptedService())
    async with grpc.aio.insecure_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await _unary(channel, method)(data, timeout=TIMEOUT)
        assert _status(caught.value) is StatusCode.MALFORMED_FRAME


async def test_every_call_of_the_schema_is_served(serve: Serve) -> None:
    address = await serve(FailingService(InternalError("served")))
    async with grpc.aio.insecure_channel(address) as channel:
        for method in pb.DESCRIPTOR.services_by_name["ShardRuntime"].methods:
            path = method_path(method.name)
            if method.client_streaming:
                call: Stream = channel.stream_stream(path)()
                await call.done_writing()
                code = await call.code()
            else:
                code = await _unary(channel, method.name)(b"", timeout=TIMEOUT).code()
            assert code is not grpc.StatusCode.UNIMPLEMENTED, method.name


async def test_a_frame_over_the_servers_bound_ends_only_its_own_stream(serve: Serve) -> None:
    address = await serve(ScriptedService(), FlowControl(max_chunk_bytes=64))
    peer = GrpcTransport().peer(address)
    innocent, large = await peer.open_seam(TIMEOUT), await peer.open_seam(TIMEOUT)
    large.send(prefill_chunk(rows=128, width=FRAME_SLACK_BYTES // 256))
    with pytest.raises(MalformedFrameError, match="too large for its receiver"):
        await large.receive()
    await echo(innocent, 1)
    await innocent.close()
    await large.close()
    await peer.close()


async def test_a_bundle_over_the_servers_bound_is_malformed_even_in_a_frame_that_fits(
    serve: Serve,
) -> None:
    address = await serve(ScriptedService(), FlowControl(max_chunk_bytes=64))
    peer = GrpcTransport().peer(address)
    seam = await peer.open_seam(TIMEOUT)
    seam.send(prefill_chunk(rows=3, width=8))
    with pytest.raises(MalformedFrameError, match="96 bytes are over the bound of 64"):
        await seam.receive()
    await seam.close()
    await peer.close()


async def test_a_frame_over_the_own_bound_is_the_callers_fault(serve: Serve) -> None:
    peer = GrpcTransport(FlowControl(max_chunk_bytes=64)).peer(await serve(ScriptedService()))
    seam = await peer.open_seam(TIMEOUT)
    with pytest.raises(InvalidArgumentError, match="smaller prefill chunks"):
        seam.send(prefill_chunk(rows=128, width=FRAME_SLACK_BYTES // 256))
    await echo(seam, 1)
    await seam.close()
    await peer.close()


async def test_a_key_the_wire_cannot_carry_is_the_callers_fault(serve: Serve) -> None:
    peer = GrpcTransport().peer(await serve(ScriptedService()))
    with pytest.raises(InvalidArgumentError):
        await peer.release(SessionKey(RouteSessionId("gen-1"), -1), TIMEOUT)
    await peer.close()


async def test_packed_chunks_arrive_as_they_were(serve: Serve) -> None:
    service = ScriptedService()
    peer = GrpcTransport(options=GrpcOptions(compression=Compression.ZSTD)).peer(
        await serve(service)
    )
    seam = await peer.open_seam(TIMEOUT)
    chunk = prefill_chunk(rows=128, width=2048)
    seam.send(chunk)
    await echo(seam, 1)
    assert service.received[0] == chunk
    await seam.close()
    await peer.close()


async def test_a_malformed_reply_ends_the_stream(serve: Serve) -> None:
    async def session(_requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        await context.write(b"\xff")
        await context.read()

    server, address = await foreign_server(session)
    peer = GrpcTransport().peer(address)
    seam = await peer.open_seam(TIMEOUT)
    with pytest.raises(MalformedFrameError, match="SessionResponse"):
        await seam.receive()
    with pytest.raises(NodeLostError):
        seam.send(Release(1))
    await seam.close()
    await peer.close()
    await server.stop(None)


async def test_replies_that_nobody_reads_end_the_stream_with_a_status(serve: Serve) -> None:
    text = "x" * 64 * 1024
    asked = 600

    def answer(request: SeamRequest) -> list[SeamReply]:
        assert isinstance(request, Release)
        return [SessionFailed(request.handle, StructuredStatus(StatusCode.INTERNAL, message=text))]

    service = ScriptedService(answer)
    address = await serve(service, FlowControl(max_chunk_bytes=64))
    async with grpc.aio.insecure_channel(address) as channel:
        call: Stream = channel.stream_stream(method_path("Session"))()
        for handle in range(1, asked + 1):
            await call.write(encode_request(Release(handle)))
        await asyncio.wait_for(service.idle.wait(), TIMEOUT)
        read = 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with asyncio.timeout(TIMEOUT):
                while True:
                    assert isinstance(await call.read(), bytes)
                    read += 1
    assert _status(caught.value) is StatusCode.RESOURCE_EXHAUSTED
    assert "waiting to be read" in (caught.value.details() or "")
    assert read < asked / 2
