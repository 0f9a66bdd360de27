"""A worker is killed in the middle of an answer: its reader gets what nobody's death would give."""

import itertools
import json
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import httpx
import pytest

from tests.support.commands import Command, command

LONGEST_PAUSE_MS = 25_000.0
ASKED = {
    "model": "tiny",
    "prompt": "hello there",
    "max_tokens": 400,
    "temperature": 0.9,
    "seed": 7,
    "frequency_penalty": 0.3,
    "logprobs": 2,
    "stream": True,
    "stream_options": {"include_usage": True},
}


@asynccontextmanager
async def served(model, env, *options: str) -> AsyncIterator[tuple[Command, httpx.AsyncClient]]:
    # What an earlier answer saved at its beginning would be told in the usage.
    common = ("--nodes", "3", "--ctx", "1024", "--threads", "1", "--no-prefix-cache")
    async with command("serve", model, "--port", "0", *common, *options, env=env) as started:
        url = re.search(r"http://127\.0\.0\.1:\d+", await started.read_line(120.0))
        assert url is not None
        started.workers()
        async with httpx.AsyncClient(base_url=url[0], timeout=120) as client:
            yield started, client


@dataclass(frozen=True, slots=True)
class Told:
    """A stream: what its chunks say, and the timings of its last one."""

    choices: list[object]
    usage: object
    timings: dict[str, object]


async def told(
    client: httpx.AsyncClient,
    asked: dict[str, object],
    after: int = 0,
    strike: Callable[[], None] | None = None,
) -> Told:
    """Read an answer; strike after so many of its chunks."""
    chunks: list[dict[str, object]] = []
    headers = {"x-meshnet-timings": "1"}
    async with client.stream("POST", "/v1/completions", json=asked, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line or line == "data: [DONE]":
                continue
            chunks.append(json.loads(line.removeprefix("data: ")))
            assert "error" not in chunks[-1], chunks[-1]
            if strike is not None and len(chunks) > after:
                strike()
                strike = None
    timings = next(chunk["meshnet_timings"] for chunk in chunks if "meshnet_timings" in chunk)
    choices = [chunk["choices"] for chunk in chunks if chunk["choices"]]
    return Told(choices, chunks[-1]["usage"], timings)  # type: ignore[arg-type]


async def killing(started: Command, victim: str) -> Callable[[], None]:
    """What kills a node's worker of now."""
    worker = await started.worker_of(victim)
    return partial(os.kill, worker.pid, signal.SIGKILL)


def pauses(answer: Told) -> list[float]:
    found = answer.timings["pauses_ms"]
    assert isinstance(found, list)
    return found


@pytest.mark.slow
async def test_a_worker_that_is_killed_makes_its_answers_pause(tiny, env):
    async with served(tiny, env) as (started, client):
        expected = await told(client, ASKED)
        assert pauses(expected) == []
        disturbed = await told(client, ASKED, 30, await killing(started, "node-2"))
        assert (disturbed.choices, disturbed.usage) == (expected.choices, expected.usage)
        (pause,) = pauses(disturbed)
        assert 0 < pause < LONGEST_PAUSE_MS
        page = (await client.get("/metrics")).text
        assert 'meshnet_gateway_recoveries_total{model="tiny"} 1' in page
        summed = re.search(r'recovery_pause_seconds_sum{model="tiny"} ([\d.]+)', page)
        assert summed is not None and abs(float(summed[1]) - pause / 1e3) < 0.001
        started.process.send_signal(signal.SIGTERM)
        ended = await started.end()
    assert "node node-2 (layers [2, 4)) was killed (SIGKILL)" in ended.said
    assert re.search(r"\[req-\w+\] cmpl-\w+ went on after [\d.]+ s without a token", ended.said)


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_any_worker_may_be_killed_at_any_time(tiny, env):
    async with served(tiny, env) as (started, client):
        expected = await told(client, ASKED)
        for victim, after in itertools.product(("node-1", "node-2", "node-3"), (0, 120)):
            disturbed = await told(client, ASKED, after, await killing(started, victim))
            assert (disturbed.choices, disturbed.usage) == (expected.choices, expected.usage)
            assert len(pauses(disturbed)) == 1


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("options", [(), ("--flash-attn",)], ids=["plain", "flash"])
async def test_a_real_models_answer_is_the_same(options, smollm2_path, env):
    asked = ASKED | {
        "model": "smollm2",
        "prompt": "Once upon a time, in a village by the sea, there lived an old clockmaker who "
        * 3,
        "max_tokens": 60,
    }
    async with served(smollm2_path, env, "--name", "smollm2", *options) as (started, client):
        expected = await told(client, asked)
        for victim, after in (("node-1", 20), ("node-2", 0), ("node-3", 45)):
            disturbed = await told(client, asked, after, await killing(started, victim))
            assert (disturbed.choices, disturbed.usage) == (expected.choices, expected.usage)
            assert len(pauses(disturbed)) == 1
