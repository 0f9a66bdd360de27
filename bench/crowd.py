"""Clients of an OpenAI server who read, leave, cancel or give up, and what each of them saw."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from meshnet.domain.tracing import new_trace

FATES = ("read", "read", "leave", "cancel", "cancel", "impatient")
SHAPES = ("plain", "plain", "two", "json")
LONGEST = 24
"""Tokens of an answer at most."""
ANSWER_SECONDS = 300.0
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer"}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
_CODES = {429: "429", 499: "cancelled", 503: "503"}
"""Declared outcomes beside an answer, by status."""


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request asks for."""

    prompt: str
    stream: bool = False
    shape: str = "plain"
    greedy: bool = True
    tokens: int = LONGEST

    def body(self, model: str) -> dict[str, object]:
        """The request's JSON."""
        body: dict[str, object] = {
            "model": model,
            "messages": [{"role": "user", "content": self.prompt}],
            "max_tokens": self.tokens,
            "temperature": 0 if self.greedy else 0.8,
            "n": 2 if self.shape == "two" else 1,
        }
        if self.shape == "json":
            named = {"name": "a", "schema": SCHEMA}
            body["response_format"] = {"type": "json_schema", "json_schema": named}
        if self.stream:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        return body


@dataclass(frozen=True, slots=True)
class Ending:
    """A request that its client ended before its answer did."""

    how: str
    trace_id: str
    at: int
    """Unix nanoseconds, before the client did so."""
    told: str | None = None
    """The trace of the request that told the server."""


@dataclass(slots=True)
class Answer:
    """What has come so far."""

    texts: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    usage: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    done: bool = False
    pieces: int = 0

    def take_whole(self, answer: dict[str, Any]) -> None:
        """An answer that came at once."""
        self.done = True
        self.usage = answer["usage"]
        for choice in answer["choices"]:
            self.texts[choice["index"]] = choice["message"]["content"]
            self.reasons[choice["index"]] = choice["finish_reason"]

    def take_line(self, line: str) -> None:
        """A line of a stream."""
        if not line.startswith("data: "):
            return
        if line == "data: [DONE]":
            self.done = True
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            self.error = str(event["error"]["code"])
            return
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            index = choice["index"]
            told = choice["delta"].get("content") or ""
            self.texts[index] = self.texts.get(index, "") + told
            self.pieces += bool(told)
            if choice["finish_reason"]:
                self.reasons[index] = choice["finish_reason"]

    def problem(self, ask: Ask, expected: str | None) -> str | None:
        """What is wrong with an answer that was read to its end; None if nothing is."""
        if not self.done:
            return "the stream ended without [DONE]"
        if len(self.texts) != (2 if ask.shape == "two" else 1) or len(self.reasons) != len(
            self.texts
        ):
            return f"{len(self.texts)} texts, {len(self.reasons)} ends"
        most = ask.tokens * len(self.texts)
        if not 0 <= self.usage.get("completion_tokens", -1) <= most:
            return f"usage {self.usage}"
        if ask.shape == "json" and self.reasons[0] == "stop":
            value = json.loads(self.texts[0])
            if set(value) != {"ok", "n"}:
                return f"no answer by the schema: {self.texts[0]}"
        if expected is not None and set(self.texts.values()) != {expected}:
            return f"{self.texts} instead of {expected!r}"
        return None


@dataclass(slots=True)
class Crowd:
    """Clients of one server. ``formats`` says whether they may ask for JSON."""

    http: httpx.AsyncClient
    model: str
    prompts: Sequence[str]
    formats: bool = True
    seed: int = 1
    patience_seconds: float = 15.0
    """The longest that somebody waits who ends an answer that isn't streamed."""
    seen: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By fate and outcome."""
    faults: list[str] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)

    async def learn(self) -> None:
        """Ask for each prompt's likeliest answer while nobody else asks."""
        for prompt in self.prompts:
            answer = Answer()
            await self._read(Ask(prompt), {}, answer)
            self.expected[prompt] = answer.texts[0]

    async def run(self, seconds: float, clients: int) -> None:
        """Let so many clients ask again and again for so long, and wait for their last answers."""
        until = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                draw = random.Random(f"{self.seed} {number}")
                group.create_task(self._client(draw, until))
        self.seed += 1

    async def _client(self, draw: random.Random, until: float) -> None:
        while time.monotonic() < until:
            fate = draw.choice(FATES)
            ask = self._ask(draw)
            try:
                outcome = await self._request(ask, fate, draw)
            except httpx.TransportError as error:
                outcome = "broken"
                self.faults.append(f"{fate}: {type(error).__name__} {error}")
            self.seen[fate, outcome] += 1
            if outcome in ("429", "503"):
                await asyncio.sleep(draw.uniform(0.1, 1.0))

    def _ask(self, draw: random.Random) -> Ask:
        shape = draw.choice(SHAPES if self.formats else SHAPES[:-1])
        greedy = draw.random() < 0.5
        # A likeliest answer is compared with what came when nobody else asked: as long as that.
        tokens = LONGEST if greedy else draw.randint(1, LONGEST)
        return Ask(draw.choice(self.prompts), draw.random() < 0.6, shape, greedy, tokens)

    async def _request(self, ask: Ask, fate: str, draw: random.Random) -> str:
        trace = new_trace()
        name = f"crowd-{trace.trace_id}"
        headers = {"x-request-id": name, "traceparent": trace.traceparent}
        answer = Answer()
        reading = asyncio.create_task(self._read(ask, headers, answer))
        if fate == "read":
            return await reading
        await self._moment(reading, answer, ask, fate, draw)
        if reading.done():
            return reading.result()
        at = time.time_ns()
        if fate != "cancel":
            reading.cancel()
            await asyncio.wait({reading})
            self.endings.append(Ending("disconnect", trace.trace_id, at))
            return "left"
        told = new_trace()
        deleted = await self.http.delete(
            f"/v1/requests/{name}", headers={"traceparent": told.traceparent}
        )
        if deleted.status_code == 200:
            self.endings.append(Ending("DELETE", trace.trace_id, at, told.trace_id))
        elif deleted.status_code != 404:
            self.faults.append(f"DELETE was answered with {deleted.status_code}: {deleted.text}")
        return await reading

    async def _moment(
        self,
        reading: asyncio.Task[str],
        answer: Answer,
        ask: Ask,
        fate: str,
        draw: random.Random,
    ) -> None:
        """Wait until the client ends its request, or the answer has ended."""
        pieces = draw.randint(1, 8)
        patience = draw.uniform(0.02, 2.0 if fate == "impatient" else self.patience_seconds)
        began = time.monotonic()
        while not reading.done():
            left = began + patience - time.monotonic()
            streamed = ask.stream and fate != "impatient"
            if answer.pieces >= pieces if streamed else left <= 0:
                return
            await asyncio.wait({reading}, timeout=0.01 if streamed else max(left, 0.0))

    async def _read(self, ask: Ask, headers: dict[str, str], answer: Answer) -> str:
        """Read an answer to its end; how it ended."""
        body = ask.body(self.model)
        url = "/v1/chat/completions"
        async with self.http.stream("POST", url, json=body, headers=headers) as response:
            if response.status_code != 200:
                text = (await response.aread()).decode()
                return self._declared(response, text)
            if ask.stream:
                async for line in response.aiter_lines():
                    answer.take_line(line)
            else:
                answer.take_whole(json.loads(await response.aread()))
        if answer.error is not None:
            if answer.error != "cancelled":
                self.faults.append(f"a stream ended with {answer.error}")
            return answer.error
        greedy = ask.greedy and ask.shape != "json"
        problem = answer.problem(ask, self.expected.get(ask.prompt) if greedy else None)
        if problem is not None:
            self.faults.append(f"{ask}: {problem}")
        return "answered" if problem is None else "wrong"

    def _declared(self, response: httpx.Response, text: str) -> str:
        status = response.status_code
        if status not in _CODES:
            self.faults.append(f"status {status}: {text[:200]}")
        elif status != 499 and "retry-after" not in response.headers:
            self.faults.append(f"status {status} without retry-after: {text[:200]}")
        return _CODES.get(status, f"status {status}")


async def polled(
    ready: Callable[[], Awaitable[bool]], seconds: float, pause: float = 0.0
) -> tuple[float, int]:
    """Ask ``ready`` until it is true; seconds it took, and how often it was asked."""
    began = time.perf_counter()
    asked = 1
    while not await ready():
        if time.perf_counter() - began > seconds:
            raise SystemExit(f"after {seconds:g} s the nodes still hold something")
        asked += 1
        await asyncio.sleep(pause)
    return time.perf_counter() - began, asked
