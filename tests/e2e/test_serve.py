"""``meshnet serve``: the HTTP API over node processes that are started again when they die."""

import asyncio
import json
import os
import re
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import psutil

from meshnet.transport.seam_client import GrpcTransport
from tests.support.commands import Command, address_of, command, require_clean

END_SECONDS = 2.0
BACK_SECONDS = 15.0
LONG = {"model": "tiny", "prompt": "h", "max_tokens": 4000, "temperature": 0, "stream": True}
CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hello"}],
    "max_tokens": 8,
    "temperature": 0,
}


@asynccontextmanager
async def served(model, env, *more: str) -> AsyncIterator[tuple[Command, httpx.AsyncClient]]:
    """A server on a free port, and a client for it."""
    options = ("--port", "0", "--nodes", "3", "--ctx", "5000", "--sessions", "2", "--queue", "0")
    async with command("serve", model, *options, *more, env=env) as started:
        line = await started.read_line()
        url = re.search(r"http://127\.0\.0\.1:\d+", line)
        assert url is not None, f"the first line tells no URL: {line!r}"
        started.workers()
        async with httpx.AsyncClient(base_url=url[0], timeout=20) as client:
            yield started, client


async def open_sessions(started: Command) -> list[int]:
    """What each node says itself."""
    counts = []
    for worker in started.workers():
        peer = GrpcTransport().peer(address_of(worker))
        counts.append((await peer.health(5.0)).open_sessions)
        await peer.close()
    return counts


async def until_sessions(started: Command, wanted: list[int], within_seconds: float) -> None:
    async with asyncio.timeout(within_seconds):
        while await open_sessions(started) != wanted:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0.02)


@asynccontextmanager
async def streaming(client: httpx.AsyncClient) -> AsyncIterator[AsyncIterator[str]]:
    """The lines of a long answer that has begun; leaving it early disconnects."""
    async with client.stream("POST", "/v1/completions", json=LONG) as response:
        assert response.status_code == 200
        lines = response.aiter_lines()
        assert (await anext(lines)).startswith("data: ")
        yield lines


async def until_ready(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(BACK_SECONDS):
        while (await client.get("/health")).status_code != 200:  # noqa: ASYNC110 - no event
            await asyncio.sleep(0.1)


async def test_serving_from_start_to_end(tiny, env):
    async with served(tiny, env) as (started, client):
        health = await client.get("/health")
        assert health.status_code == 200
        nodes = health.json()["models"][0]["nodes"]
        assert [node["layers"] for node in nodes] == [[0, 2], [2, 4], [4, 6]]
        assert [entry["id"] for entry in (await client.get("/v1/models")).json()["data"]] == [
            "tiny"
        ]

        answer = await client.post("/v1/chat/completions", json=CHAT)
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 8
        again = await client.post("/v1/chat/completions", json=CHAT)
        assert again.json()["choices"] == answer.json()["choices"]

        # A client that leaves.
        async with streaming(client):
            assert await open_sessions(started) == [1, 1, 1]
        await until_sessions(started, [0, 0, 0], 1.0)

        # As many as there is room for, and one more.
        async with streaming(client), streaming(client):
            refused = await client.post("/v1/chat/completions", json=CHAT)
            assert refused.status_code == 429
            assert "node-1" in refused.json()["error"]["message"]
        await until_sessions(started, [0, 0, 0], 1.0)

        # An end by Ctrl-C with an answer under way.
        async with streaming(client):
            started.interrupt()
            ended = await started.end(END_SECONDS)
    assert ended.status == 130
    # The answer that was cut off has a line in the log, and nothing else has.
    assert re.fullmatch(r"[^\n]*the gateway is stopping[^\n]*\n", ended.err), ended.err


async def test_a_node_that_dies_fails_answers_that_dont_wait_and_is_back_soon(tiny, env):
    async with served(tiny, env, "--recovery", "0") as (started, client):
        victim = await started.worker_of("node-2")
        async with streaming(client) as lines:
            whole = asyncio.create_task(
                client.post("/v1/completions", json=LONG | {"stream": False})
            )
            await until_sessions(started, [2, 2, 2], 5.0)
            os.kill(victim.pid, signal.SIGKILL)
            events = [line async for line in lines if line.startswith("data: ")]
            error = json.loads(events[-1].removeprefix("data: "))["error"]
            assert "node-2" in error["message"]
            assert "[2, 4)" in error["message"]
        failed = await whole
        assert failed.status_code == 502
        assert "node-2" in failed.json()["error"]["message"]

        # Either it isn't back yet, which the answer says, or it is.
        next_one = await client.post("/v1/chat/completions", json=CHAT)
        assert next_one.status_code in (200, 503)
        await until_ready(client)
        assert (await client.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert not psutil.pid_exists(victim.pid)

        started.process.send_signal(signal.SIGTERM)
        ended = await started.end(END_SECONDS)
    assert ended.status == 130
    assert "node node-2 (layers [2, 4)) was killed (SIGKILL)" in ended.said
    require_clean(ended)
