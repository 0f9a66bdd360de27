"""What a node declared bounds what it accepts; what it accepted, it has room for to the end."""

import asyncio
import time
from dataclasses import replace

import pytest

from meshnet.domain.errors import (
    DeadlineExceededError,
    MeshnetError,
    ResourceExhaustedError,
    error_from,
)
from meshnet.domain.frames import (
    Cancel,
    GenerationDone,
    OpenSession,
    SessionFailed,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.nodes import FlowControl
from meshnet.node.seats import LACKING, ROOM
from tests.support.mesh import (
    GREEDY,
    Answer,
    Listener,
    Setup,
    alone,
    ask,
    mesh,
    prompt_of,
    start,
    until,
)

PACED = {0: 0.002, 1: 0.002}
SMALL = Setup(flow=FlowControl(max_positions=100), step_seconds=PACED)


async def refusal(listener: Listener) -> MeshnetError:
    failed = await listener.until(SessionFailed)
    assert isinstance(failed, SessionFailed)
    return error_from(failed.status)


async def end_of(listener: Listener) -> GenerationDone | SessionFailed:
    while not isinstance(reply := await listener.next(20.0), GenerationDone | SessionFailed):
        pass
    return reply


def spec(prompt: int, limit: int | None) -> GenerationSpec:
    return GenerationSpec(prompt_of(prompt), GREEDY, limit)


async def test_positions_are_reserved_for_prompt_and_answer_before_a_session_is_accepted():
    async with mesh((3,), SMALL) as chain:
        channel = await chain.channel()
        first, _ = start(channel, chain.terms(), spec(30, 30))
        await first.until(SessionOpened)
        began = time.perf_counter()
        second, _ = start(channel, chain.terms(), spec(21, 20))
        error = await refusal(second)
        assert isinstance(error, ResourceExhaustedError)
        assert "60 of 100 positions" in error.message
        assert error.details[LACKING] == ROOM, "a gateway may try it again"
        assert time.perf_counter() - began < 0.5, "at once, not when there is room"
        third, _ = start(channel, chain.terms(), spec(20, 20))
        for listener in (first, third):
            assert isinstance(await listener.until(GenerationDone), GenerationDone)
        assert chain.head.shard.places.reserved_positions == 0


@pytest.mark.parametrize("limit", [None, 10**6])
async def test_without_a_limit_of_its_own_a_session_reserves_a_whole_context(limit):
    setup = replace(SMALL, flow=FlowControl(max_positions=300), context_length=256)
    async with mesh((3,), setup) as chain:
        channel = await chain.channel()
        listener, handle = start(channel, chain.terms(), spec(9, limit))
        await listener.until(SessionOpened)
        assert [node.shard.places.reserved_positions for node in chain.nodes] == [256, 256]
        channel.send(Cancel(handle, "seen enough"))
        await chain.idle()
        assert [node.shard.places.reserved_positions for node in chain.nodes] == [0, 0]


async def test_a_node_behind_with_less_room_refuses_and_is_named():
    async with mesh((3,), SMALL) as chain:
        behind = chain.nodes[1].shard.places
        behind._seats.bounds = replace(behind._seats.bounds, positions=50)
        listener, _ = start(await chain.channel(), chain.terms(), spec(30, 30))
        error = await refusal(listener)
        assert isinstance(error, ResourceExhaustedError)
        assert "node-2" in error.message
        assert error.details[LACKING] == ROOM
        assert (await ask(await chain.model(), prompt_of(9), 3)).tokens == alone(prompt_of(9), 3)


async def test_sessions_that_were_accepted_are_never_refused_a_step():
    """The queue has fewer places than there could be sessions."""
    setup = Setup(flow=FlowControl(max_queued_work=3), step_seconds=PACED)
    async with mesh((3,), setup) as chain:
        channel = await chain.channel()
        asked = [start(channel, chain.terms(), spec(20, 20))[0] for _ in range(8)]
        ends = [await end_of(listener) for listener in asked]
    assert sum(isinstance(end, GenerationDone) for end in ends) == 3
    refused = [error_from(end.status) for end in ends if isinstance(end, SessionFailed)]
    assert all(isinstance(error, ResourceExhaustedError) for error in refused)
    assert all("serves 3 sessions" in error.message for error in refused)


async def test_a_hundred_requests_at_once_are_served_or_refused_and_leave_nothing():
    async with mesh((3,), Setup(step_seconds=PACED)) as chain:
        model = await chain.model()
        answers = await asyncio.gather(
            *(ask(model, prompt_of(9, seed), 5) for seed in range(100)), return_exceptions=True
        )
        served = [(seed, each) for seed, each in enumerate(answers) if isinstance(each, Answer)]
        assert len(served) >= 8
        for seed, answer in served:
            assert answer.tokens == alone(prompt_of(9, seed), 5)
        refused = [each for each in answers if isinstance(each, BaseException)]
        assert all(isinstance(error, ResourceExhaustedError) for error in refused)
        await chain.idle()


async def test_a_gateway_that_gives_no_credits_loses_its_session():
    async with mesh((2, 4), Setup(idle_seconds=0.2)) as chain:
        channel = await chain.channel()
        listener, _ = start(channel, chain.terms(), spec(9, 100), token_credits=3)
        error = await refusal(listener)
        assert isinstance(error, DeadlineExceededError)
        assert "nothing was heard" in error.message
        await chain.idle(0.2)


async def test_a_node_that_sends_nothing_loses_its_session():
    async with mesh((3,), Setup(idle_seconds=0.1)) as chain:
        upstream = await chain.channel(1)
        listener = Listener()
        handle = upstream.attach(listener)
        upstream.send(OpenSession(handle, chain.terms(1), GREEDY, (), FlowControl()))
        await listener.until(SessionOpened)
        error = await refusal(listener)
        assert isinstance(error, DeadlineExceededError)
        await until(lambda: chain.nodes[1].shard.places.reserved_positions == 0)


async def test_a_slow_engine_is_no_silence():
    setup = Setup(idle_seconds=0.2, step_seconds={0: 0.3, 1: 0.1})
    async with mesh((3,), setup) as chain:
        channel = await chain.channel()
        listener, _ = start(channel, chain.terms(), spec(9, 3))
        tokens = 0
        while not isinstance(reply := await listener.next(5.0), GenerationDone):
            tokens += isinstance(reply, TokenReply)
        assert tokens == 3
