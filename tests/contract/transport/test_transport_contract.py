"""What every transport keeps to, tried over loopback, gRPC, gRPC with TLS, and the relay."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable

import pytest

from meshnet.domain.errors import (
    InternalError,
    NodeError,
    NodeLostError,
    NodeUnreachableError,
    error_from,
    status_of,
)
from meshnet.domain.frames import (
    DecodeFrame,
    Release,
    SeamReply,
    SeamRequest,
    SessionReleased,
    StepAck,
    TokenReply,
)
from meshnet.domain.lifecycle import CacheResult, LifecycleState
from meshnet.domain.nodes import HealthReport
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.transport.base import ClientSeam, ServerSeam
from tests.support.frames import CAPABILITY, KEY, REPLIES, REQUESTS, decode_step
from tests.support.networks import Grpc, GrpcTls, Loopback, Network
from tests.support.relays import GrpcRelayed
from tests.support.services import (
    FailingService,
    ScriptedService,
    StubbornService,
    token_per_step,
)

TIMEOUT = 5.0
ERROR_CODES = [code for code in StatusCode if code is not StatusCode.OK]


@pytest.fixture(params=[Loopback, Grpc, GrpcTls, GrpcRelayed])
async def network(request: pytest.FixtureRequest) -> AsyncIterator[Network]:
    made: Network = request.param()
    yield made
    await made.close()
    others = asyncio.all_tasks() - {asyncio.current_task()}
    leaked = [task for task in others if "meshnet" in repr(task.get_coro())]
    assert not leaked


async def _receive(seam: ClientSeam, count: int) -> list[SeamReply]:
    async with asyncio.timeout(TIMEOUT):
        return [await seam.receive() for _ in range(count)]


async def _lost(seam: ClientSeam) -> NodeLostError:
    async with asyncio.timeout(1.0):
        with pytest.raises(NodeLostError) as caught:
            while True:
                await seam.receive()
    return caught.value


async def test_capability_and_health_arrive_as_they_are(network: Network) -> None:
    peer = network.transport.peer(await network.serve(ScriptedService()))
    assert await peer.capability(TIMEOUT) == CAPABILITY
    assert await peer.health(TIMEOUT) == HealthReport(LifecycleState.READY, steps_done=9)
    await peer.close()


async def test_release_and_cancel_name_the_session(network: Network) -> None:
    service = ScriptedService()
    peer = network.transport.peer(await network.serve(service))
    await peer.release(KEY, TIMEOUT)
    await peer.cancel(KEY, "no longer wanted", TIMEOUT)
    assert service.released == [KEY]
    assert service.cancelled == [(KEY, "no longer wanted")]
    await peer.close()


async def test_a_peer_knows_its_address_and_connects_only_when_asked(network: Network) -> None:
    peer = network.transport.peer(network.nowhere)
    assert peer.address == network.nowhere
    await peer.close()
    await peer.close()


@pytest.mark.parametrize("code", ERROR_CODES)
async def test_an_error_arrives_as_itself(network: Network, code: StatusCode) -> None:
    retryable = status_of(error_from(StructuredStatus(code))).retryable
    status = StructuredStatus(
        code, retryable, f"{code.value}: what to do", {"field": "x", "n": "1"}
    )
    peer = network.transport.peer(await network.serve(FailingService(error_from(status))))
    seam = await peer.open_seam(TIMEOUT)
    for call in (
        peer.capability(TIMEOUT),
        peer.health(TIMEOUT),
        peer.release(KEY, TIMEOUT),
        peer.cancel(KEY, "why", TIMEOUT),
        seam.receive(),
    ):
        with pytest.raises(type(error_from(status))) as caught:
            await call
        assert status_of(caught.value) == status
    await seam.close()
    await peer.close()


async def test_a_fault_of_a_service_arrives_as_internal_and_is_logged(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    peer = network.transport.peer(await network.serve(FailingService(KeyError("oops"))))
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError, match="oops"):
        await peer.health(TIMEOUT)
    assert "KeyError" in caplog.text
    caplog.clear()
    seam = await peer.open_seam(TIMEOUT)
    with caplog.at_level(logging.ERROR), pytest.raises(InternalError, match="oops"):
        await seam.receive()
    assert "KeyError" in caplog.text
    await seam.close()
    await peer.close()


async def test_every_frame_arrives_equal_and_in_order(network: Network) -> None:
    def answer_at_the_end(request: SeamRequest) -> Iterable[SeamReply]:
        return REPLIES if isinstance(request, Release) else ()

    service = ScriptedService(answer_at_the_end)
    peer = network.transport.peer(await network.serve(service))
    seam = await peer.open_seam(TIMEOUT)
    for request in REQUESTS:
        seam.send(request)
    assert await _receive(seam, len(REPLIES)) == list(REPLIES)
    assert service.received == list(REQUESTS)
    await seam.close()
    await peer.close()


async def test_a_thousand_frames_keep_their_order(network: Network) -> None:
    def answer(request: SeamRequest) -> Iterable[SeamReply]:
        for reply in token_per_step(request):
            yield reply
            if isinstance(reply, TokenReply) and reply.step % 7 == 0:
                yield StepAck(reply.handle, reply.step, False, CacheResult(True, 1))

    service = ScriptedService(answer)
    peer = network.transport.peer(await network.serve(service))
    seam = await peer.open_seam(TIMEOUT)
    for step in range(1000):
        seam.send(DecodeFrame((decode_step(1, step),)))
        if step % 100 == 0:
            await asyncio.sleep(0)
    seam.send(Release(1))
    replies = await _receive(seam, 1000 + len(range(0, 1000, 7)))
    assert [reply.step for reply in replies if isinstance(reply, TokenReply)] == list(range(1000))
    acks = [place for place, reply in enumerate(replies) if isinstance(reply, StepAck)]
    assert all(replies[place - 1].step == replies[place].step for place in acks)  # type: ignore[union-attr]
    sent = [step for frame in service.received[:-1] for step in frame.steps]  # type: ignore[union-attr]
    assert sent == [decode_step(1, step) for step in range(1000)]
    assert service.received[-1] == Release(1)
    await seam.close()
    await peer.close()


async def test_seams_do_not_mix(network: Network) -> None:
    addresses = [await network.serve(ScriptedService()) for _ in range(2)]
    peers = [network.transport.peer(address) for address in (*addresses, addresses[0])]
    seams = [await peer.open_seam(TIMEOUT) for peer in (*peers, *peers)]
    for step in range(20):
        for handle, seam in enumerate(seams):
            seam.send(DecodeFrame((decode_step(handle, step),)))
    for handle, seam in enumerate(seams):
        found = [(r.handle, r.step) for r in await _receive(seam, 20) if isinstance(r, TokenReply)]
        assert found == [(handle, step) for step in range(20)]
    for seam in seams:
        await seam.close()
    for peer in peers:
        await peer.close()


async def test_a_cancelled_receive_loses_nothing(network: Network) -> None:
    peer = network.transport.peer(await network.serve(ScriptedService()))
    seam = await peer.open_seam(TIMEOUT)
    for step in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(seam.receive(), 0.02)
        seam.send(DecodeFrame((decode_step(1, step),)))
        assert [r.step for r in await _receive(seam, 1) if isinstance(r, TokenReply)] == [step]
    await seam.close()
    await peer.close()


async def test_the_server_sees_what_was_sent_before_the_opener_closed_and_then_the_end(
    network: Network,
) -> None:
    service = ScriptedService()
    peer = network.transport.peer(await network.serve(service))
    seam = await peer.open_seam(TIMEOUT)
    for step in range(50):
        seam.send(DecodeFrame((decode_step(1, step),)))
    seam.send(Release(1))
    await seam.close()
    await asyncio.wait_for(service.saw_end.wait(), 1)
    assert service.received[-1] == Release(1)
    await seam.close()
    await _lost(seam)
    with pytest.raises(NodeLostError):
        seam.send(Release(1))
    await peer.close()


async def test_replies_queued_when_the_server_ends_a_stream_still_arrive(network: Network) -> None:
    class Brief(ScriptedService):
        async def serve_seam(self, seam: ServerSeam) -> None:
            for handle in range(20):
                seam.send(SessionReleased(handle, ()))

    address = await network.serve(Brief())
    peer = network.transport.peer(address)
    seam = await peer.open_seam(TIMEOUT)
    assert await _receive(seam, 20) == [SessionReleased(handle, ()) for handle in range(20)]
    assert address in str(await _lost(seam))
    with pytest.raises(NodeLostError, match=address):
        seam.send(Release(1))
    await seam.close()
    await peer.close()


async def test_a_dead_node_is_lost_within_a_second_and_frees_what_it_served(
    network: Network,
) -> None:
    service = ScriptedService()
    address = await network.serve(service)
    peer = network.transport.peer(address)
    seams = [await peer.open_seam(TIMEOUT) for _ in range(2)]
    for seam in seams:
        seam.send(DecodeFrame((decode_step(1, 1),)))
        await _receive(seam, 1)
    await network.kill(address)
    for seam in seams:
        assert address in str(await _lost(seam))
        with pytest.raises(NodeLostError, match=address):
            seam.send(Release(1))
    await asyncio.wait_for(service.idle.wait(), 1)
    for seam in seams:
        await seam.close()
    with pytest.raises(NodeUnreachableError, match=address):
        await peer.health(1.0)
    await peer.close()


async def test_a_client_that_vanishes_under_a_flood_of_replies_leaves_nothing_behind(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    class Flood(ScriptedService):
        async def serve_seam(self, seam: ServerSeam) -> None:
            self.serving += 1
            try:
                while not self.saw_end.is_set():
                    seam.send(SessionReleased(1, ()))
                    await asyncio.sleep(0)
            finally:
                self.serving -= 1
                self.idle.set()

    service = Flood()
    address = await network.serve(service)
    peer = network.transport.peer(address)
    seam = await peer.open_seam(TIMEOUT)
    await _receive(seam, 100)
    await network.kill(address)
    await asyncio.wait_for(service.idle.wait(), 2)
    await seam.close()
    await peer.close()
    assert not caplog.records


@pytest.mark.parametrize("call", ["health", "open_seam"])
async def test_an_unreachable_node_is_named_within_the_timeout(network: Network, call: str) -> None:
    peer = network.transport.peer(network.nowhere)
    before = time.monotonic()
    with pytest.raises(NodeUnreachableError, match=network.nowhere):
        await (peer.health(0.3) if call == "health" else peer.open_seam(0.3))
    assert time.monotonic() - before < 1.0
    await peer.close()


async def test_a_node_that_does_not_answer_is_unreachable(network: Network) -> None:
    address = await network.serve(StubbornService())
    peer = network.transport.peer(address)
    with pytest.raises(NodeUnreachableError, match=f"{address}: no answer within 0.2 s"):
        await peer.capability(0.2)
    await peer.close()


async def test_a_node_that_dies_while_it_answers_is_named(network: Network) -> None:
    address = await network.serve(StubbornService())
    peer = network.transport.peer(address)
    asking = asyncio.create_task(peer.capability(TIMEOUT))
    await asyncio.sleep(0.1)
    await network.kill(address)
    async with asyncio.timeout(1.0):
        with pytest.raises(NodeError, match=address):
            await asking
    await peer.close()


async def test_a_service_that_does_not_end_with_its_stream_is_cancelled(network: Network) -> None:
    service = StubbornService()
    peer = network.transport.peer(await network.serve(service))
    seam = await peer.open_seam(TIMEOUT)
    await asyncio.sleep(0.05)
    assert service.serving == 1
    before = time.monotonic()
    await seam.close()
    assert time.monotonic() - before < 1.0
    await asyncio.wait_for(service.idle.wait(), 1)
    await peer.close()


async def test_closing_wakes_whoever_waits_for_a_reply(network: Network) -> None:
    peer = network.transport.peer(await network.serve(ScriptedService()))
    seam = await peer.open_seam(TIMEOUT)
    waiting = asyncio.create_task(_lost(seam))
    await asyncio.sleep(0.02)
    await seam.close()
    await asyncio.wait_for(waiting, 1)
    await peer.close()
