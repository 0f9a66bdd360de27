"""A request that is cancelled by its id leaves no work on any node."""

import asyncio
import time

import httpx

from tests.support.live_gateway import live_gateway
from tests.support.mesh import Mesh, Setup, mesh, until

BODY = {
    "model": "fixture",
    "prompt": ["one", "two"],
    "max_tokens": 4000,
    "temperature": 0,
    # The generation must not end by itself.
    "logit_bias": {"257": -100, "259": -100},
}


async def seconds_until_idle(http: httpx.AsyncClient, nodes: Mesh) -> float:
    """How long after the gateway's answer to a cancel the last node's last session is gone."""
    headers = {"x-request-id": "mine"}
    asking = asyncio.create_task(http.post("/v1/completions", json=BODY, headers=headers))
    await until(lambda: nodes.open_sessions() == [(2, 2)] * 3)
    told = await http.delete("/v1/requests/mine")
    before = time.perf_counter()
    await nodes.idle()
    seconds = time.perf_counter() - before
    answer = await asking
    assert told.status_code == 200
    assert (answer.status_code, answer.json()["error"]["code"]) == (499, "cancelled")
    assert answer.headers["x-request-id"] == "mine"
    return seconds


async def test_every_node_is_idle_a_tenth_of_a_second_after_the_gateway_knows() -> None:
    slow = Setup(step_seconds={0: 0.002, 1: 0.002, 2: 0.002}, context_length=4096)
    async with (
        mesh((2, 4), slow) as nodes,
        live_gateway(await nodes.model()) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as http,
    ):
        # The best of three: other work on the machine may hold one of them up.
        took = [await seconds_until_idle(http, nodes) for _ in range(3)]
    assert min(took) < 0.1, took


async def test_more_answers_than_sessions_wait_for_each_other() -> None:
    few = Setup(engine_sessions=2)
    body = {"model": "fixture", "prompt": "x", "n": 6, "max_tokens": 5, "seed": 1}
    async with (
        mesh((3,), few) as nodes,
        live_gateway(await nodes.model()) as url,
        httpx.AsyncClient(base_url=url, timeout=10) as http,
    ):
        answer = await http.post("/v1/completions", json=body)
        alone = await http.post("/v1/completions", json=body | {"n": 2})
    texts = [choice["text"] for choice in answer.json()["choices"]]
    assert answer.json()["usage"]["completion_tokens"] == 30
    assert texts[:2] == [choice["text"] for choice in alone.json()["choices"]]
    assert len(set(texts)) == 6
