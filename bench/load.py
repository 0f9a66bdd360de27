"""Readers of streamed completions over HTTP, and when each piece came."""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import httpx

CONNECTIONS = 64
ANSWER_SECONDS = 600.0
UNDER_WAY = 4
"""Pieces after which a reader's prompt no longer matters."""


@dataclass(slots=True)
class Stream:
    """One answer as its reader saw it; times are ``perf_counter`` seconds."""

    asked: float
    times: list[float] = field(default_factory=list)
    """When each piece of text came."""
    tokens: int = 0
    """As the server counts them."""

    @property
    def first(self) -> float:
        """Seconds until the first piece."""
        return self.times[0] - self.asked


class CompletionClient:
    """Talks to ``/v1/completions`` of any server that has it."""

    def __init__(
        self,
        url: str,
        model: str,
        forbidden: Sequence[int],
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._model = model
        self._bias = {str(token): -100 for token in forbidden}
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=ANSWER_SECONDS,
            limits=httpx.Limits(max_connections=CONNECTIONS),
            transport=transport,
        )

    async def read(self, prompt: Sequence[int], count: int, stream: Stream) -> None:
        """Read ``count`` greedy tokens after ``prompt`` into ``stream``, piece by piece."""
        request = {
            "model": self._model,
            "prompt": list(prompt),
            "max_tokens": count,
            "temperature": 0.0,
            "logit_bias": self._bias,
            "stream": True,
            "stream_options": {"include_usage": True},
            "cache_prompt": False,
        }
        async with self._client.stream("POST", "/v1/completions", json=request) as response:
            if response.status_code != 200:
                raise SystemExit(f"the server refused: {(await response.aread()).decode()}")
            async for line in response.aiter_lines():
                _take(line, stream)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()


def _take(line: str, stream: Stream) -> None:
    if not line.startswith("data: {"):
        return
    event = json.loads(line.removeprefix("data: "))
    if any(choice["text"] for choice in event.get("choices", ())):
        stream.times.append(time.perf_counter())
    if event.get("usage"):
        stream.tokens = event["usage"]["completion_tokens"]


@dataclass(frozen=True, slots=True)
class Load:
    """What some readers at once saw."""

    rate: float
    """Tokens a second of all together, prompts included in the time."""
    gaps_ms: tuple[float, ...]
    """Between the pieces of every reader."""


async def at_once(client: CompletionClient, prompts: Sequence[Sequence[int]], count: int) -> Load:
    """One reader for each prompt, all started together."""
    started = time.perf_counter()
    streams = [Stream(started) for _ in prompts]
    async with asyncio.TaskGroup() as group:
        for prompt, stream in zip(prompts, streams, strict=True):
            group.create_task(client.read(prompt, count, stream))
    seconds = time.perf_counter() - started
    gaps = [gap for stream in streams for gap in gaps_ms(stream.times)]
    return Load(sum(stream.tokens for stream in streams) / seconds, tuple(gaps))


@dataclass(frozen=True, slots=True)
class Intrusion:
    """What running readers saw before a long prompt came, and while it was computed."""

    before_ms: tuple[float, ...]
    gaps_ms: tuple[float, ...]
    first: float
    """Seconds until the long prompt's first token."""


@dataclass(frozen=True, slots=True)
class Readers:
    """Who reads while the long prompt comes: their prompts, and how many tokens each may get."""

    prompts: Sequence[Sequence[int]]
    room: int
    quiet: int
    """Pieces that each has got when the long prompt comes; more than ``UNDER_WAY``."""


async def intrude(client: CompletionClient, readers: Readers, long: Sequence[int]) -> Intrusion:
    """Let readers run, then ask for one token after ``long``.

    The readers' gaps beside it are those that overlap the time from the request to its token.
    """
    streams = [Stream(time.perf_counter()) for _ in readers.prompts]
    running = [
        asyncio.create_task(client.read(prompt, readers.room, stream))
        for prompt, stream in zip(readers.prompts, streams, strict=True)
    ]
    try:
        await _until(lambda: all(len(stream.times) >= UNDER_WAY for stream in streams), running)
        quiet = time.perf_counter()
        await _until(lambda: all(len(stream.times) >= readers.quiet for stream in streams), running)
        intruder = Stream(time.perf_counter())
        await client.read(long, 1, intruder)
        end = intruder.times[0]
        await _until(lambda: all(stream.times[-1] > end for stream in streams), running)
    finally:
        for reader in running:
            reader.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    gaps = [pair for stream in streams for pair in itertools.pairwise(stream.times)]
    asked = intruder.asked
    return Intrusion(
        tuple((b - a) * 1e3 for a, b in gaps if a >= quiet and b <= asked),
        tuple((b - a) * 1e3 for a, b in gaps if b > asked and a < end),
        intruder.first,
    )


def gaps_ms(times: Sequence[float]) -> list[float]:
    """Milliseconds between neighbouring times."""
    return [(after - before) * 1e3 for before, after in itertools.pairwise(times)]


def percentile(values: Sequence[float], percent: int) -> float:
    """The value that ``percent`` of the values don't exceed."""
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


async def _until(reached: Callable[[], bool], readers: Sequence[asyncio.Task[None]]) -> None:
    """Wait for a state of the readers; a reader that ended ends the measurement."""
    while not reached():
        for reader in readers:
            if reader.done():
                reader.result()
                raise SystemExit("a reader's answer ended too early: give it more room")
        await asyncio.sleep(0.005)
