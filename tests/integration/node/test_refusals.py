"""What a node refuses, and that a refusal costs nobody else anything."""

import dataclasses

import pytest

from meshnet.domain.errors import (
    ContextLengthError,
    FingerprintMismatchError,
    InvalidArgumentError,
    LayerRangeError,
    MeshnetError,
    NodeNotReadyError,
    ResourceExhaustedError,
    SessionNotFoundError,
    StaleEpochError,
    error_from,
)
from meshnet.domain.frames import (
    Cancel,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    Generate,
    GenerationDone,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    Release,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    SessionTerms,
    TokenReply,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import Digest, SessionKey, new_route_session_id
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, LifecycleState
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.domain.recipe import Recipe
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.fixture import N_EMBD
from meshnet.node.seats import Bounds
from tests.support.mesh import GREEDY, Listener, Mesh, Setup, alone, ask, mesh, prompt_of, start

SPEC = GenerationSpec(prompt_of(9), GREEDY, 1000)
PACED = Setup(step_seconds=dict.fromkeys(range(3), 0.002), context_length=4096)
ROW = EngineTensor(RESIDUAL, DType.FLOAT32, (1, N_EMBD), bytes(4 * N_EMBD))


async def refusal(chain: Mesh, terms: SessionTerms, place: int = 0) -> MeshnetError:
    """What a node says to a session with these terms."""
    channel = await chain.channel(place)
    listener = Listener()
    handle = channel.attach(listener)
    request: SeamRequest = (
        OpenSession(handle, terms, GREEDY, (), FlowControl())
        if place
        else Generate(handle, terms, SPEC, 100)
    )
    channel.send(request)
    return failure(await listener.until(SessionFailed))


def failure(reply: SeamReply | MeshnetError) -> MeshnetError:
    assert isinstance(reply, SessionFailed), reply
    return error_from(reply.status)


def with_layers(hops: tuple[Hop, ...], place: int, layers: LayerRange) -> tuple[Hop, ...]:
    changed = list(hops)
    changed[place] = dataclasses.replace(hops[place], layers=layers)
    return tuple(changed)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_another_recipe_or_model_is_refused_with_both_digests(place):
    async with mesh((2, 4)) as chain:
        own = chain.setup.recipe()
        other = Recipe(own.model_digest, "fixture", "2", chunk_tokens=own.chunk_tokens)
        error = await refusal(chain, chain.terms(place, fingerprint=other.fingerprint()), place)
        assert isinstance(error, FingerprintMismatchError)
        assert other.fingerprint().runtime_recipe_digest in error.message
        assert own.fingerprint().runtime_recipe_digest in error.message
        model = Recipe(Digest("sha256:" + "1" * 64), "fixture", "1", chunk_tokens=8)
        error = await refusal(chain, chain.terms(place, fingerprint=model.fingerprint()), place)
        assert isinstance(error, FingerprintMismatchError)
        assert "model" in error.message


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_route_that_wants_other_layers_of_a_node_is_refused(place):
    async with mesh((2, 4)) as chain:
        hops = with_layers(chain.hops, place, LayerRange(place, place + 1))
        error = await refusal(chain, chain.terms(place, hops=hops[place:]), place)
        assert isinstance(error, LayerRangeError)


async def test_a_middle_node_that_would_be_told_other_layers_refuses_and_the_head_is_free():
    async with mesh((2, 4)) as chain:
        # The ranges join, so the head can't know; the middle node does.
        hops = with_layers(chain.hops, 1, LayerRange(2, 5))
        hops = with_layers(hops, 2, LayerRange(5, 6))
        error = await refusal(chain, chain.terms(hops=hops))
        assert isinstance(error, LayerRangeError)
        assert "node-2" in error.message


async def test_a_route_with_a_gap_or_without_its_tail_is_refused():
    async with mesh((2, 4)) as chain:
        head, _, tail = chain.hops
        assert isinstance(await refusal(chain, chain.terms(hops=(head, tail))), LayerRangeError)
        assert isinstance(await refusal(chain, chain.terms(hops=chain.hops[:2])), LayerRangeError)
        middle_only = chain.terms(1, hops=chain.hops[1:2])
        error = await refusal(chain, middle_only, 1)
        assert isinstance(error, LayerRangeError)
        beyond = chain.terms(2, hops=(chain.hops[2], chain.hops[2]))
        assert isinstance(await refusal(chain, beyond, 2), LayerRangeError)


async def test_generations_start_at_the_head_alone_and_boundaries_elsewhere():
    async with mesh((3,)) as chain:
        tail = await chain.channel(1)
        listener, _ = start(tail, chain.terms(1), SPEC)
        assert isinstance(failure(await listener.next()), LayerRangeError)
        head = await chain.channel()
        listener = Listener()
        handle = head.attach(listener)
        head.send(OpenSession(handle, chain.terms(), GREEDY, (), FlowControl()))
        assert isinstance(failure(await listener.next()), LayerRangeError)


async def test_a_prompt_that_leaves_no_room_is_refused():
    async with mesh((3,), Setup(context_length=16)) as chain:
        model = await chain.model()
        with pytest.raises(ContextLengthError, match="16"):
            await ask(model, prompt_of(16))
        spec = GenerationSpec(prompt_of(16), GREEDY, 1000)
        listener, _ = start(await chain.channel(), chain.terms(), spec)
        assert isinstance(failure(await listener.next()), ContextLengthError)
        assert (await ask(model, prompt_of(15))).tokens == alone(prompt_of(15), 1)


async def test_an_older_epoch_is_refused_and_a_newer_one_replaces_it():
    async with mesh((2, 4), PACED) as chain:
        channel = await chain.channel()
        name = chain.terms().key.session_id
        old, _ = start(channel, chain.terms(key=SessionKey(name, 1)), SPEC)
        await old.until(TokenReply)

        older, _ = start(channel, chain.terms(key=SessionKey(name, 0)), SPEC)
        assert isinstance(failure(await older.next()), StaleEpochError)
        assert isinstance(await old.next(), TokenReply), "a refusal leaves the session alone"

        spec = GenerationSpec(prompt_of(9), GREEDY, 5)
        new, _ = start(channel, chain.terms(key=SessionKey(name, 2)), spec)
        assert isinstance(failure(await old.until(SessionFailed)), StaleEpochError)
        tokens = []
        while not isinstance(reply := await new.next(), GenerationDone):
            if isinstance(reply, TokenReply):
                tokens.append(reply.token.token_id)
        assert tokens == alone(prompt_of(9), 5)

        again, _ = start(channel, chain.terms(key=SessionKey(name, 1)), SPEC)
        assert isinstance(failure(await again.next()), StaleEpochError)


async def test_a_newer_epoch_may_come_by_another_stream():
    async with mesh((2, 4), PACED) as chain:
        name = chain.terms().key.session_id
        old, _ = start(await chain.channel(), chain.terms(key=SessionKey(name, 1)), SPEC)
        await old.until(TokenReply)
        other = chain.other_gateway()
        channel = await other.channel(chain.head.hop.address, 1.0)
        new, _ = start(channel, chain.terms(key=SessionKey(name, 2)), SPEC)
        assert isinstance(failure(await old.until(SessionFailed)), StaleEpochError)
        assert isinstance(await new.until(TokenReply), TokenReply)
        await other.close()


async def test_an_epoch_that_is_open_cant_be_opened_again():
    async with mesh((3,), PACED) as chain:
        channel = await chain.channel()
        terms = chain.terms()
        first, handle = start(channel, terms, SPEC)
        await first.until(TokenReply)
        second, _ = start(channel, terms, SPEC)
        error = failure(await second.next())
        assert isinstance(error, InvalidArgumentError)
        assert "higher epoch" in error.message
        assert isinstance(await first.next(), TokenReply)
        channel.send(Cancel(handle, "enough"))


async def test_a_newer_epoch_that_is_refused_leaves_the_older_one_alone():
    async with mesh((3,), PACED) as chain:
        channel = await chain.channel()
        terms = chain.terms()
        running, handle = start(channel, terms, SPEC)
        await running.until(TokenReply)
        too_long = GenerationSpec(prompt_of(5000), GREEDY, 1)
        newer = chain.terms(key=SessionKey(terms.key.session_id, 7))
        refused, _ = start(channel, newer, too_long)
        assert isinstance(failure(await refused.next()), ContextLengthError)
        assert isinstance(await running.next(), TokenReply)
        channel.send(Cancel(handle, "enough"))


@pytest.mark.parametrize(
    "setup",
    [
        Setup(flow=FlowControl(max_sessions=2), step_seconds={0: 0.002}),
        Setup(engine_sessions=2, step_seconds={0: 0.002}),
    ],
    ids=["node", "engine"],
)
async def test_one_session_too_many_is_told_to_come_back(setup):
    async with mesh((3,), setup) as chain:
        channel = await chain.channel()
        spec = GenerationSpec(prompt_of(9), GREEDY, 100)
        running = [start(channel, chain.terms(), spec) for _ in range(2)]
        for listener, _ in running:
            await listener.until(TokenReply)
        more, _ = start(channel, chain.terms(), spec)
        error = failure(await more.until(SessionFailed))
        assert isinstance(error, ResourceExhaustedError)
        assert error.retryable
        assert "node-1" in error.message
        for listener, _ in running:
            assert isinstance(await listener.until(GenerationDone), GenerationDone)
        assert (await ask(await chain.model(), prompt_of(9), 3)).tokens == alone(prompt_of(9), 3)


async def test_a_full_node_behind_the_head_is_named():
    async with mesh((3,), PACED) as chain:
        chain.nodes[1].shard.places._seats.bounds = Bounds(1, 8, 4096)
        channel = await chain.channel()
        running, handle = start(channel, chain.terms(), SPEC)
        await running.until(TokenReply)
        more, _ = start(channel, chain.terms(), SPEC)
        error = failure(await more.until(SessionFailed))
        assert isinstance(error, ResourceExhaustedError)
        assert "node-2" in error.message
        assert isinstance(await running.next(), TokenReply)
        channel.send(Cancel(handle, "enough"))


async def test_a_draining_node_takes_no_new_session_but_ends_those_it_has():
    async with mesh((3,), PACED) as chain:
        channel = await chain.channel()
        spec = GenerationSpec(prompt_of(9), GREEDY, 20)
        running, _ = start(channel, chain.terms(), spec)
        await running.until(TokenReply)
        for node in chain.nodes:
            node.shard.drain()
        more, _ = start(channel, chain.terms(), spec)
        error = failure(await more.next())
        assert isinstance(error, NodeNotReadyError)
        assert "node-1" in error.message
        assert isinstance(await running.until(GenerationDone), GenerationDone)
        report = await chain.channels.peer(chain.head.hop.address).health(1.0)
        assert report.state is LifecycleState.DRAINING


def prefill(handle: int, key: SessionKey, position: int = 0) -> PrefillChunk:
    fresh = CacheExpectation(CacheMode.EXACT if position else CacheMode.FRESH, position)
    boundary = BoundaryBundle((ROW,))
    return PrefillChunk(handle, key, ChunkInfo(0, 1, 1, 1), position, 0, fresh, boundary)


def decode(handle: int, position: int = 5) -> DecodeFrame:
    return DecodeFrame((DecodeStep(handle, position, 0, ROW),))


@pytest.mark.parametrize(
    "frame",
    [
        decode,
        lambda handle: prefill(handle, SessionKey(new_route_session_id(), 0)),
        Release,
        lambda handle: GrantTokens(handle, 5),
        lambda handle: Cancel(handle, "no such session"),
    ],
    ids=["decode", "prefill", "release", "grant", "cancel"],
)
async def test_a_frame_of_a_session_that_was_never_opened_is_answered(frame):
    async with mesh((3,)) as chain:
        channel = await chain.channel(1)
        listener = Listener()
        handle = channel.attach(listener)
        channel.send(frame(handle))
        assert isinstance(failure(await listener.next()), SessionNotFoundError)


@pytest.mark.parametrize(
    "frame",
    [
        lambda handle, terms: decode(handle),
        lambda handle, terms: prefill(handle, terms.key),
        lambda handle, terms: Release(handle),
    ],
    ids=["decode", "prefill", "release"],
)
async def test_a_head_takes_no_steps_from_outside(frame):
    async with mesh((3,), PACED) as chain:
        channel = await chain.channel()
        terms = chain.terms()
        listener, handle = start(channel, terms, SPEC)
        await listener.until(TokenReply)
        channel.send(frame(handle, terms))
        error = failure(await listener.until(SessionFailed))
        assert isinstance(error, InvalidArgumentError)
        assert "no place here" in error.message
        await chain.idle()


async def open_at_tail(chain: Mesh) -> tuple[Listener, int, SessionTerms]:
    channel = await chain.channel(1)
    listener = Listener()
    handle = channel.attach(listener)
    terms = chain.terms(1)
    channel.send(OpenSession(handle, terms, GREEDY, (), FlowControl()))
    assert isinstance(await listener.next(), SessionOpened)
    return listener, handle, terms


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        (lambda handle, key: GrantTokens(handle, 5), "invalid_argument"),
        (lambda handle, key: decode(handle), "cache_miss"),
        (lambda handle, key: prefill(handle, key, position=3), "cache_miss"),
        (lambda handle, key: prefill(handle, SessionKey(key.session_id, 9)), "stale_epoch"),
        (
            lambda handle, key: DecodeFrame(
                (DecodeStep(handle, 0, 0, dataclasses.replace(ROW, shape=(N_EMBD,))),)
            ),
            "invalid_argument",
        ),
    ],
    ids=["grant", "decode before prefill", "chunk at a wrong place", "other epoch", "flat row"],
)
async def test_a_frame_out_of_place_ends_its_session_alone(frame, error):
    async with mesh((3,)) as chain:
        bystander, other, _ = await open_at_tail(chain)
        listener, handle, terms = await open_at_tail(chain)
        channel = await chain.channel(1)
        channel.send(frame(handle, terms.key))
        assert failure(await listener.until(SessionFailed)).code.value == error
        channel.send(Release(other))
        await bystander.next()


async def test_frames_behind_a_sessions_end_are_dropped_without_a_word():
    async with mesh((3,)) as chain:
        listener, handle, _ = await open_at_tail(chain)
        channel = await chain.channel(1)
        channel.send(Release(handle))
        await listener.next()
        channel.send(decode(handle))
        channel.send(Cancel(handle, "late"))
        after, other, _ = await open_at_tail(chain)
        assert listener.waiting() == 0
        channel.send(Release(other))
        await after.next()


async def test_a_handle_in_use_ends_the_session_it_names():
    async with mesh((3,)) as chain:
        listener, handle, _ = await open_at_tail(chain)
        channel = await chain.channel(1)
        channel.send(OpenSession(handle, chain.terms(1), GREEDY, (), FlowControl()))
        error = failure(await listener.next())
        assert isinstance(error, InvalidArgumentError)
        assert "in use" in error.message
        await chain.idle()
