"""A token goes from the tail straight to the head, and along the seams where it can't."""

import asyncio
from dataclasses import replace

import pytest

from meshnet.domain.errors import InternalError, SessionNotFoundError, error_from
from meshnet.domain.frames import (
    AttachReturn,
    GenerationDone,
    ReturnedTokens,
    ReturnPath,
    SessionFailed,
    SessionOpened,
    SessionTerms,
    TokenReply,
)
from meshnet.domain.generation import GeneratedToken, GenerationSpec
from meshnet.domain.ids import Address
from tests.support.mesh import (
    PENALISED,
    Listener,
    Mesh,
    Setup,
    alone,
    ask,
    mesh,
    prompt_of,
    start,
    until,
)
from tests.support.tcp_relay import TcpRelay

BOTH = pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
PROMPT = prompt_of(20)


def returned_to(chain: Mesh, address: str) -> SessionTerms:
    """Terms that tell the tail another address of the head."""
    head, *others = chain.hops
    return chain.terms(hops=(replace(head, address=Address(address)), *others))


async def tokens_until_done(listener: Listener) -> tuple[list[int], GenerationDone]:
    tokens: list[int] = []
    while True:
        reply = await listener.next(5)
        if isinstance(reply, GenerationDone):
            return tokens, reply
        assert not isinstance(reply, SessionFailed), reply
        if isinstance(reply, TokenReply):
            tokens.append(reply.token.token_id)


@BOTH
@pytest.mark.parametrize("cuts", [(2, 4), (1, 2, 3)], ids=["3", "4"])
async def test_no_node_between_sees_a_token(grpc, cuts):
    async with mesh(cuts, Setup(grpc=grpc)) as chain:
        answer = await ask(await chain.model(), PROMPT, 20, PENALISED)
    assert answer.tokens == alone(PROMPT, 20, PENALISED)
    head, *between, _ = answer.summary.timings
    assert head.decode_downstream_nanos > 0
    assert [timing.decode_downstream_nanos for timing in between] == [0] * len(between)


@BOTH
async def test_one_stream_carries_the_tokens_of_all_sessions(grpc):
    async with mesh((2, 4), Setup(grpc=grpc)) as chain:
        model = await chain.model()
        prompts = [prompt_of(5 + i, seed=i) for i in range(8)]
        answers = await asyncio.gather(*(ask(model, prompt, 16) for prompt in prompts))
        lines = chain.nodes[2].shard.parts.channels._lines
        assert list(lines) == [(chain.hops[0].address, None)]
        channel = lines[chain.hops[0].address, None].channel
        assert channel is not None
        assert not channel._listeners
    assert [answer.tokens for answer in answers] == [alone(prompt, 16) for prompt in prompts]


@BOTH
async def test_of_two_nodes_the_tail_opens_no_stream_of_its_own(grpc):
    async with mesh((3,), Setup(grpc=grpc)) as chain:
        await ask(await chain.model(), PROMPT, 5)
        assert not chain.nodes[1].shard.parts.channels._lines


@BOTH
async def test_a_tail_that_cannot_reach_the_head_sends_along_the_seams(grpc):
    async with mesh((2, 4), Setup(grpc=grpc)) as chain:
        for _ in range(2):
            terms = returned_to(chain, "127.0.0.1:9")
            spec = GenerationSpec(PROMPT, PENALISED, 12)
            listener, _handle = start(await chain.channel(), terms, spec)
            tokens, done = await tokens_until_done(listener)
            assert tokens == alone(PROMPT, 12, PENALISED)
            assert done.timings[1].decode_downstream_nanos > 0
        loop = asyncio.get_running_loop()
        head = ReturnPath(Address("127.0.0.1:9"), bytes(16), chain.hops[0].node_id)
        assert chain.nodes[2].shard.parts.dead_ends.known(head, loop.time())


async def test_an_address_that_is_none_is_no_harm():
    async with mesh((2, 4), Setup(grpc=True)) as chain:
        terms = returned_to(chain, "behind the mountains")
        listener, _ = start(await chain.channel(), terms, GenerationSpec(PROMPT, PENALISED, 6))
        assert (await tokens_until_done(listener))[0] == alone(PROMPT, 6, PENALISED)


@pytest.mark.parametrize("silent", [False, True], ids=["cut", "cut while tokens are held up"])
async def test_a_straight_way_that_breaks_loses_and_repeats_no_token(silent):
    setup = Setup(grpc=True, step_seconds={1: 0.003})
    async with mesh((2, 4), setup) as chain:
        relay = TcpRelay(chain.hops[0].address)
        terms = returned_to(chain, await relay.start())
        spec = GenerationSpec(PROMPT, PENALISED, 40)
        listener, _ = start(await chain.channel(), terms, spec)
        await until(lambda: listener.waiting() > 10)
        if silent:
            # Tokens on their way then never arrive, and must come again.
            relay.fall_silent()
            await asyncio.sleep(0.05)
        await relay.cut()
        tokens, done = await tokens_until_done(listener)
    assert tokens == alone(PROMPT, 40, PENALISED)
    assert done.timings[1].decode_downstream_nanos > 0


async def test_a_loopback_stream_that_breaks_loses_no_token_either():
    async with mesh((2, 4), Setup(step_seconds={1: 0.003})) as chain:
        spec = GenerationSpec(PROMPT, PENALISED, 40)
        listener, _ = start(await chain.channel(), chain.terms(), spec)
        await until(lambda: listener.waiting() > 10)
        (link,) = [link for link in chain.network._links if link.origin == "node-3"]
        link.sever(serving_too=False)
        assert (await tokens_until_done(listener))[0] == alone(PROMPT, 40, PENALISED)


async def paced_generation(chain: Mesh, tokens: int) -> tuple[Listener, AttachReturn]:
    """A generation under way, and what its tail told the head."""
    terms = chain.terms()
    spec = GenerationSpec(PROMPT, PENALISED, tokens)
    listener, _ = start(await chain.channel(), terms, spec)
    await until(lambda: listener.waiting() > 3)
    key = chain.head.shard.sessions[0].return_key
    assert key is not None
    return listener, AttachReturn(0, terms.key, key)


async def bring(
    chain: Mesh, request: AttachReturn, *tokens: tuple[int, GeneratedToken]
) -> Listener:
    """Tokens from somebody else than the tail, by their steps."""
    bringer, channel = Listener(), await chain.channel()
    handle = channel.attach(bringer)
    channel.send(replace(request, handle=handle))
    replies = tuple(TokenReply(handle, step, token) for step, token in tokens)
    if replies:
        channel.send(ReturnedTokens(replies))
    return bringer


@BOTH
async def test_who_does_not_know_the_key_cannot_bring_tokens(grpc):
    async with mesh((2, 4), Setup(grpc=grpc, step_seconds={1: 0.003})) as chain:
        listener, request = await paced_generation(chain, 40)
        # Of every step that may be next.
        forged = [(step, GeneratedToken(len(PROMPT), 65)) for step in range(60)]
        guesses = [
            replace(request, secret=bytes(16)),
            replace(request, secret=request.secret + b"x"),
            replace(request, key=chain.terms().key),
        ]
        for guess in guesses:
            failed = await (await bring(chain, guess, *forged)).next()
            assert isinstance(failed, SessionFailed)
            error = error_from(failed.status)
            assert isinstance(error, SessionNotFoundError)
            assert error.message == f"session {guess.key} awaits no tokens from here"
        assert (await tokens_until_done(listener))[0] == alone(PROMPT, 40, PENALISED)


async def test_a_token_that_comes_late_or_again_counts_once():
    async with mesh((2, 4), Setup(step_seconds={1: 0.003})) as chain:
        listener, request = await paced_generation(chain, 40)
        again = [(step, GeneratedToken(len(PROMPT), 65)) for step in range(4)]
        assert isinstance(await (await bring(chain, request, *again)).next(), SessionOpened)
        assert (await tokens_until_done(listener))[0] == alone(PROMPT, 40, PENALISED)


async def test_a_token_of_a_step_that_was_never_sent_ends_the_session():
    async with mesh((2, 4), Setup(step_seconds={1: 0.003})) as chain:
        listener, request = await paced_generation(chain, 40)
        await bring(chain, request, (1000, GeneratedToken(len(PROMPT) + 1000, 65)))
        failed = await listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        assert isinstance(error_from(failed.status), InternalError)


async def test_a_two_node_session_awaits_tokens_from_nobody_else():
    async with mesh((3,), Setup(step_seconds={1: 0.003})) as chain:
        terms = chain.terms()
        listener, _ = start(await chain.channel(), terms, GenerationSpec(PROMPT, PENALISED, 12))
        await listener.until(SessionOpened)
        answer = await (await bring(chain, AttachReturn(0, terms.key, bytes(16)))).next()
        assert isinstance(answer, SessionFailed)
        assert (await tokens_until_done(listener))[0] == alone(PROMPT, 12, PENALISED)
