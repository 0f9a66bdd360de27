"""A node's server as a process: bytes that aren't frames, bounds, and ends, in either language."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from meshnet.domain.errors import MalformedFrameError, NodeLostError
from meshnet.domain.frames import (
    DecodeFrame,
    OpenSession,
    PrefillChunk,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    StepAck,
    TokenReply,
    Unknown,
)
from meshnet.domain.generation import GeneratedToken
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.transport.base import ClientSeam, Peer
from meshnet.transport.methods import method_path
from meshnet.transport.options import FRAME_SLACK_BYTES, GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.status import status_from_trailer
from tests.support.external_node import LAYERS, ExternalNode, Language, NodeSetup
from tests.support.frames import prefill_chunk
from tests.support.mesh import alone, prompt_of
from tests.support.services import ScriptedService
from tests.support.upstream import Upstream, receive

TIMEOUT = 5.0
PROMPT = prompt_of(9)
SMALL = FlowControl(max_chunk_bytes=64)
TAIL = LayerRange(3, LAYERS)

CONFORMANCE = Path(__file__).parents[3] / "conformance"
CASES = json.loads((CONFORMANCE / "vectors.json").read_text())
KINDS = {case["name"]: case["message"] for case in CASES["vectors"]}


def _malformed(kind: str) -> Iterator[tuple[bytes, str]]:
    """Messages of that type which no reader takes, and the field that is wrong."""
    for case in CASES["malformed"]:
        if "max_bytes" not in case and (case.get("message") or KINDS[case["base"]]) == kind:
            data = (CONFORMANCE / "malformed" / f"{case['name']}.bin").read_bytes()
            yield data, case["field"]


def _told(error: grpc.aio.AioRpcError) -> StructuredStatus:
    status = status_from_trailer(error.trailing_metadata() or ())
    assert status is not None, error
    return status


@asynccontextmanager
async def _small(language: Language) -> AsyncIterator[Peer]:
    """A connection to a tail that takes 64 bytes of tensors at most."""
    with ExternalNode(language, NodeSetup(TAIL, NodeId("small"), flow=SMALL)) as node:
        peer = GrpcTransport().peer(node.address)
        yield peer
        await peer.close()


async def test_every_malformed_request_ends_its_own_stream_with_the_fields_name(
    tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    innocent = Upstream(tail_seam, tail.setup, [tail.hop])
    await innocent.open()
    async with grpc.aio.insecure_channel(tail.address) as channel:
        for data, field in _malformed("SessionRequest"):
            call: Any = channel.stream_stream(method_path("Session"))(timeout=TIMEOUT)
            await call.write(data)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call.read()
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            told = _told(caught.value)
            assert told.code is StatusCode.MALFORMED_FRAME
            assert told.details["field"] == field
    assert await innocent.answer(PROMPT, 2) == alone(PROMPT, 2)


@pytest.mark.parametrize("method", ["Release", "Cancel"])
async def test_every_malformed_call_is_answered_with_the_fields_name(
    tail: ExternalNode, method: str
) -> None:
    async with grpc.aio.insecure_channel(tail.address) as channel:
        call: Any = channel.unary_unary(method_path(method))
        for data, field in _malformed(f"{method}Request"):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await call(data, timeout=TIMEOUT)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert _told(caught.value).details["field"] == field


async def test_every_call_of_the_schema_is_served(tail: ExternalNode) -> None:
    async with grpc.aio.insecure_channel(tail.address) as channel:
        for method in pb.DESCRIPTOR.services_by_name["ShardRuntime"].methods:
            path = method_path(method.name)
            if method.client_streaming:
                call: Any = channel.stream_stream(path)(timeout=TIMEOUT)
                await call.done_writing()
            else:
                ask: Any = channel.unary_unary(path)
                call = ask(b"", timeout=TIMEOUT)
            assert await call.code() is not grpc.StatusCode.UNIMPLEMENTED, method.name


async def test_a_middle_hands_on_the_terms_and_what_a_newer_peer_adds(language: Language) -> None:
    newer = Unknown(b"\xfa\x3f\x05later", b"\xf8\x3f\x07")  # field 1023, as bytes and as a number
    newer_reply = Unknown(b"\xf0\x3f\x01")

    def answer(request: SeamRequest) -> Iterator[SeamReply]:
        if isinstance(request, OpenSession):
            yield SessionOpened(request.handle, FlowControl())
        elif isinstance(request, DecodeFrame):
            (step,) = request.steps
            yield TokenReply(
                step.handle, step.step, GeneratedToken(9, 65), Unknown(b"\xf0\x3f\x01")
            )

    beyond = ScriptedService(answer)
    server = GrpcNodeServer(beyond, "127.0.0.1:0")
    hop = Hop(NodeId("beyond"), await server.start(), LayerRange(4, LAYERS))
    setup = NodeSetup(LayerRange(2, 4), NodeId("middle"), flow=FlowControl(chunk_credits=2))
    with ExternalNode(language, setup) as node:
        peer = GrpcTransport().peer(node.address)
        seam = await peer.open_seam(TIMEOUT)
        session = Upstream(seam, setup, [node.hop, hop])
        seam.send(replace(session.opening(), unknown=newer))
        await receive(seam, SessionOpened)
        (chunk,) = session.chunks(PROMPT[:8])
        seam.send(replace(chunk, unknown=newer))
        await receive(seam, StepAck)
        step = session.decode_step(65, 8)
        seam.send(DecodeFrame((replace(step, unknown=Unknown(newer.message)),)))
        assert (await receive(seam, TokenReply)).unknown == newer_reply
        await seam.close()
        await peer.close()
    await server.stop()
    opened, prefilled, decoded = beyond.received[:3]
    assert isinstance(opened, OpenSession)
    assert opened.terms == replace(session.terms, hops=(hop,))
    assert opened.flow == setup.flow
    assert isinstance(prefilled, PrefillChunk)
    assert isinstance(decoded, DecodeFrame)
    assert opened.unknown == prefilled.unknown == newer
    assert decoded.steps[0].unknown.message == newer.message


async def test_a_frame_over_the_bound_ends_only_its_own_stream(language: Language) -> None:
    async with _small(language) as peer:
        innocent, large = await peer.open_seam(TIMEOUT), await peer.open_seam(TIMEOUT)
        large.send(prefill_chunk(rows=128, width=FRAME_SLACK_BYTES // 256))
        with pytest.raises(MalformedFrameError, match="too large for its receiver"):
            await asyncio.wait_for(large.receive(), TIMEOUT)
        large_bundle = await peer.open_seam(TIMEOUT)
        large_bundle.send(prefill_chunk(rows=3, width=8))
        with pytest.raises(MalformedFrameError, match=r"bundle\.total_bytes") as caught:
            await asyncio.wait_for(large_bundle.receive(), TIMEOUT)
        assert caught.value.details["field"] == "bundle.total_bytes"
        innocent.send(_opening(SMALL))
        assert (await receive(innocent, SessionOpened)).flow == SMALL
        for seam in (innocent, large, large_bundle):
            await seam.close()


def _opening(flow: FlowControl) -> OpenSession:
    setup = NodeSetup(TAIL, NodeId("small"), flow=flow)
    hop = Hop(NodeId("small"), Address("127.0.0.1:1"), TAIL)
    return Upstream(None, setup, [hop]).opening()  # type: ignore[arg-type]


async def test_a_node_that_is_killed_is_lost_within_a_second(language: Language) -> None:
    with ExternalNode(language, NodeSetup(TAIL, NodeId("tail"))) as node:
        peer = GrpcTransport().peer(node.address)
        seam = await peer.open_seam(TIMEOUT)
        await Upstream(seam, node.setup, [node.hop]).open()
        node.process.kill()
        with pytest.raises(NodeLostError, match=node.address):
            await asyncio.wait_for(seam.receive(), 1.0)
        await seam.close()
        await peer.close()


@pytest.mark.parametrize("how", ["input", "signal"])
async def test_a_node_stops_within_a_second_though_sessions_are_open(
    language: Language, how: str
) -> None:
    with ExternalNode(language, NodeSetup(TAIL, NodeId("tail"))) as node:
        peer = GrpcTransport().peer(node.address)
        seam = await peer.open_seam(TIMEOUT)
        await Upstream(seam, node.setup, [node.hop]).open()
        before = time.monotonic()
        if how == "signal":
            node.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(node.stop) == 0
        assert time.monotonic() - before < 1.0
        with pytest.raises(NodeLostError):
            await asyncio.wait_for(seam.receive(), TIMEOUT)
        await seam.close()
        await peer.close()


@pytest.mark.native
async def test_a_next_node_that_is_not_there_is_named() -> None:
    middle = LayerRange(2, 4)
    with ExternalNode("native", NodeSetup(middle, NodeId("middle"))) as node:
        peer = GrpcTransport().peer(node.address)
        seam = await peer.open_seam(TIMEOUT)
        nowhere = Hop(NodeId("nowhere"), Address("127.0.0.1:1"), LayerRange(4, LAYERS))
        seam.send(Upstream(seam, node.setup, [node.hop, nowhere]).opening())
        failed = await receive(seam, SessionFailed)
        assert failed.status.code is StatusCode.NODE_UNREACHABLE
        assert failed.status.details["node"] == "nowhere"
        await seam.close()
        await peer.close()


@pytest.mark.native
async def test_a_quiet_connection_is_kept() -> None:
    """Keep-alive pings with nothing going on must not look like abuse to the server."""
    options = GrpcOptions(keepalive_seconds=1.0, keepalive_timeout_seconds=0.5)
    with ExternalNode("native", NodeSetup(TAIL, NodeId("tail"))) as node:
        peer = GrpcTransport(options=options).peer(node.address)
        seam = await peer.open_seam(TIMEOUT)
        session = Upstream(seam, node.setup, [node.hop])
        await session.open()
        await asyncio.sleep(3.2)
        assert await session.answer(PROMPT, 2) == alone(PROMPT, 2)
        await seam.close()
        await peer.close()


async def test_a_frame_with_a_step_of_no_session_serves_the_others(
    tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    session = Upstream(tail_seam, tail.setup, [tail.hop])
    await session.open()
    token = await session.prefill(PROMPT)
    stranger = Upstream(tail_seam, tail.setup, [tail.hop], handle=9)
    stranger.chunks(PROMPT)
    steps = (stranger.decode_step(65, len(PROMPT)), session.decode_step(token, len(PROMPT)))
    tail_seam.send(DecodeFrame(steps))
    failed = await receive(tail_seam, SessionFailed)
    assert (failed.handle, failed.status.code) == (9, StatusCode.SESSION_NOT_FOUND)
    reply = await receive(tail_seam, TokenReply)
    assert (reply.handle, reply.token.token_id) == (1, alone(PROMPT, 2)[1])
