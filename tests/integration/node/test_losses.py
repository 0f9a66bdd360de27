"""A node that is lost: whoever reads learns which one within a second, and the others are free."""

import asyncio
import time

import pytest

from meshnet.domain.errors import NodeLostError, NodeUnreachableError
from meshnet.domain.frames import GenerationDone, GrantTokens, TokenReply
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.layers import LayerRange
from meshnet.node import head as head_module
from meshnet.node.head import HeadSession
from meshnet.node.seam_session import SeamSession
from tests.support.mesh import GREEDY, Mesh, Setup, alone, ask, mesh, prompt_of, start, until

NOTICED_SECONDS = 1.0
BOTH = pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
ANY_PLACE = pytest.mark.parametrize("lost", [0, 1, 2], ids=["head", "middle", "tail"])


def paced(*, grpc: bool) -> Setup:
    return Setup(step_seconds=dict.fromkeys(range(3), 0.002), context_length=4096, grpc=grpc)


async def lose_during(chain: Mesh, prompt_tokens: int, lost: int, after_steps: int) -> float:
    """Lose a node while a generation runs; seconds until the reader knew."""
    model = await chain.model()
    asking = asyncio.create_task(ask(model, prompt_of(prompt_tokens), 1000))
    await until(lambda: chain.nodes[-1].engine.metrics().steps >= after_steps)
    began = time.perf_counter()
    losing = asyncio.create_task(chain.lose(lost))
    hop = chain.nodes[lost].hop
    with pytest.raises(NodeLostError) as caught:
        await asyncio.wait_for(asking, 3)
    noticed = time.perf_counter() - began
    await losing
    assert hop.node_id in caught.value.message
    assert str(hop.layers) in caught.value.message
    assert caught.value.details["node"] == hop.node_id
    assert caught.value.details["layers"] == str(hop.layers)
    assert caught.value.retryable
    return noticed


@BOTH
@ANY_PLACE
@pytest.mark.parametrize("prompt", [4000, 9], ids=["in prefill", "in decode"])
async def test_the_error_names_the_node_and_the_others_are_free(grpc, lost, prompt):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        assert await lose_during(chain, prompt, lost, after_steps=5) < NOTICED_SECONDS
        await chain.idle(NOTICED_SECONDS)


@BOTH
@ANY_PLACE
async def test_every_generation_over_the_node_fails(grpc, lost):
    async with mesh((2, 4), paced(grpc=grpc)) as chain:
        model = await chain.model()
        asking = [asyncio.create_task(ask(model, prompt_of(9, i), 1000)) for i in range(6)]
        await asyncio.sleep(0.15)
        losing = asyncio.create_task(chain.lose(lost))
        results = await asyncio.wait_for(asyncio.gather(*asking, return_exceptions=True), 3)
        await losing
        assert [type(result) for result in results] == [NodeLostError] * 6
        assert {result.details["node"] for result in results if isinstance(result, NodeLostError)}
        await chain.idle(NOTICED_SECONDS)


@ANY_PLACE
async def test_a_node_that_comes_back_at_its_address_is_used_again(lost):
    async with mesh((2, 4), paced(grpc=False)) as chain:
        model = await chain.model()
        asking = asyncio.create_task(ask(model, prompt_of(9), 1000))
        await asyncio.sleep(0.1)
        await chain.lose(lost)
        with pytest.raises(NodeLostError):
            await asking
        await chain.idle()
        chain.network.register(chain.nodes[lost].hop.address, chain.nodes[lost].shard)
        assert (await ask(model, prompt_of(9), 5)).tokens == alone(prompt_of(9), 5)


@pytest.mark.parametrize("absent", [0, 1, 2], ids=["head", "middle", "tail"])
async def test_a_node_that_isnt_there_is_named_with_its_address(absent):
    async with mesh((2, 4)) as chain:
        model = await chain.model()
        await chain.lose(absent)
        hop = chain.nodes[absent].hop
        with pytest.raises(NodeUnreachableError) as caught:
            await ask(model, prompt_of(9), 5)
        for part in (hop.node_id, hop.address, str(hop.layers)):
            assert part in caught.value.message
        assert caught.value.details["node"] == hop.node_id


async def test_a_chain_with_an_absent_node_isnt_found():
    async with mesh((2, 4)) as chain:
        await chain.lose(1)
        with pytest.raises(NodeUnreachableError, match="node-2"):
            await chain.chain()


async def test_health_of_a_chain_with_an_absent_node_names_its_address():
    async with mesh((2, 4)) as chain:
        model = await chain.model()
        assert [node.layers for node, _ in await model.chain()] == [
            LayerRange(0, 2),
            LayerRange(2, 4),
            LayerRange(4, 6),
        ]
        await chain.lose(2)
        with pytest.raises(NodeUnreachableError, match="node-3"):
            await model.chain()


async def test_a_head_that_answers_nobody_is_given_up_within_the_requests_time():
    setup = Setup(grpc=True)
    async with mesh((3,), setup) as chain:
        model = await chain.model()
        await chain.lose(0)
        began = time.perf_counter()
        results = await asyncio.gather(
            *(ask(model, prompt_of(9), 5, timeout_seconds=0.4) for _ in range(4)),
            return_exceptions=True,
        )
        assert time.perf_counter() - began < 1.5
        for result in results:
            assert isinstance(result, NodeUnreachableError)
            assert "node-1" in result.message


@BOTH
@pytest.mark.parametrize("lost", [1, 2], ids=["middle", "tail"])
async def test_tokens_that_are_there_reach_a_slow_reader_without_the_nodes_behind(grpc, lost):
    setup = Setup(grpc=grpc, keep_seconds=60.0)
    async with mesh((2, 4), setup) as chain:
        channel = await chain.channel()
        spec = GenerationSpec(prompt_of(30), GREEDY, 5)
        listener, handle = start(channel, chain.terms(), spec, token_credits=4)
        for _ in range(4):
            await listener.until(TokenReply)
        (session,) = chain.head.shard.sessions
        assert isinstance(session, HeadSession)
        await until(lambda: session._reason is not None)
        await chain.lose(lost)
        channel.send(GrantTokens(handle, 5))
        last = await listener.next()
        assert isinstance(last, TokenReply)
        assert last.token.token_id == alone(prompt_of(30), 5)[-1]
        assert isinstance(await listener.next(), GenerationDone)
        await chain.channels.close()


@pytest.mark.parametrize(
    ("stuck", "deadline"),
    [(False, 30.0), (True, 30.0), (True, 0.6)],
    ids=["broken", "stuck", "stuck past the deadline"],
)
async def test_a_node_behind_that_never_lets_go_ends_no_answer_late(monkeypatch, stuck, deadline):
    monkeypatch.setattr(head_module, "RELEASE_SECONDS", 0.8)

    async def never(session: SeamSession, *, keep: bool) -> None:
        if not stuck:
            raise NodeLostError("the last node is gone")
        await asyncio.sleep(30)

    monkeypatch.setattr(SeamSession, "_release", never)
    async with mesh((3,), Setup(keep_seconds=60.0)) as chain:
        spec = GenerationSpec(prompt_of(30), GREEDY, 5)
        terms = chain.terms(deadline_unix_nanos=time.time_ns() + int(deadline * 1e9))
        listener, _ = start(await chain.channel(), terms, spec)
        for _ in range(5):
            await listener.until(TokenReply)
        done = await listener.next(1.5)
        assert isinstance(done, GenerationDone)
        assert len(done.timings) == 1
        await until(lambda: not chain.head.shard.sessions)
        assert chain.head.shard.places.kept == 0, "what one node keeps alone is of no use"
        for stuck_session in chain.nodes[1].shard.sessions:
            stuck_session.cancel("the test is over")
