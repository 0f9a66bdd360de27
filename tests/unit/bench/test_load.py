"""Readers of streamed completions."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from bench.load import (
    CompletionClient,
    Readers,
    Stream,
    at_once,
    gaps_ms,
    intrude,
    percentile,
)

PROMPT = (1, 2, 3)


class Words(httpx.AsyncByteStream):
    """The stream of a server that says one word for each token, and then the usage."""

    def __init__(self, count: int, pause: float) -> None:
        self._count = count
        self._pause = pause

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for _ in range(self._count):
            if self._pause:
                await asyncio.sleep(self._pause)
            yield _event({"choices": [{"text": "word"}], "usage": None})
        yield _event({"choices": [{"text": "", "finish_reason": "length"}]})
        yield _event({"choices": [], "usage": {"completion_tokens": self._count}})
        yield b"data: [DONE]\n\n"


def _event(content: object) -> bytes:
    return f"data: {json.dumps(content)}\n\n".encode()


def _client(
    asked: list[dict[str, object]], status: int = 200, pause: float = 0.0
) -> CompletionClient:
    def answer(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        asked.append(body)
        return httpx.Response(status, stream=Words(body["max_tokens"], pause))

    return CompletionClient("http://server", "model", [7], httpx.MockTransport(answer))


async def test_pieces_are_timed_and_tokens_counted_as_the_server_does() -> None:
    asked: list[dict[str, object]] = []
    client, stream = _client(asked), Stream(0.0)
    await client.read(PROMPT, 5, stream)
    await client.close()
    assert (len(stream.times), stream.tokens) == (5, 5)
    assert stream.times == sorted(stream.times)
    assert (asked[0]["prompt"], asked[0]["max_tokens"]) == ([1, 2, 3], 5)
    assert asked[0]["logit_bias"] == {"7": -100}


async def test_the_gaps_of_all_readers_are_kept() -> None:
    client = _client([])
    load = await at_once(client, [PROMPT, PROMPT], 5)
    await client.close()
    assert len(load.gaps_ms) == 2 * 4
    assert load.rate > 0


async def test_a_refusal_ends_the_measurement() -> None:
    client = _client([], status=400)
    with pytest.raises(SystemExit, match="refused"):
        await client.read(PROMPT, 5, Stream(0.0))
    await client.close()


async def test_a_long_prompts_readers_are_watched_before_it_and_beside_it() -> None:
    asked: list[dict[str, object]] = []
    client = _client(asked, pause=0.001)
    found = await intrude(client, Readers([PROMPT, PROMPT], 500, 60), (1,) * 50)
    await client.close()
    assert [body["max_tokens"] for body in asked] == [500, 500, 1]
    # Watched from when they are under way; when that is noticed takes a while.
    assert len(found.before_ms) >= 2 * 30
    assert len(found.gaps_ms) >= 2
    assert found.first > 0


async def test_readers_that_end_before_the_long_prompt_does_are_no_result() -> None:
    client = _client([])
    with pytest.raises(SystemExit, match="too early"):
        await intrude(client, Readers([PROMPT], 5, 5), PROMPT)
    await client.close()


def test_gaps_are_between_neighbours() -> None:
    assert gaps_ms([1.0, 1.25, 1.75]) == [250.0, 500.0]


def test_a_percentile_is_between_the_least_and_the_greatest() -> None:
    values = [float(value) for value in range(101)]
    assert percentile(values, 50) == 50.0
    assert percentile(values, 99) == 99.0
    assert percentile([1.0, 2.0], 99) < 2.0
