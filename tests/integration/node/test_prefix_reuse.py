"""A prompt that begins as an earlier session did is computed from there on, to the same tokens."""

import asyncio
from dataclasses import replace

import pytest

from meshnet.domain.errors import CacheMissError
from meshnet.domain.frames import Cancel, GenerationDone, SessionOpened, TokenReply
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.nodes import FlowControl
from tests.support.mesh import (
    GREEDY,
    PENALISED,
    Mesh,
    Node,
    Setup,
    alone,
    ask,
    mesh,
    prompt_of,
    start,
    until,
)

KEEPING = Setup(keep_seconds=60.0)
CUTS = pytest.mark.parametrize("cuts", [(), (3,), (2, 4)], ids=["1", "2", "3 nodes"])


def rows(chain: Mesh) -> list[int]:
    """Positions that each node has computed so far."""
    return [node.engine.metrics().rows for node in chain.nodes]


def lose_kept(node: Node) -> None:
    """Let the engine lose the caches that its node believes it keeps."""
    for key in node.shard.places._kept:
        node.engine.release(key)


async def forget(chain: Mesh) -> None:
    """Let the gateway go, with which everything kept goes too."""
    await chain.channels.close()
    await chain.idle()


@CUTS
@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
@pytest.mark.parametrize("sampling", [GREEDY, PENALISED], ids=["greedy", "penalised"])
async def test_the_next_turn_computes_only_what_is_new_on_every_node(cuts, grpc, sampling):
    async with mesh(cuts, replace(KEEPING, grpc=grpc)) as chain:
        model = await chain.model()
        turn = prompt_of(21)
        answer = await ask(model, turn, 10, sampling)
        assert answer.tokens == alone(turn, 10, sampling)
        assert answer.summary.cached_tokens == 0

        following = (*turn, *answer.tokens, *prompt_of(13, seed=5))
        before = rows(chain)
        second = await ask(model, following, 6, sampling)
        assert second.tokens == alone(following, 6, sampling)
        # The last token of the answer was never fed back, so its row is new.
        assert second.summary.cached_tokens == len(turn) + 9
        added = [after - old for after, old in zip(rows(chain), before, strict=True)]
        assert added == [len(following) - second.summary.cached_tokens + 5] * len(chain.nodes)
        await forget(chain)


@CUTS
async def test_requests_with_one_system_prompt_share_it_at_the_same_time(cuts):
    system = prompt_of(40)
    async with mesh(cuts, KEEPING) as chain:
        model = await chain.model()
        await ask(model, system, 2)
        prompts = [(*system, *prompt_of(5 + 3 * i, seed=i)) for i in range(4)]
        answers = await asyncio.gather(*(ask(model, prompt, 8, PENALISED) for prompt in prompts))
        for prompt, answer in zip(prompts, answers, strict=True):
            assert answer.tokens == alone(prompt, 8, PENALISED)
            assert answer.summary.cached_tokens == 40
        await forget(chain)


@pytest.mark.parametrize("length", [16, 17, 24, 39, 40, 41])
async def test_the_same_prompt_again_computes_its_last_token_alone(length):
    async with mesh((3,), KEEPING) as chain:
        model = await chain.model()
        prompt = prompt_of(length)
        for cached in (0, length - 1, length - 1):
            answer = await ask(model, prompt, 4)
            assert (answer.tokens, answer.summary.cached_tokens) == (alone(prompt, 4), cached)
        await forget(chain)


async def test_where_bits_depend_on_borders_only_whole_chunks_are_reused(monkeypatch):
    async with mesh((3,), KEEPING) as chain:
        tail = chain.nodes[1].shard
        narrow = replace(tail.parts.capabilities, exact_pieces=None)
        monkeypatch.setattr(tail, "_parts", replace(tail.parts, capabilities=narrow))
        model = await chain.model()
        turn = prompt_of(21)
        answer = await ask(model, turn, 10)
        following = (*turn, *answer.tokens, *prompt_of(13, seed=5))
        second = await ask(model, following, 6)
        assert second.tokens == alone(following, 6)
        assert second.summary.cached_tokens == 16
        await forget(chain)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_node_that_gave_a_prefix_up_makes_the_prompt_be_computed_afresh(place):
    async with mesh((2, 4), KEEPING) as chain:
        model = await chain.model()
        prompt = prompt_of(30)
        await ask(model, prompt, 3)
        places = chain.nodes[place].shard.places
        for key in list(places._kept):
            places.drop(key)
        before = rows(chain)
        answer = await ask(model, prompt, 3)
        assert (answer.tokens, answer.summary.cached_tokens) == (alone(prompt, 3), 0)
        assert [after - old for after, old in zip(rows(chain), before, strict=True)] == [32] * 3
        await forget(chain)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_late_cancel_of_a_kept_prefix_gives_it_up(place):
    async with mesh((2, 4), KEEPING) as chain:
        model = await chain.model()
        prompt = prompt_of(30)
        await ask(model, prompt, 3)
        node = chain.nodes[place]
        (key,) = node.shard.places._kept
        await chain.channels.peer(node.hop.address).cancel(key, "late", 1.0)
        assert node.shard.places.kept == 0
        answer = await ask(model, prompt, 3)
        assert (answer.tokens, answer.summary.cached_tokens) == (alone(prompt, 3), 0)
        await forget(chain)


@CUTS
async def test_a_head_whose_engine_lost_a_prefix_computes_the_prompt_afresh(cuts):
    async with mesh(cuts, KEEPING) as chain:
        model = await chain.model()
        prompt = prompt_of(30)
        await ask(model, prompt, 3)
        lose_kept(chain.head)
        before = rows(chain)
        assert (await ask(model, prompt, 3)).tokens == alone(prompt, 3)
        added = [after - old for after, old in zip(rows(chain), before, strict=True)]
        assert added == [32] * len(chain.nodes)
        assert [node.shard.places.kept for node in chain.nodes] == [1] * len(chain.nodes)
        again = await ask(model, prompt, 3)
        assert (again.tokens, again.summary.cached_tokens) == (alone(prompt, 3), 29)
        await forget(chain)


@pytest.mark.parametrize("place", [1, 2])
async def test_an_engine_behind_that_lost_a_prefix_fails_one_request_at_most(place):
    async with mesh((2, 4), KEEPING) as chain:
        model = await chain.model()
        prompt = prompt_of(30)
        await ask(model, prompt, 3)
        lose_kept(chain.nodes[place])
        with pytest.raises(CacheMissError):
            await ask(model, prompt, 3)
        for cached in (0, 29):
            answer = await ask(model, prompt, 3)
            assert (answer.tokens, answer.summary.cached_tokens) == (alone(prompt, 3), cached)
        await forget(chain)


@pytest.mark.parametrize("place", [1, 2])
async def test_reuse_comes_back_after_a_node_behind_has_lost_what_it_kept(place):
    async with mesh((2, 4), KEEPING) as chain:
        model = await chain.model()
        shared = prompt_of(40)
        prompts = [(*shared, *prompt_of(9, seed)) for seed in range(6)]
        places = chain.nodes[place].shard.places
        cached = []
        for number, prompt in enumerate(prompts):
            if number == 3:
                for key in list(places._kept):
                    places.drop(key)
            answer = await ask(model, prompt, 3)
            assert answer.tokens == alone(prompt, 3)
            cached.append(answer.summary.cached_tokens)
        assert cached == [0, 40, 40, 0, 40, 40]
        await forget(chain)


async def test_a_prefix_that_a_node_behind_has_lost_is_tried_once():
    async with mesh((3,), KEEPING) as chain:
        model = await chain.model()
        whole, part = prompt_of(50), (*prompt_of(50)[:40], *prompt_of(9, seed=1))
        await ask(model, whole, 3)
        places = chain.nodes[1].shard.places
        for key in list(places._kept):
            places.drop(key)
        cached = [(await ask(model, prompt, 3)).summary.cached_tokens for prompt in (part, whole)]
        assert cached == [0, 40], "the lost one would save more, and save nothing again"
        await forget(chain)


async def test_a_reader_who_leaves_when_all_tokens_are_there_leaves_nothing_kept():
    async with mesh((2, 4), KEEPING) as chain:
        spec = GenerationSpec(prompt_of(30), GREEDY, 3)
        channel = await chain.channel()
        listener, handle = start(channel, chain.terms(), spec, token_credits=2)
        for _ in range(2):
            await listener.until(TokenReply)
        kept = [node.shard.places for node in chain.nodes]
        await until(lambda: [places.kept for places in kept] == [0, 1, 1])
        channel.send(Cancel(handle, "enough"))
        await until(lambda: [places.kept for places in kept] == [0, 0, 0])


async def test_a_kept_prefix_never_makes_a_request_fail():
    """Places for two: both are kept prefixes whenever nobody asks."""
    setup = replace(KEEPING, engine_sessions=2, flow=FlowControl(max_sessions=2))
    async with mesh((3,), setup) as chain:
        model = await chain.model()
        for seed in range(6):
            prompts = [prompt_of(20, seed), prompt_of(25, seed + 50)]
            answers = await asyncio.gather(*(ask(model, prompt, 5) for prompt in prompts))
            assert [each.tokens for each in answers] == [alone(prompt, 5) for prompt in prompts]
        await forget(chain)


async def test_a_full_house_of_forks_waits_for_room_and_never_fails():
    """Every place is a session's or a source's while a third one comes in."""
    setup = replace(
        KEEPING,
        engine_sessions=3,
        flow=FlowControl(max_sessions=3),
        step_seconds={0: 0.005, 1: 0.01},
    )
    async with mesh((3,), setup) as chain:
        model = await chain.model()
        system = prompt_of(24)
        for seed in range(4):
            prompts = [(*system, *prompt_of(6, seed=3 * seed + i)) for i in range(3)]
            answers = await asyncio.gather(*(ask(model, prompt, 5) for prompt in prompts))
            assert [each.tokens for each in answers] == [alone(prompt, 5) for prompt in prompts]
        await forget(chain)


async def test_prefixes_unused_for_long_are_given_up():
    async with mesh((2, 4), replace(KEEPING, keep_seconds=0.1)) as chain:
        await ask(await chain.model(), prompt_of(30), 3)
        assert [node.shard.places.kept for node in chain.nodes] == [1, 1, 1]
        await chain.idle()
        assert [node.shard.places.kept for node in chain.nodes] == [0, 0, 0]
        again = await ask(await chain.model(), prompt_of(30), 3)
        assert (again.tokens, again.summary.cached_tokens) == (alone(prompt_of(30), 3), 0)


async def test_another_stream_gets_nothing_of_what_one_left():
    async with mesh((3,), KEEPING) as chain:
        await ask(await chain.model(), prompt_of(30), 3)
        other = chain.other_gateway()
        channel = await other.channel(chain.head.hop.address, 2.0)
        spec = GenerationSpec(prompt_of(30), GREEDY, 3)
        listener, _ = start(channel, chain.terms(), spec)
        opened = await listener.until(SessionOpened)
        assert isinstance(opened, SessionOpened)
        assert opened.cached_tokens == 0
        await listener.until(GenerationDone)
        await other.close()
        await forget(chain)


async def test_a_cancelled_session_keeps_nothing():
    async with mesh((3,), replace(KEEPING, step_seconds={0: 0.002})) as chain:
        spec = GenerationSpec(prompt_of(30), GREEDY, 200)
        terms = chain.terms()
        listener, _ = start(await chain.channel(), terms, spec)
        await listener.until(TokenReply)
        await chain.channels.peer(chain.head.hop.address).cancel(terms.key, "enough", 1.0)
        await chain.idle()


async def test_a_node_that_keeps_nothing_is_no_trouble():
    async with mesh((3,), Setup()) as chain:
        model = await chain.model()
        for _ in range(2):
            answer = await ask(model, prompt_of(30), 3)
            assert (answer.tokens, answer.summary.cached_tokens) == (alone(prompt_of(30), 3), 0)
        await until(lambda: not any(map(any, chain.open_sessions())))


async def test_a_node_with_a_single_place_computes_every_prompt_afresh():
    setup = replace(KEEPING, engine_sessions=1, flow=FlowControl(max_sessions=1))
    async with mesh((3,), setup) as chain:
        model = await chain.model()
        for _ in range(3):
            answer = await ask(model, prompt_of(30), 3)
            assert (answer.tokens, answer.summary.cached_tokens) == (alone(prompt_of(30), 3), 0)
        await forget(chain)
