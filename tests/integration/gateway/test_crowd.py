"""Many clients at once, who read, leave, cancel and give up, over HTTP and a chain of nodes."""

import asyncio
from dataclasses import replace

import httpx
import pytest

from bench.crowd import Crowd
from meshnet.domain.nodes import FlowControl
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.fair import QueueBounds
from tests.support.live_gateway import live_gateway
from tests.support.mesh import Setup, mesh

pytestmark = pytest.mark.slow

CLIENTS = 64
SECONDS = 2.5
PROMPTS = ("hello", "Grüße aus 北京", "a longer one that has more than one chunk of tokens")
SETUP = Setup(
    context_length=512,
    flow=FlowControl(max_sessions=8),
    step_seconds={0: 0.001, 1: 0.001},
)
FULL_AT_ONCE = GatewayConfig(queue=QueueBounds(30))


async def test_a_crowd_gets_right_answers_or_declared_refusals_and_leaves_nothing_behind():
    limits = httpx.Limits(max_connections=4 * CLIENTS)
    async with mesh((3,), replace(SETUP, grpc=True)) as nodes:
        model = await nodes.model()
        async with (
            live_gateway(model, config=FULL_AT_ONCE) as url,
            httpx.AsyncClient(base_url=url, timeout=30, limits=limits) as http,
        ):
            crowd = Crowd(http, "fixture", PROMPTS, formats=False, patience_seconds=1.0)
            await crowd.learn()
            await crowd.run(0.5, 8)
            await nodes.idle(10.0)
            tasks = len(asyncio.all_tasks())
            await crowd.run(SECONDS, CLIENTS)
            await nodes.idle(10.0)
            # Connections that the clients keep open have tasks; none is there for a request.
            assert len(asyncio.all_tasks()) <= tasks + 2 * CLIENTS
            assert not [it for it in asyncio.all_tasks() if it.get_name().startswith("session")]
            assert [node.shard.places.reserved_positions for node in nodes.nodes] == [0, 0]
    assert not crowd.faults, crowd.faults[:5]
    assert {("read", "answered"), ("leave", "left"), ("cancel", "cancelled")} <= set(crowd.seen)
    assert {("impatient", "left"), ("read", "429")} <= set(crowd.seen)
    assert {outcome for _, outcome in crowd.seen} <= {"answered", "left", "cancelled", "429"}
