"""Over HTTP, one key's many requests don't hold up another key's only one."""

import asyncio
import time
from collections.abc import AsyncGenerator

import httpx
import pytest

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.gateway.access import Access
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.fair import QueueBounds
from meshnet.gateway.server import serve
from meshnet.node.seats import LACKING, ROOM
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from meshnet.tracker.apikeys import fixed_key
from tests.support.live_gateway import until
from tests.support.scripted_model import Script, ScriptedModel

SERVICE_SECONDS = 0.2
ASK = {"model": "scripted", "prompt": "x", "max_tokens": 4}


class FullModel(ScriptedModel):
    """Refuses more generations at once than ``places``, as nodes do."""

    places = 2

    async def generate(
        self, request: TextRequest
    ) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        if self.running >= self.places:
            problem = f"serves {self.running} sessions, as many as it may"
            raise ResourceExhaustedError(problem, **{LACKING: ROOM})
        async for event in super().generate(request):
            yield event


@pytest.fixture
def model() -> FullModel:
    return FullModel(Script("abcd", delay_seconds=SERVICE_SECONDS / 4))


async def serving(
    model: FullModel, queue: QueueBounds, stop: asyncio.Event
) -> tuple[str, asyncio.Task[None]]:
    keys = [fixed_key(name, name) for name in ("heavy", "light")]
    app = create_app([model], GatewayConfig(queue=queue), access=Access(keys, required=True))
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(app, "127.0.0.1", 0, on_ready=url.set_result, stop=stop))
    return await url, task


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def test_a_light_key_waits_for_about_one_service_time_behind_a_hundred_requests(
    model: FullModel,
) -> None:
    stop = asyncio.Event()
    url, server = await serving(model, QueueBounds(200, 200), stop)
    limits = httpx.Limits(max_connections=200)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:

        async def ask(name: str) -> tuple[int, float]:
            began = time.monotonic()
            answer = await client.post("/v1/completions", json=ASK, headers=by(name))
            return answer.status_code, time.monotonic() - began

        heavy = [asyncio.create_task(ask("heavy")) for _ in range(100)]
        await until(lambda: sum(each.done() for each in heavy) >= 4, 10.0)
        status, seconds = await ask("light")
        behind = sum(not each.done() for each in heavy)
        # Client and server share a process here, which the clock counts in as well.
        assert status == 200
        assert behind > 80
        assert seconds < 5 * SERVICE_SECONDS
        for each in heavy:
            each.cancel()
        await asyncio.gather(*heavy, return_exceptions=True)
        await until(lambda: model.running == 0, 5.0)
    stop.set()
    await server


async def test_who_finds_the_queue_full_is_told_when_to_come_back(model: FullModel) -> None:
    stop = asyncio.Event()
    url, server = await serving(model, QueueBounds(3, 2), stop)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def ask(name: str) -> httpx.Response:
            return await client.post("/v1/completions", json=ASK, headers=by(name))

        answers = await asyncio.gather(*(ask("heavy") for _ in range(6)))
        statuses = sorted(answer.status_code for answer in answers)
        assert statuses == [200, 200, 200, 200, 429, 429]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert {answer.json()["error"]["code"] for answer in refused} == {"resource_exhausted"}
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert len({answer.headers["x-request-id"] for answer in answers}) == 6
    stop.set()
    await server


async def test_a_client_that_leaves_while_waiting_leaves_the_queue(model: FullModel) -> None:
    stop = asyncio.Event()
    url, server = await serving(model, QueueBounds(1, 1), stop)
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        ask = ASK | {"max_tokens": 4}
        running = [
            asyncio.create_task(client.post("/v1/completions", json=ask, headers=by("heavy")))
            for _ in range(2)
        ]
        await until(lambda: model.running == 2, 5.0)
        with pytest.raises(httpx.ReadTimeout):
            await client.post("/v1/completions", json=ask, headers=by("light"), timeout=0.05)
        waiting = await client.post("/v1/completions", json=ask, headers=by("light"))
        assert waiting.status_code == 200
        assert [(await each).status_code for each in running] == [200, 200]
    stop.set()
    await server
