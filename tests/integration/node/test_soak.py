"""Many readers who come and go at random leave nothing behind, and nobody gets another's tokens."""

from dataclasses import replace

import pytest

from bench.soak import LONGEST, Soak, shared_prompts
from meshnet.domain.nodes import FlowControl
from meshnet.engine.tokenizer import ByteTokenizer
from tests.support.mesh import Setup, alone, mesh

pytestmark = pytest.mark.slow

SECONDS = 4.0
READERS = 60
SETUP = Setup(
    keep_seconds=60.0,
    context_length=512,
    flow=FlowControl(max_sessions=8),
    step_seconds={0: 0.001, 1: 0.001},
)
PROMPTS = shared_prompts([32 + (i * 7 + i * i) % 95 for i in range(400)])


@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
async def test_sessions_that_end_in_any_way_give_everything_back(grpc):
    async with mesh((3,), replace(SETUP, grpc=grpc)) as chain:
        addresses = [hop.address for hop in chain.hops]
        soak = Soak(chain.other_gateway, addresses, ByteTokenizer(), PROMPTS)
        soak.expected = {prompt: tuple(alone(prompt, LONGEST)) for prompt in PROMPTS}
        await soak.run(SECONDS, READERS)
        assert set(soak.fates) == {"read", "left", "deadline", "broken", "refused"}
        await chain.idle(10.0)
        assert [node.shard.places.reserved_positions for node in chain.nodes] == [0, 0]
        assert [node.shard.places.kept for node in chain.nodes] == [0, 0]
        await soak.run(0.5, READERS)
