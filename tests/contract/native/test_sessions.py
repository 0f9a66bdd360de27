"""What a tail does with sessions, whichever language it is written in."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from meshnet.domain.frames import (
    Cancel,
    DecodeFrame,
    Generate,
    PrefillChunk,
    Release,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    StepAck,
    TokenReply,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import Address, Digest, NodeId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, LifecycleState
from meshnet.domain.nodes import Hop
from meshnet.domain.status import StatusCode
from meshnet.transport.base import ClientSeam, Peer
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.wire.compression import Compression
from tests.support.external_node import ExternalNode
from tests.support.mesh import alone, prompt_of
from tests.support.upstream import GREEDY, Upstream, new_key, receive, renamed, until_idle

TIMEOUT = 5.0
PROMPT = prompt_of(19)


@pytest.fixture
def session(tail: ExternalNode, tail_seam: ClientSeam) -> Upstream:
    """A session that isn't open yet."""
    return Upstream(tail_seam, tail.setup, [tail.hop])


async def _failed(seam: ClientSeam, handle: int, code: StatusCode) -> SessionFailed:
    reply = await receive(seam, SessionFailed)
    assert (reply.handle, reply.status.code) == (handle, code), reply
    assert reply.status.message
    return reply


async def test_capability_is_what_the_node_was_started_with(
    tail: ExternalNode, tail_peer: Peer
) -> None:
    assert await tail_peer.capability(TIMEOUT) == tail.setup.capability(tail.dtypes)


async def test_health_counts_sessions_and_steps(session: Upstream, tail_peer: Peer) -> None:
    before = await tail_peer.health(TIMEOUT)
    assert (before.state, before.open_sessions) == (LifecycleState.READY, 0)
    await session.open()
    await session.answer(PROMPT, 3)
    during = await tail_peer.health(TIMEOUT)
    assert (during.open_sessions, during.steps_done) == (1, before.steps_done + 3 + 2)
    await session.release()
    assert (await tail_peer.health(TIMEOUT)).open_sessions == 0


async def test_a_session_gives_the_tokens_of_an_engine_with_all_layers(
    session: Upstream, tail: ExternalNode
) -> None:
    assert (await session.open()).flow == tail.setup.flow
    assert await session.answer(PROMPT, 12) == alone(PROMPT, 12)
    released = await session.release()
    (timing,) = released.timings
    assert (timing.node_id, timing.layers) == (tail.setup.node_id, tail.setup.layers)
    assert (timing.prefill_tokens, timing.decode_steps) == (len(PROMPT), 11)
    assert timing.prefill_engine_nanos > 0
    assert timing.decode_downstream_nanos == 0


@pytest.mark.parametrize("length", [1, 8, 9, 40])
async def test_a_prompt_may_have_any_length(session: Upstream, length: int) -> None:
    await session.open()
    assert await session.answer(prompt_of(length), 3) == alone(prompt_of(length), 3)


async def test_many_sessions_share_a_stream_and_a_frame(
    tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    sessions = [Upstream(tail_seam, tail.setup, [tail.hop], handle) for handle in range(3, 9)]
    prompts = [prompt_of(3 + handle, handle) for handle in range(6)]
    answers = []
    for session, prompt in zip(sessions, prompts, strict=True):
        await session.open()
        answers.append([await session.prefill(prompt)])
    for _ in range(5):
        tails = zip(sessions, prompts, answers, strict=True)
        steps = [s.decode_step(a[-1], len(p) + len(a) - 1) for s, p, a in tails]
        tail_seam.send(DecodeFrame(tuple(steps)))
        replies = [await receive(tail_seam, TokenReply) for _ in steps]
        found = {reply.handle: reply.token.token_id for reply in replies}
        for session, answer in zip(sessions, answers, strict=True):
            answer.append(found[session.handle])
    assert answers == [alone(prompt, 6) for prompt in prompts]


async def test_two_hundred_steps_sent_at_once_come_back_in_order(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    await session.open()
    first = await session.prefill(PROMPT)
    tokens = [first, *alone(PROMPT, 201)[1:]]
    for index in range(200):
        step = session.decode_step(tokens[index], len(PROMPT) + index)
        tail_seam.send(DecodeFrame((step,)))
        if index % 4 == 3:
            replies = [await receive(tail_seam, TokenReply) for _ in range(4)]
            expected = tokens[index - 2 : index + 2]
            assert [reply.token.token_id for reply in replies] == expected


async def test_packed_chunks_are_read(tail: ExternalNode) -> None:
    peer = GrpcTransport(options=GrpcOptions(compression=Compression.ZSTD)).peer(tail.address)
    seam = await peer.open_seam(TIMEOUT)
    session = Upstream(seam, tail.setup, [tail.hop])
    await session.open()
    assert await session.answer(PROMPT, 3) == alone(PROMPT, 3)
    await seam.close()
    await peer.close()


async def test_a_chunk_that_comes_again_gets_the_first_answer(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    await session.open()
    first, second, last = session.chunks(PROMPT)
    tail_seam.send(first)
    ack = await receive(tail_seam, StepAck)
    assert (ack.step, ack.duplicate, ack.cache.past_len) == (0, False, 8)
    tail_seam.send(first)
    assert await receive(tail_seam, StepAck) == replace(ack, duplicate=True)
    tail_seam.send(second)
    assert (await receive(tail_seam, StepAck)).cache.past_len == 16
    tail_seam.send(first)
    assert await receive(tail_seam, StepAck) == replace(ack, duplicate=True)
    tail_seam.send(last)
    assert (await receive(tail_seam, TokenReply)).token.token_id == alone(PROMPT, 1)[0]
    assert not (await receive(tail_seam, StepAck)).duplicate


async def test_a_decode_step_that_comes_again_is_not_applied_again(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    expected = alone(PROMPT, 3)
    await session.open()
    first = await session.prefill(PROMPT)
    step = session.decode_step(first, len(PROMPT))
    tail_seam.send(DecodeFrame((step,)))
    reply = await receive(tail_seam, TokenReply)
    assert reply.token.token_id == expected[1]
    tail_seam.send(DecodeFrame((step,)))
    assert await receive(tail_seam, TokenReply) == reply
    ack = await receive(tail_seam, StepAck)
    assert (ack.step, ack.duplicate, ack.cache.past_len) == (step.step, True, len(PROMPT) + 1)
    assert await session.decode(expected[1], len(PROMPT) + 1) == expected[2]


async def test_a_truncating_chunk_takes_the_cache_back(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    await session.open()
    frames = session.chunks(PROMPT)
    for frame in frames:
        tail_seam.send(frame)
        await receive(tail_seam, TokenReply if frame.chunk.final else StepAck)
    await receive(tail_seam, StepAck)
    again = replace(frames[1], step=9, expectation=CacheExpectation(CacheMode.TRUNCATE, 8))
    tail_seam.send(again)
    assert (await receive(tail_seam, StepAck)).cache.past_len == 16
    tail_seam.send(replace(frames[2], step=10))
    assert (await receive(tail_seam, TokenReply)).token.token_id == alone(PROMPT, 1)[0]


def _changed_chunk(**changes: object) -> Callable[[PrefillChunk], PrefillChunk]:
    return lambda chunk: replace(chunk, step=5, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "change",
    [
        _changed_chunk(expectation=CacheExpectation(CacheMode.FRESH, 0), position=0),
        _changed_chunk(expectation=CacheExpectation(CacheMode.EXACT, 9), position=9),
        _changed_chunk(expectation=CacheExpectation(CacheMode.EXACT, 7), position=7),
        _changed_chunk(expectation=CacheExpectation(CacheMode.TRUNCATE, 9), position=9),
    ],
    ids=["fresh twice", "too long", "too short", "truncate to more"],
)
async def test_a_chunk_for_another_cache_misses(
    session: Upstream, tail_seam: ClientSeam, change: Callable[[PrefillChunk], PrefillChunk]
) -> None:
    await session.open()
    first, second, _ = session.chunks(PROMPT)
    tail_seam.send(first)
    await receive(tail_seam, StepAck)
    tail_seam.send(change(second))
    assert (await _failed(tail_seam, 1, StatusCode.CACHE_MISS)).status.retryable


@pytest.mark.parametrize("changes", [{"position": 18}, {"expected_past_len": 18}], ids=str)
async def test_a_decode_step_for_another_cache_misses(
    session: Upstream, tail_seam: ClientSeam, changes: dict[str, int]
) -> None:
    await session.open()
    token = await session.prefill(PROMPT)
    step = session.decode_step(token, len(PROMPT))
    tail_seam.send(DecodeFrame((replace(step, **changes),)))  # type: ignore[arg-type]
    await _failed(tail_seam, 1, StatusCode.CACHE_MISS)


async def test_a_session_cannot_outgrow_the_context(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    await session.open()
    await session.prefill(prompt_of(256))
    tail_seam.send(DecodeFrame((session.decode_step(65, 256),)))
    await _failed(tail_seam, 1, StatusCode.CONTEXT_LENGTH_EXCEEDED)


async def test_an_opener_that_computes_other_numbers_is_refused(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    other = replace(session.terms.fingerprint, runtime_recipe_digest=Digest("sha256:other"))
    tail_seam.send(session.opening(fingerprint=other))
    failed = await _failed(tail_seam, 1, StatusCode.FINGERPRINT_MISMATCH)
    assert failed.status.details["there"] == "sha256:other"
    assert not failed.status.retryable


async def test_a_route_that_does_not_fit_is_refused(
    session: Upstream, tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    beyond = Hop(NodeId("beyond"), Address("127.0.0.1:1"), LayerRange(6, 7))
    for hops in ((replace(tail.hop, layers=LayerRange(2, 6)),), (tail.hop, beyond)):
        tail_seam.send(session.opening(hops=hops))
        await _failed(tail_seam, 1, StatusCode.LAYER_RANGE_INVALID)
    spec = GenerationSpec(PROMPT, GREEDY, 4)
    tail_seam.send(Generate(1, session.terms, spec, 1))
    await _failed(tail_seam, 1, StatusCode.LAYER_RANGE_INVALID)


async def test_an_older_epoch_is_refused_and_a_newer_one_takes_its_place(
    tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    old, new = (Upstream(tail_seam, tail.setup, [tail.hop], handle) for handle in (1, 2))
    old.terms = renamed(old.terms, 1)
    new.terms = renamed(old.terms, 2)
    await old.open()
    await old.prefill(PROMPT)
    tail_seam.send(new.opening())
    await _failed(tail_seam, 1, StatusCode.STALE_EPOCH)
    assert (await receive(tail_seam, SessionOpened)).handle == 2
    assert await new.answer(PROMPT, 3) == alone(PROMPT, 3)
    tail_seam.send(old.opening())
    await _failed(tail_seam, 1, StatusCode.STALE_EPOCH)


async def test_a_chunk_of_another_epoch_ends_the_session(
    session: Upstream, tail_seam: ClientSeam
) -> None:
    await session.open()
    other = SessionKey(session.key.session_id, 7)
    tail_seam.send(replace(session.chunks(PROMPT)[0], key=other))
    await _failed(tail_seam, 1, StatusCode.STALE_EPOCH)


async def test_a_session_that_is_open_cannot_be_opened_again(
    session: Upstream, tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    await session.open()
    twin = Upstream(tail_seam, tail.setup, [tail.hop], 2)
    twin.terms = session.terms
    tail_seam.send(twin.opening())
    failed = await _failed(tail_seam, 2, StatusCode.INVALID_ARGUMENT)
    assert failed.status.details["field"] == "route_epoch"
    other = Upstream(tail_seam, tail.setup, [tail.hop], 1)
    tail_seam.send(other.opening())
    failed = await _failed(tail_seam, 1, StatusCode.INVALID_ARGUMENT)
    assert failed.status.details["field"] == "handle"


async def test_one_session_more_than_the_node_serves_is_refused(
    tail: ExternalNode, tail_seam: ClientSeam, tail_peer: Peer
) -> None:
    most = tail.setup.flow.max_sessions
    sessions = [Upstream(tail_seam, tail.setup, [tail.hop], n) for n in range(1, most + 2)]
    for session in sessions[:most]:
        await session.open()
    tail_seam.send(sessions[most].opening())
    failed = await _failed(tail_seam, most + 1, StatusCode.RESOURCE_EXHAUSTED)
    assert failed.status.retryable
    assert (await tail_peer.health(TIMEOUT)).state is LifecycleState.READY
    await sessions[0].release()
    await sessions[most].open()


async def test_a_session_ends_at_its_deadline(session: Upstream, tail_seam: ClientSeam) -> None:
    session.terms = replace(session.terms, deadline_unix_nanos=time.time_ns() + 200_000_000)
    await session.open()
    await _failed(tail_seam, 1, StatusCode.DEADLINE_EXCEEDED)


async def test_a_cancel_from_outside_ends_a_session_and_refuses_its_steps(
    session: Upstream, tail_seam: ClientSeam, tail_peer: Peer
) -> None:
    await session.open()
    await session.prefill(PROMPT)
    await tail_peer.cancel(session.key, "no longer wanted", TIMEOUT)
    failed = await _failed(tail_seam, 1, StatusCode.CANCELLED)
    assert "no longer wanted" in failed.status.message
    await tail_peer.cancel(session.key, "", TIMEOUT)
    await until_idle(tail_peer)


async def test_a_cancel_that_comes_before_its_session_holds(
    session: Upstream, tail_seam: ClientSeam, tail_peer: Peer
) -> None:
    await tail_peer.cancel(session.key, "too late", TIMEOUT)
    await session.open()
    tail_seam.send(session.chunks(PROMPT)[0])
    await _failed(tail_seam, 1, StatusCode.CANCELLED)


async def test_a_release_from_outside_ends_a_session(
    session: Upstream, tail_seam: ClientSeam, tail_peer: Peer
) -> None:
    await session.open()
    await tail_peer.release(session.key, TIMEOUT)
    await _failed(tail_seam, 1, StatusCode.CANCELLED)
    await tail_peer.release(new_key(), TIMEOUT)


async def test_a_cancel_on_the_stream_is_silent_and_its_late_frames_are_dropped(
    session: Upstream, tail: ExternalNode, tail_seam: ClientSeam, tail_peer: Peer
) -> None:
    await session.open()
    frames = session.chunks(PROMPT)
    tail_seam.send(Cancel(1, "the client went away"))
    for frame in frames:
        tail_seam.send(frame)
    tail_seam.send(Release(1))
    other = Upstream(tail_seam, tail.setup, [tail.hop], 2)
    await other.open()
    assert await other.answer(PROMPT, 2) == alone(PROMPT, 2)


async def test_a_handle_that_never_was_is_not_found(tail_seam: ClientSeam) -> None:
    tail_seam.send(Release(7))
    await _failed(tail_seam, 7, StatusCode.SESSION_NOT_FOUND)


async def test_a_stream_that_ends_frees_its_sessions(tail: ExternalNode, tail_peer: Peer) -> None:
    seam = await tail_peer.open_seam(TIMEOUT)
    session = Upstream(seam, tail.setup, [tail.hop])
    await session.open()
    await session.prefill(PROMPT)
    assert (await tail_peer.health(TIMEOUT)).open_sessions == 1
    await seam.close()
    await until_idle(tail_peer)


async def test_a_released_session_is_forgotten(
    session: Upstream, tail: ExternalNode, tail_seam: ClientSeam
) -> None:
    await session.open()
    await session.prefill(PROMPT)
    assert isinstance(await session.release(), SessionReleased)
    again = Upstream(tail_seam, tail.setup, [tail.hop], 2)
    again.terms = session.terms
    await again.open()
    assert await again.answer(PROMPT, 2) == alone(PROMPT, 2)
