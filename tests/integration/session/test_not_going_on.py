"""A loss that nothing makes good is told, in time and with what was tried."""

import asyncio
import time
from dataclasses import replace

import pytest

from meshnet.domain.errors import MeshnetError, NodeLostError, NodeUnreachableError
from meshnet.domain.layers import LayerRange
from meshnet.session.recovery import NO_RECOVERY, RecoveryPolicy
from meshnet.session.service import Opened, TextRequest
from tests.support.dying import dying
from tests.support.mesh import GREEDY, Mesh, Setup, prompt_of, until
from tests.support.reading import read

PROMPT = prompt_of(11)


async def test_without_another_chain_the_loss_is_told_with_what_was_tried():
    policy = RecoveryPolicy(0.3, 0.001, 0.02)
    async with dying(policy=policy) as nodes:
        nodes.begin()
        nodes.doom.kill(1, 6)
        nodes.routes.avoided.add("node-5")
        began = time.perf_counter()
        with pytest.raises(NodeLostError) as caught:
            await read(nodes.model, TextRequest(PROMPT, GREEDY, 10))
        assert 0.25 < time.perf_counter() - began < 1.5
        assert caught.value.details["node"] == "node-2"
        assert "lost node node-2" in caught.value.message
        assert "no node is ready with all layers" in caught.value.message
        assert nodes.routes.asked > 5
        await nodes.mesh.idle()


async def test_the_deadline_ends_the_wait_as_well():
    async with dying(policy=RecoveryPolicy(30.0)) as nodes:
        nodes.begin()
        nodes.doom.kill(2, 6)
        nodes.routes.avoided.add("node-6")
        began = time.perf_counter()
        with pytest.raises(NodeLostError, match="node-3"):
            await read(nodes.model, TextRequest(PROMPT, GREEDY, 10, timeout_seconds=0.5))
        assert time.perf_counter() - began < 1.5


async def test_switched_off_the_loss_is_told_at_once():
    async with dying(policy=NO_RECOVERY) as nodes:
        nodes.begin()
        nodes.doom.kill(1, 6)
        with pytest.raises(NodeLostError, match="node-2") as caught:
            await read(nodes.model, TextRequest(PROMPT, GREEDY, 10))
        assert "tried" not in caught.value.message


@pytest.mark.parametrize("how", ["closed", "cancelled"])
async def test_who_leaves_while_a_chain_is_looked_for_leaves_at_once(how):
    async with dying(policy=RecoveryPolicy(30.0)) as nodes:
        nodes.begin()
        nodes.doom.kill(1, 6)
        nodes.routes.avoided.add("node-5")
        events = nodes.model.generate(TextRequest(PROMPT, GREEDY, 50))

        async def all_of_it() -> None:
            async for _ in events:
                pass

        reading = asyncio.create_task(all_of_it())
        await until(lambda: nodes.routes.asked >= 4)
        began = time.perf_counter()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        if how == "closed":
            await events.aclose()
        assert time.perf_counter() - began < 0.2
        asked = nodes.routes.asked
        await asyncio.sleep(0.1)
        assert nodes.routes.asked == asked
        await nodes.mesh.idle()


@pytest.mark.parametrize(
    ("changed", "word"),
    [({"chunk_tokens": 16}, "recipe digests differ"), ({"context_length": 128}, "128 tokens")],
    ids=["recipe", "context"],
)
async def test_a_chain_of_another_recipe_or_with_less_room_is_never_gone_on_with(changed, word):
    class Mixed(Mesh):
        """The twins differ."""

        async def add(self, layers: LayerRange):
            if len(self.nodes) == 3:
                self.setup = replace(self.setup, **changed)
            return await super().add(layers)

    async with dying(Mixed(Setup()), policy=RecoveryPolicy(0.3, 0.01, 0.05)) as nodes:
        nodes.begin()
        nodes.doom.kill(0, 6)

        def only_twins_from_now_on(_: Opened) -> None:
            nodes.routes.avoided.update(("node-2", "node-3"))

        request = TextRequest(PROMPT, GREEDY, 10, on_open=only_twins_from_now_on)
        with pytest.raises(NodeLostError, match="node-1") as caught:
            await read(nodes.model, request)
        assert caught.value.details["node"] == "node-1"
        assert word in caught.value.message
        assert all(it.node in ("node-1", "node-2", "node-3") for it in nodes.doom.ran)


async def test_a_generation_that_hasnt_begun_is_refused_as_ever():
    async with dying(policy=RecoveryPolicy(30.0)) as nodes:
        nodes.begin()
        await nodes.mesh.lose(1)
        nodes.doom.dead.append(1)
        nodes.routes.avoided.add("node-5")
        with pytest.raises(MeshnetError) as caught:
            await asyncio.wait_for(read(nodes.model, TextRequest(PROMPT, GREEDY, 10)), 1.0)
        assert isinstance(caught.value, NodeUnreachableError)
