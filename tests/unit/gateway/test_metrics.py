"""What the gateway counts, told as Prometheus reads it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import httpx
import pytest
from fastapi import FastAPI
from prometheus_client.parser import text_string_to_metric_families
from starlette.types import Message, Receive, Scope, Send

from meshnet.domain.errors import NodeLostError, ResourceExhaustedError
from meshnet.domain.generation import FinishReason
from meshnet.domain.metrics import Metric, MetricKind, Sample
from meshnet.domain.tracing import NO_TRACER
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.exposition import metrics_app, render
from meshnet.gateway.fair import QueueBounds
from meshnet.gateway.metrics import (
    CACHED_TOKENS,
    GATEWAY_METRICS,
    PROMPT_TOKENS,
    GatewayFigures,
)
from meshnet.gateway.observer import Observer
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from tests.support.live_gateway import until
from tests.support.scripted_model import Script, ScriptedModel

BODY = {"model": "scripted", "prompt": "hello", "max_tokens": 3}
GAUGE = Metric("meshnet_node_up", MetricKind.GAUGE, ("node",), "Whether it serves.")


def client(app: FastAPI) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app)
    return httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1")


def values(text: str) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels in the order of their names."""
    return {
        (sample.name, *(sample.labels[name] for name in sorted(sample.labels))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scraped(http: httpx.AsyncClient) -> dict[tuple[str, ...], float]:
    answer = await http.get("/metrics")
    assert answer.status_code == 200
    return values(answer.text)


async def test_an_answer_counts_its_request_tokens_and_pace():
    async with client(create_app([ScriptedModel(Script("abcdef"))], GatewayConfig())) as http:
        for stream in (False, True):
            await http.post("/v1/completions", json=BODY | {"stream": stream})
        found = await scraped(http)
    assert found["meshnet_gateway_requests_total", "/v1/completions", "200"] == 2
    assert found["meshnet_gateway_request_seconds_count", "/v1/completions"] == 2
    assert found["meshnet_gateway_generations_total", "length", "scripted"] == 2
    assert found["meshnet_gateway_prompt_tokens_total", "scripted"] == 2 * len("hello")
    assert found["meshnet_gateway_completion_tokens_total", "scripted"] == 6
    assert found["meshnet_gateway_time_to_first_token_seconds_count", "scripted"] == 2
    assert found["meshnet_gateway_token_gap_seconds_count", "scripted"] == 4
    assert found["meshnet_gateway_requests_in_flight",] == 1, "the scrape itself"


async def test_a_full_node_counts_as_429_and_as_its_code():
    full = ScriptedModel(Script("abc", error=ResourceExhaustedError("full"), error_at=0))
    async with client(create_app([full], GatewayConfig(queue=QueueBounds(0)))) as http:
        assert (await http.post("/v1/completions", json=BODY)).status_code == 429
        found = await scraped(http)
    assert found["meshnet_gateway_requests_total", "/v1/completions", "429"] == 1
    assert found["meshnet_gateway_generations_total", "resource_exhausted", "scripted"] == 1


async def test_paths_that_are_not_offered_share_one_label():
    async with client(create_app([ScriptedModel()], GatewayConfig())) as http:
        for path in ("/nope", "/v1/other", "/metrics/x"):
            await http.get(path)
        await http.get("/v1/models/scripted")
        found = await scraped(http)
    assert found["meshnet_gateway_requests_total", "other", "404"] == 3
    assert found["meshnet_gateway_requests_total", "/v1/models/{name:path}", "200"] == 1


async def test_the_metrics_are_behind_the_key():
    app = create_app([ScriptedModel()], GatewayConfig(api_key="secret"))
    async with client(app) as http:
        assert (await http.get("/metrics")).status_code == 401
        allowed = await http.get("/metrics", headers={"authorization": "Bearer secret"})
    assert allowed.status_code == 200


async def test_nodes_of_this_process_are_told_with_the_gateway_s_own():
    async def nodes():
        return [Sample(GAUGE, ("node-1",), 1), Sample(GAUGE, ("node-2",), 0)]

    app = create_app([ScriptedModel()], GatewayConfig(), GatewayFigures(nodes))
    async with client(app) as http:
        found = await scraped(http)
    assert (found["meshnet_node_up", "node-1"], found["meshnet_node_up", "node-2"]) == (1, 0)


@pytest.mark.parametrize(
    ("error", "end"),
    [(NodeLostError("gone"), "node_lost"), (ValueError("a fault"), "internal")],
)
async def test_a_generation_that_fails_counts_by_its_error(error, end):
    figures = GatewayFigures()
    model = ScriptedModel(Script("abc", error=error, error_at=1))
    with pytest.raises(type(error)):
        async for _ in figures.watched("m", model.generate(TextRequest((1,)))):
            pass
    ends = {sample.labels: sample.value for sample in await figures.read() if end in sample.labels}
    assert ends == {("m", end): 1}


async def test_prompt_tokens_that_needed_no_computing_are_counted_apart():
    async def generation() -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        yield GenerationSummary(FinishReason.STOP, 20, 3, 0.1, 0.2, cached_tokens=16)

    figures = GatewayFigures()
    async for _ in figures.watched("m", generation()):
        pass
    counted = {sample.metric: sample.value for sample in await figures.read()}
    assert (counted[PROMPT_TOKENS], counted[CACHED_TOKENS]) == (20, 16)


async def test_a_generation_whose_reader_leaves_is_closed_and_counts_as_left():
    figures = GatewayFigures()
    model = ScriptedModel(Script("abc"))
    async with aclosing(figures.watched("m", model.generate(TextRequest((1,))))) as events:
        assert isinstance(await anext(events), TextDelta)
    assert model.running == 0
    assert ("m", "left") in {sample.labels for sample in await figures.read()}


async def test_every_metric_is_told_once_it_was_counted():
    async with client(create_app([ScriptedModel(Script("ab"))], GatewayConfig())) as http:
        await http.post("/v1/completions", json=BODY)
        answer = await http.get("/metrics")
    told = {family.name for family in text_string_to_metric_families(answer.text)}
    assert told == {metric.name.removesuffix("_total") for metric in GATEWAY_METRICS}


def test_both_formats_are_given_to_who_asks_for_them():
    samples = [Sample(GAUGE, ("node-1",), 1)]
    plain, plain_type = render(samples, "text/plain")
    modern, modern_type = render(samples, "application/openmetrics-text; version=1.0.0")
    assert plain_type.startswith("text/plain")
    assert modern_type.startswith("application/openmetrics-text")
    assert modern.endswith(b"# EOF\n")
    assert b'meshnet_node_up{node="node-1"} 1.0' in plain


async def test_a_node_s_own_page_has_metrics_alone_and_refuses_foreign_names():
    async def collect():
        return [Sample(GAUGE, ("node-1",), 1)]

    async with client(metrics_app(collect, "127.0.0.1")) as http:
        assert values((await http.get("/metrics")).text) == {("meshnet_node_up", "node-1"): 1}
        assert (await http.get("/v1/models")).status_code == 404
        foreign = await http.get("/metrics", headers={"host": "evil.example"})
    assert foreign.status_code == 403


async def test_requests_that_run_are_in_flight():
    model = ScriptedModel(Script("abc", delay_seconds=5.0))
    figures = GatewayFigures()
    async with client(create_app([model], GatewayConfig(), figures)) as http:
        asking = asyncio.create_task(http.post("/v1/completions", json=BODY))
        await until(lambda: model.running == 1)
        assert figures.in_flight == 1
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
    assert figures.in_flight == 0


async def test_who_has_the_whole_answer_finds_it_counted():
    figures = GatewayFigures()
    noted = asyncio.Event()

    async def app(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a", "more_body": True})
        assert figures.in_flight == 1
        await send({"type": "http.response.body", "body": b"b"})
        # Writing down what was used, which nobody waits for.
        await noted.wait()

    counted: list[int] = []

    async def last(message: Message) -> None:
        if message.get("body") == b"b":
            counted.append(figures.in_flight)

    async def nothing() -> Message:
        return {"type": "http.disconnect"}

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    serving = asyncio.create_task(Observer(app, (), figures, NO_TRACER)(scope, nothing, last))
    await until(lambda: bool(counted))
    own = {(each.metric.name, *each.labels): each.value for each in await figures.read()}
    noted.set()
    await serving
    assert counted == [0]
    assert own["meshnet_gateway_requests_total", "other", "200"] == 1
    assert figures.in_flight == 0
