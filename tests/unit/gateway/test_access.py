"""Many keys at one gateway: who comes in, what each may use, and what is written down."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from meshnet.domain.errors import InvalidArgumentError, NodeLostError, NodeNotReadyError
from meshnet.gateway import access as access_module
from meshnet.gateway.access import ANONYMOUS, Access
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.tracker.apikeys import ApiKey, KeyLimits, digest_of, fixed_key
from meshnet.tracker.usage import UsageRecord
from tests.support.live_gateway import until
from tests.support.scripted_model import Script, ScriptedModel

ASK = {"model": "scripted", "prompt": "hello", "max_tokens": 3}


def key(name: str, *, disabled: bool = False, operator: bool = False, **limits: int) -> ApiKey:
    bounds = KeyLimits(**limits)
    return ApiKey(f"key-{name}", name, digest_of(f"sk-{name}"), 0, disabled, operator, bounds)


class Kept:
    """Keys and usage in memory."""

    def __init__(self, *keys: ApiKey, spent: Sequence[tuple[str, float, int]] = ()) -> None:
        self.keys = keys
        self.records: list[UsageRecord] = []
        self.broken = False
        self._spent = tuple(spent)

    def all(self) -> tuple[ApiKey, ...]:
        if self.broken:
            raise NodeNotReadyError("the database is away")
        return self.keys

    def append(self, record: UsageRecord) -> None:
        if self.broken:
            raise NodeNotReadyError("the database is away")
        self.records.append(record)

    def spent(self, since_unix: float) -> Sequence[tuple[str, float, int]]:
        return [each for each in self._spent if each[1] >= since_unix]


@pytest.fixture(autouse=True)
def always_read_again(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(access_module, "FRESH_SECONDS", 0.0)
    yield


@asynccontextmanager
async def client(
    kept: Kept, model: ScriptedModel | None = None, **config: Any
) -> AsyncIterator[httpx.AsyncClient]:
    allowed = Access([fixed_key("main", "api-key")], kept, kept, required=True)
    app = create_app([model or ScriptedModel()], GatewayConfig(**config), access=allowed)
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as opened:
        yield opened


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer sk-{name}"}


async def ask(http: httpx.AsyncClient, name: str, **more: Any) -> httpx.Response:
    return await http.post("/v1/completions", json=ASK | more, headers=by(name))


def code(response: httpx.Response) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


async def test_each_key_opens_until_it_is_disabled() -> None:
    kept = Kept(key("a"), key("b", disabled=True))
    async with client(kept) as http:
        assert (await ask(http, "a")).status_code == 200
        assert code(await ask(http, "b")) == (401, "invalid_api_key")
        assert code(await ask(http, "c")) == (401, "invalid_api_key")
        assert code(await http.post("/v1/completions", json=ASK)) == (401, "invalid_api_key")
        kept.keys = (key("a", disabled=True), key("c"))
        assert code(await ask(http, "a")) == (401, "invalid_api_key")
        assert (await ask(http, "c")).status_code == 200
        own = await http.get("/v1/models", headers={"authorization": "Bearer main"})
    assert own.status_code == 200


async def test_where_no_key_is_needed_a_key_still_names_its_user() -> None:
    kept = Kept(key("a"))
    access = Access((), kept, kept, open_access=True)
    app = create_app([ScriptedModel()], GatewayConfig(), access=access)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        for headers in ({}, by("a")):
            asked = await http.post("/v1/completions", json=ASK, headers=headers)
            assert asked.status_code == 200
        assert code(await ask(http, "unknown")) == (401, "invalid_api_key")
        kept.keys = (key("a", disabled=True),)
        assert code(await ask(http, "a")) == (401, "invalid_api_key")
    assert [each.key_id for each in kept.records] == ["anonymous", "key-a"]


async def test_the_first_key_that_is_made_closes_a_gateway_that_runs() -> None:
    kept = Kept()
    access = Access((), kept, kept)
    # Clients that can't leave their key out send any.
    assert await access.caller("") is ANONYMOUS
    assert await access.caller("Bearer unused") is ANONYMOUS
    kept.keys = (key("a"),)
    assert await access.caller("Bearer sk-a") == key("a")
    for disabled in (False, True):
        kept.keys = (key("a", disabled=disabled),)
        for authorization in ("", "Basic YTpi", "Bearer", "Bearer unused"):
            assert await access.caller(authorization) is None
    assert await access.caller("Bearer sk-a") is None


async def test_the_one_key_opens_also_while_the_others_cant_be_read() -> None:
    kept = Kept(key("a"))
    kept.broken = True
    async with client(kept) as http:
        own = await http.get("/v1/models", headers={"authorization": "Bearer main"})
        assert own.status_code == 200
        assert code(await ask(http, "a")) == (503, "node_not_ready")


async def test_keys_that_cant_be_read_are_no_reason_to_let_anybody_in() -> None:
    kept = Kept()
    access = Access((), kept, kept)
    assert await access.caller("") is ANONYMOUS
    kept.broken = True
    for authorization in ("", "Bearer sk-a"):
        with pytest.raises(NodeNotReadyError):
            await access.caller(authorization)


async def test_requests_a_minute_are_counted_key_by_key() -> None:
    kept = Kept(key("a", requests_per_minute=2), key("b"))
    async with client(kept) as http:
        first, second, third = [await ask(http, "a") for _ in range(3)]
        other = await ask(http, "b")
        read = await http.get("/v1/models", headers=by("a"))
    assert (first.status_code, second.status_code) == (200, 200)
    assert code(third) == (429, "rate_limit_exceeded")
    assert third.json()["error"]["type"] == "rate_limit_error"
    assert 28 <= int(third.headers["retry-after"]) <= 30
    assert third.headers["x-should-retry"] == "true"
    assert first.headers["x-ratelimit-limit-requests"] == "2"
    assert first.headers["x-ratelimit-remaining-requests"] == "1"
    assert third.headers["x-ratelimit-remaining-requests"] == "0"
    assert third.headers["x-request-id"].startswith("req-")
    assert (other.status_code, read.status_code) == (200, 200)
    assert not [name for name in other.headers if name.startswith("x-ratelimit")]


async def test_a_day_s_tokens_are_prompt_and_answer_and_end_with_openais_code() -> None:
    kept = Kept(key("a", tokens_per_day=8))
    async with client(kept) as http:
        assert (await ask(http, "a")).headers["x-ratelimit-remaining-tokens"] == "8"
        full = await ask(http, "a")
    assert code(full) == (429, "insufficient_quota")
    assert full.json()["error"]["type"] == "insufficient_quota"
    assert full.headers["x-should-retry"] == "false"
    assert full.headers["x-ratelimit-remaining-tokens"] == "0"
    assert int(full.headers["retry-after"]) > 80_000


async def test_tokens_used_before_the_gateway_began_count() -> None:
    kept = Kept(key("a", tokens_per_day=8), spent=[("key-a", time.time() - 100, 8)])
    async with client(kept) as http:
        assert code(await ask(http, "a")) == (429, "insufficient_quota")


async def test_requests_at_once_are_counted_until_they_end() -> None:
    kept = Kept(key("a", concurrent_requests=1))
    model = ScriptedModel(Script("abc", delay_seconds=0.05))
    async with client(kept, model) as http:
        running = asyncio.create_task(ask(http, "a"))
        await until(lambda: model.running == 1)
        assert code(await ask(http, "a")) == (429, "rate_limit_exceeded")
        assert (await running).status_code == 200
        assert (await ask(http, "a")).status_code == 200


async def test_a_request_is_ended_by_its_own_key_or_an_operators() -> None:
    kept = Kept(key("a"), key("b"), key("boss", operator=True))
    model = ScriptedModel(Script("abc" * 50, delay_seconds=0.05))
    async with client(kept, model) as http:
        for name, ended in (("b", False), ("a", True), ("boss", True)):
            headers = by("a") | {"x-request-id": "mine"}
            asking = http.post("/v1/completions", json=ASK | {"max_tokens": 50}, headers=headers)
            running = asyncio.create_task(asking)
            await until(lambda: model.running == 1)
            told = await http.delete("/v1/requests/mine", headers=by(name))
            assert told.status_code == (200 if ended else 404)
            if not ended:
                await http.delete("/v1/requests/mine", headers=by("a"))
            assert code(await running) == (499, "cancelled")


@pytest.mark.parametrize("path", ["/dashboard/events", "/dashboard/plan"])
async def test_the_dashboard_is_the_operators(path: str) -> None:
    kept = Kept(key("a"), key("boss", operator=True))
    async with client(kept) as http:
        assert code(await http.get(path, headers=by("a"))) == (403, "operator_key_needed")
        # Without machines to show there is no dashboard.
        assert (await http.get(path, headers=by("boss"))).status_code == 404


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_answer_used_is_written_down(stream: bool) -> None:
    kept = Kept(key("a"))
    async with client(kept) as http:
        headers = by("a") | {"x-request-id": "mine"}
        answer = await http.post(
            "/v1/completions", json=ASK | {"n": 2, "stream": stream}, headers=headers
        )
    (record,) = kept.records
    if not stream:
        told = answer.json()
        assert record.entry_id == told["id"]
        assert (record.prompt_tokens, record.completion_tokens) == (
            told["usage"]["prompt_tokens"],
            told["usage"]["completion_tokens"],
        )
    assert (record.request_id, record.key_id, record.model) == ("mine", "key-a", "scripted")
    assert (record.prompt_tokens, record.completion_tokens, record.end) == (5, 6, "done")
    # Two choices of 5 + 3 tokens, of which the last isn't computed, through three layers and one.
    assert record.token_layers == 2 * 7 * 4
    assert [(node.node_id, node.token_layers) for node in record.nodes] == [
        ("head", 42),
        ("tail", 14),
    ]


async def test_what_was_used_until_an_error_is_written_down_and_what_never_began_is_not() -> None:
    kept = Kept(key("a"))
    lost = ScriptedModel(Script("abcdef", error=NodeLostError("gone"), error_at=2))
    async with client(kept, lost) as http:
        assert (await ask(http, "a", max_tokens=6)).status_code == 502
        assert (await ask(http, "a", temperature=-1)).status_code == 400
    (record,) = kept.records
    assert (record.completion_tokens, record.end) == (2, "node_lost")


async def test_usage_that_cant_be_written_down_is_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    kept = Kept(key("a"))
    access = Access((), None, kept)
    kept.broken = True
    app = create_app([ScriptedModel()], GatewayConfig(), access=access)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        assert (await http.post("/v1/completions", json=ASK)).status_code == 200
    (line,) = [each.getMessage() for each in caplog.records if "not written" in each.getMessage()]
    assert "completion_tokens=3" in line


async def test_the_log_tells_which_session_a_request_is(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "meshnet.gateway")
    async with client(Kept(key("a"))) as http:
        await http.post("/v1/completions", json=ASK, headers=by("a") | {"x-request-id": "mine"})
    lines = [record.getMessage() for record in caplog.records]
    assert all(line.startswith("[mine] ") for line in lines)
    assert any("is session gen-scripted at head" in line for line in lines)
    assert any(line.endswith(" by a") for line in lines)


async def test_a_model_has_its_aliases_and_answers_by_its_own_name() -> None:
    models = [ScriptedModel(), ScriptedModel(name="other")]
    config = GatewayConfig(aliases=(("fast", "scripted"), ("gpt-4o", "scripted")))
    app = create_app(models, config)
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        listed = (await http.get("/v1/models")).json()["data"]
        shown = (await http.get("/v1/models/fast")).json()
        answer = (await http.post("/v1/completions", json=ASK | {"model": "gpt-4o"})).json()
        missing = await http.post("/v1/completions", json=ASK | {"model": "gpt-5"})
        healthy = (await http.get("/health")).json()["models"]
    assert [each["id"] for each in listed] == ["scripted", "other", "fast", "gpt-4o"]
    assert (shown["id"], answer["model"]) == ("fast", "scripted")
    assert code(missing) == (404, "model_not_found")
    assert [each["id"] for each in healthy] == ["scripted", "other"]


@pytest.mark.parametrize(
    "aliases", [(("a", "nothing"),), (("scripted", "scripted"),), (("a", "scripted"),) * 2]
)
def test_aliases_must_be_new_and_stand_for_a_model(aliases: tuple[tuple[str, str], ...]) -> None:
    config = dataclasses.replace(GatewayConfig(), aliases=aliases)
    with pytest.raises(InvalidArgumentError, match="alias"):
        create_app([ScriptedModel()], config)
