"""A generation that ends early, for whatever reason, is over on every node at once."""

import asyncio
import time

import pytest

from meshnet.domain.errors import CancelledError, DeadlineExceededError, error_from
from meshnet.domain.frames import Cancel, GenerationDone, SessionFailed, SessionOpened, TokenReply
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from tests.support.mesh import GREEDY, Setup, alone, ask, mesh, prompt_of, start, until

FREE_SECONDS = 0.1
PACED = Setup(step_seconds=dict.fromkeys(range(3), 0.002), context_length=4096)
BOTH = pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])


def paced(*, grpc: bool) -> Setup:
    return Setup(step_seconds=PACED.step_seconds, context_length=4096, grpc=grpc)


@BOTH
async def test_a_reader_who_leaves_frees_every_node(grpc):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        model = await chain.model()
        events = model.generate(TextRequest(prompt_of(9), GREEDY, 1000))
        for _ in range(3):
            assert isinstance(await anext(events), TextDelta)
        left = time.perf_counter()
        await events.aclose()
        await chain.idle()
        assert time.perf_counter() - left < FREE_SECONDS
        assert (await ask(model, prompt_of(5), 3)).tokens == alone(prompt_of(5), 3)


@BOTH
async def test_a_reader_who_leaves_during_prefill_frees_every_node(grpc):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        model = await chain.model()
        events = model.generate(TextRequest(prompt_of(2000), GREEDY, 1000))
        reading = asyncio.create_task(anext(events))
        await until(lambda: chain.nodes[2].engine.metrics().steps >= 3)
        left = time.perf_counter()
        reading.cancel()
        await asyncio.wait({reading})
        await events.aclose()
        await chain.idle()
        assert time.perf_counter() - left < FREE_SECONDS


async def test_a_cancelled_task_frees_every_node():
    async with mesh((2, 4), PACED) as chain:
        asking = asyncio.create_task(ask(await chain.model(), prompt_of(9), 1000))
        await asyncio.sleep(0.1)
        assert chain.open_sessions() == [(1, 1)] * 3
        asking.cancel()
        await asyncio.wait({asking})
        await chain.idle(FREE_SECONDS)


async def test_a_cancel_that_meets_a_token_on_its_way_is_not_lost():
    """Python 3.11's ``wait_for`` forgets a cancel that comes in the same turn as its result."""
    async with mesh((3,), Setup(step_seconds={0: 0.3})) as chain:
        asking = asyncio.create_task(ask(await chain.model(), prompt_of(9), 1000))
        await asyncio.sleep(0.1)
        ((handle, listener),) = (await chain.channel())._listeners.items()
        listener.on_reply(TokenReply(handle, 0, GeneratedToken(9, 65)))
        asking.cancel()
        await asyncio.wait({asking}, timeout=1)
        assert asking.cancelled()


async def test_a_stop_string_ends_the_work_on_every_node():
    expected = bytes(alone(prompt_of(9), 40)).decode()
    stop = expected[20:23]
    async with mesh((2, 4), PACED) as chain:
        model = await chain.model()
        answer = await ask(model, prompt_of(9), 1000, stop=(stop,))
        await chain.idle(FREE_SECONDS)
        steps = chain.head.engine.metrics().steps
    assert answer.text == expected[: expected.index(stop)]
    assert answer.summary.stop_string == stop
    assert answer.summary.finish_reason is FinishReason.STOP
    assert steps < 60


async def test_an_ending_token_stops_and_isnt_reported():
    expected = alone(prompt_of(9), 40)
    ending = expected[17]
    spec = GenerationSpec(prompt_of(9), GREEDY, 1000, frozenset({ending}))
    async with mesh((3,)) as chain:
        listener, _ = start(await chain.channel(), chain.terms(), spec)
        tokens = []
        while not isinstance(reply := await listener.next(), GenerationDone):
            if isinstance(reply, TokenReply):
                tokens.append(reply.token.token_id)
    assert reply.finish_reason is FinishReason.STOP
    assert tokens == expected[: expected.index(ending)]


@BOTH
@pytest.mark.parametrize("prompt", [9, 4000], ids=["in decode", "in prefill"])
async def test_a_deadline_that_passes_is_an_error_and_frees_every_node(grpc, prompt):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        model = await chain.model()
        began = time.perf_counter()
        with pytest.raises(DeadlineExceededError, match="deadline"):
            await ask(model, prompt_of(prompt), 1000, timeout_seconds=0.3)
        assert 0.25 < time.perf_counter() - began < 0.8
        await chain.idle(FREE_SECONDS)
        assert (await ask(model, prompt_of(5), 3)).tokens == alone(prompt_of(5), 3)


async def test_a_deadline_in_the_past_is_an_error_at_once():
    async with mesh((3,)) as chain:
        spec = GenerationSpec(prompt_of(9), GREEDY, 5)
        terms = chain.terms(deadline_unix_nanos=time.time_ns() - 10**9)
        listener, _ = start(await chain.channel(), terms, spec)
        failed = await listener.until(SessionFailed)
    assert isinstance(failed, SessionFailed)
    assert isinstance(error_from(failed.status), DeadlineExceededError)


async def test_no_deadline_means_none():
    async with mesh((3,)) as chain:
        spec = GenerationSpec(prompt_of(9), GREEDY, 5)
        listener, _ = start(await chain.channel(), chain.terms(deadline_unix_nanos=0), spec)
        assert isinstance(await listener.until(GenerationDone), GenerationDone)


@BOTH
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("ask_to", ["cancel", "release"])
async def test_a_cancel_from_outside_at_any_node_ends_it_everywhere(grpc, place, ask_to):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        spec = GenerationSpec(prompt_of(9), GREEDY, 1000)
        terms = chain.terms()
        listener, _ = start(await chain.channel(), terms, spec)
        await listener.until(TokenReply)
        peer = chain.channels.peer(chain.nodes[place].hop.address)
        if ask_to == "cancel":
            await peer.cancel(terms.key, "somebody pressed the button", 1.0)
        else:
            await peer.release(terms.key, 1.0)
        failed = await listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        assert isinstance(error_from(failed.status), CancelledError)
        if ask_to == "cancel":
            assert "somebody pressed the button" in failed.status.message
        await chain.idle(FREE_SECONDS)


async def test_cancel_and_release_may_be_said_twice_and_of_unknown_sessions():
    async with mesh((3,), PACED) as chain:
        terms = chain.terms()
        listener, _ = start(
            await chain.channel(), terms, GenerationSpec(prompt_of(9), GREEDY, 1000)
        )
        await listener.until(TokenReply)
        peer = chain.channels.peer(chain.head.hop.address)
        for _ in range(2):
            await peer.cancel(terms.key, "enough", 1.0)
            await peer.release(terms.key, 1.0)
        await peer.release(chain.terms().key, 1.0)
        await listener.until(SessionFailed)
        assert listener.waiting() == 0


async def test_a_cancel_that_overtakes_its_session_still_holds():
    async with mesh((3,), PACED) as chain:
        terms = chain.terms()
        await chain.channels.peer(chain.head.hop.address).cancel(terms.key, "too late", 1.0)
        spec = GenerationSpec(prompt_of(9), GREEDY, 1000)
        listener, _ = start(await chain.channel(), terms, spec)
        failed = await listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        assert isinstance(error_from(failed.status), CancelledError)


async def test_a_cancel_on_the_stream_is_answered_by_silence():
    async with mesh((3,), PACED) as chain:
        channel = await chain.channel()
        listener, handle = start(channel, chain.terms(), GenerationSpec(prompt_of(9), GREEDY, 1000))
        await listener.until(TokenReply)
        channel.send(Cancel(handle, "enough"))
        await chain.idle(FREE_SECONDS)
        while listener.waiting():
            assert isinstance(await listener.next(), TokenReply)


@BOTH
async def test_a_gateway_that_is_gone_frees_every_node(grpc):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        channel = await chain.channel()
        listener, _ = start(channel, chain.terms(), GenerationSpec(prompt_of(9), GREEDY, 1000))
        await listener.until(TokenReply)
        await channel.close()
        await chain.idle(0.5)


async def test_a_session_is_open_on_all_nodes_before_its_first_chunk():
    async with mesh((2, 4), PACED) as chain:
        spec = GenerationSpec(prompt_of(9), GREEDY, 1000)
        channel = await chain.channel()
        listener, handle = start(channel, chain.terms(), spec)
        assert isinstance(await listener.next(), SessionOpened)
        assert [nodes for nodes, _ in chain.open_sessions()] == [1, 1, 1]
        channel.send(Cancel(handle, "seen enough"))


async def test_an_early_close_before_the_first_event_opens_nothing():
    async with mesh((3,), PACED) as chain:
        events = (await chain.model()).generate(TextRequest(prompt_of(9), GREEDY, 5))
        await events.aclose()
        assert chain.open_sessions() == [(0, 0), (0, 0)]


async def test_a_generation_read_to_its_end_sends_no_cancel():
    async with mesh((3,)) as chain:
        events = (await chain.model()).generate(TextRequest(prompt_of(9), GREEDY, 5))
        async for event in events:
            if isinstance(event, GenerationSummary):
                break
        await events.aclose()
        await chain.idle(FREE_SECONDS)
        assert [node.engine.metrics().cancelled_sessions for node in chain.nodes] == [0, 0]
