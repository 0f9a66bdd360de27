"""The dashboard's routes, over a network that is what the test wants."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from meshnet.domain.errors import NodeUnreachableError
from meshnet.gateway import viewers
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.flights import Flights
from meshnet.gateway.viewers import Viewers
from tests.support.live_gateway import until
from tests.support.scripted_machines import JOIN_LINE, ScriptedMachines
from tests.support.scripted_model import Script, ScriptedModel

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


def client_of(machines: ScriptedMachines | None, **config: Any) -> httpx.AsyncClient:
    app = create_app([ScriptedModel()], GatewayConfig(**config), machines=machines)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost")


def payload(frame: bytes) -> Any:
    return json.loads(frame.removeprefix(b"data: "))


@asynccontextmanager
async def watching(machines: ScriptedMachines) -> AsyncIterator[Viewers]:
    stopping = asyncio.Event()
    yield Viewers(machines, Flights(), stopping)
    stopping.set()


async def test_the_page_and_its_files_come_without_the_key_and_nothing_else_does() -> None:
    async with client_of(ScriptedMachines(), api_key="secret") as client:
        page = await client.get("/dashboard")
        script = await client.get("/dashboard/static/app.js")
        assert (page.status_code, script.status_code) == (200, 200)
        assert page.headers["content-type"].startswith("text/html")
        assert script.headers["content-type"].startswith("text/javascript")
        for method, path in (
            ("GET", "/dashboard/events"),
            ("GET", "/dashboard/plan"),
            ("GET", "/dashboard/static/../events"),
            ("POST", "/dashboard"),
            ("POST", "/dashboard/static/app.js"),
            ("POST", "/dashboard/join"),
            ("POST", "/dashboard/nodes/laptop/drain"),
        ):
            assert (await client.request(method, path, json={})).status_code == 401, path
        key = {"authorization": "Bearer secret"}
        assert (await client.post("/dashboard/join", json={}, headers=key)).status_code == 200


async def test_the_page_may_load_nothing_from_elsewhere_and_run_nothing_inline() -> None:
    async with client_of(ScriptedMachines()) as client:
        policy = (await client.get("/dashboard")).headers["content-security-policy"]
        text = (await client.get("/dashboard")).text
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "://" not in text
    assert "style=" not in text
    assert "onclick" not in text


async def test_every_module_that_a_file_asks_for_is_served() -> None:
    async with client_of(ScriptedMachines()) as client:
        pending, seen = ["/dashboard"], set()
        while pending:
            path = pending.pop()
            if path in seen:
                continue
            seen.add(path)
            answer = await client.get(path)
            assert answer.status_code == 200, path
            pending += [part.split('"')[0] for part in answer.text.split('"/dashboard/static/')[1:]]
            pending = [f"/dashboard/static/{it}" if "/" not in it else it for it in pending]
    assert len(seen) > 15


async def test_without_machines_there_is_no_dashboard() -> None:
    async with client_of(None) as client:
        assert (await client.get("/dashboard")).status_code == 404
        assert (await client.get("/dashboard/events")).status_code == 404


@pytest.mark.parametrize(
    "headers",
    [{"origin": "http://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}],
)
async def test_pages_of_other_sites_can_ask_for_nothing(headers: dict[str, str]) -> None:
    machines = ScriptedMachines()
    async with client_of(machines) as client:
        answers = [
            await client.post("/dashboard/nodes/laptop/remove", json={}, headers=headers),
            await client.get("/dashboard/events", headers=headers),
        ]
        plain = await client.post("/dashboard/nodes/laptop/remove", content="{}")
    assert [it.status_code for it in answers] == [403, 403]
    assert plain.status_code == 415
    assert machines.asked == []


async def test_buttons_reach_the_network() -> None:
    machines = ScriptedMachines()
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    async with client_of(machines) as client:
        joined = await client.post("/dashboard/join", json={}, headers=own)
        drained = await client.post("/dashboard/nodes/laptop/drain", json={}, headers=own)
        removed = await client.post("/dashboard/nodes/pi-5/remove", json={}, headers=own)
        unknown = await client.post("/dashboard/nodes/nobody/drain", json={}, headers=own)
    assert joined.json() == {"line": JOIN_LINE}
    assert (drained.status_code, removed.status_code, unknown.status_code) == (200, 200, 503)
    assert machines.asked == [("drain", "laptop"), ("remove", "pi-5")]


async def test_a_plan_is_asked_for_changed_and_answered() -> None:
    async with client_of(ScriptedMachines()) as client:
        question = (await client.get("/dashboard/plan")).json()
        now = (await client.post("/dashboard/plan", json=question)).json()
        question["machines"] = question["machines"][:1]
        less = (await client.post("/dashboard/plan", json=question)).json()
        bad = await client.post("/dashboard/plan", json=question | {"sessions": 0})
    assert now["problem"] == ""
    assert now["tokens_per_second"] > 0
    assert less["stages"] == []
    assert "more like attic-pc" in less["problem"]
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "sessions")


async def test_one_look_serves_all_viewers_and_none_is_taken_before_the_first() -> None:
    machines = ScriptedMachines()
    async with watching(machines) as watched:
        assert machines.looks == 0
        streams = [watched.frames() for _ in range(5)]
        frames = await asyncio.gather(*(anext(stream) for stream in streams))
        assert machines.looks == 1
        assert len(set(frames)) == 1
        assert len(payload(frames[0])["history"]) == 1
        for stream in streams:
            await stream.aclose()


async def test_viewers_are_bounded_and_a_place_is_given_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(viewers, "MAX_VIEWERS", 0)
    async with client_of(ScriptedMachines()) as client:
        assert (await client.get("/dashboard/events")).status_code == 429
    monkeypatch.setattr(viewers, "MAX_VIEWERS", 1)
    async with watching(ScriptedMachines()) as watched:
        for _ in range(3):
            stream = watched.frames()
            assert payload(await anext(stream))["network"]["total_layers"] == 32
            await stream.aclose()


async def test_a_network_that_nobody_watches_is_left_alone_until_somebody_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(viewers, "UNWATCHED_SECONDS", 0.01)
    monkeypatch.setattr(viewers, "WATCHED_SECONDS", 0.01)
    monkeypatch.setattr(viewers, "FORGOTTEN_SECONDS", 0.05)
    machines = ScriptedMachines()
    async with watching(machines) as watched, asyncio.timeout(5):
        stream = watched.frames()
        await anext(stream)
        await stream.aclose()
        looks = -1
        while looks != machines.looks:
            looks = machines.looks
            await asyncio.sleep(0.1)
        stream = watched.frames()
        await anext(stream)
        while machines.looks < looks + 3:
            await anext(stream)
        await stream.aclose()


async def test_events_go_on_through_a_networks_trouble_and_end_with_the_gateway(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(viewers, "WATCHED_SECONDS", 0.01)
    machines, stopping = ScriptedMachines(), asyncio.Event()
    stream = Viewers(machines, Flights(), stopping).frames()
    async with asyncio.timeout(2):
        await anext(stream)
        machines.trouble = NodeUnreachableError("the tracker is away")
        while payload(await anext(stream))["problem"] != "the tracker is away":
            pass
        machines.trouble = None
        while payload(await anext(stream))["network"] is None:
            pass
        stopping.set()
        async for _ in stream:
            pass


async def test_a_request_is_seen_under_way_and_afterwards() -> None:
    model = ScriptedModel(Script("abcdef", delay_seconds=0.02))
    machines = ScriptedMachines()
    app = create_app([model], GatewayConfig(), machines=machines)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answer = (await client.post("/v1/chat/completions", json=CHAT)).json()
        watching = asyncio.create_task(client.get("/dashboard/events"))
        await until(lambda: machines.looks > 0, 5.0)
        app.state.stopping.set()
        events = (await watching).text
    (request,) = payload(events.split("\n\n")[0].encode())["requests"]
    assert request["id"] == answer["id"]
    assert (request["state"], request["end"], request["completion_tokens"]) == ("done", "stop", 6)
    assert request["first_token_seconds"] > 0
