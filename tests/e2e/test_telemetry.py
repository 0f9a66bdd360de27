"""Metrics that are scraped and traces that are sent, by the command and its node processes."""

import asyncio
import json
import re
import socket

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from bench.collector import collector
from meshnet.gateway.metrics import GATEWAY_METRICS
from meshnet.node.metrics import ERRORS, NODE_METRICS
from tests.support.commands import command, meshnet

pytestmark = pytest.mark.slow

GREEDY = ("--temperature", "0", "--raw", "--max-tokens", "6")
ASK = {"model": "tiny", "prompt": "hello", "max_tokens": 6, "temperature": 0}
TRACE = "0af7651916cd43dd8448eb211c80319c"
HEADER = f"00-{TRACE}-b7ad6b7169203331-01"
WAIT_SECONDS = 15.0
DIED = 'meshnet_node_worker_deaths_total{node="node-2"} 1.0'


def up(text: str) -> dict[str, float]:
    """Whether each node is up, by its name."""
    return {
        sample.labels["node"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "meshnet_node_up"
    }


def back(text: str) -> bool:
    """Whether the second node died once and every node is up."""
    return DIED in text and all(up(text).values())


async def test_a_server_s_page_has_its_own_figures_and_its_nodes_dead_ones_too(tiny, env):
    options = ("--port", "0", "--nodes", "2", "--ctx", "256")
    async with command("serve", tiny, *options, env=env) as started:
        url = re.search(r"http://[\d.:]+", await started.read_line())
        assert url is not None
        async with httpx.AsyncClient(base_url=url[0], timeout=20) as client:
            assert (await client.post("/v1/completions", json=ASK)).status_code == 200
            text = (await client.get("/metrics")).text
            names = {family.name for family in text_string_to_metric_families(text)}
            every = {each.name.removesuffix("_total") for each in NODE_METRICS + GATEWAY_METRICS}
            assert every - names == {ERRORS.name.removesuffix("_total")}, "there were no errors"
            assert up(text) == {"node-1": 1, "node-2": 1}

            silent = await started.worker_of("node-2")
            silent.suspend()
            assert up((await client.get("/metrics")).text) == {"node-1": 1, "node-2": 0}
            silent.resume()
            assert up((await client.get("/metrics")).text) == {"node-1": 1, "node-2": 1}

            silent.kill()
            async with asyncio.timeout(WAIT_SECONDS):
                while not back(text := (await client.get("/metrics")).text):  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
            assert up(text) == {"node-1": 1, "node-2": 1}


async def test_a_node_offers_its_metrics_where_it_was_told_to(tiny, env):
    options = ("--listen", "127.0.0.1:0", "--ctx", "256", "--metrics", "127.0.0.1:0", "--json")
    async with command("node", "-m", tiny, "-l", "0:6", *options, env=env) as started:
        event = json.loads(await started.read_line())
        asked = await meshnet("run", tiny, "hi", *GREEDY, "--chain", event["address"], env=env)
        assert asked.status == 0, asked.err
        async with httpx.AsyncClient(timeout=20) as client:
            text = (await client.get(event["metrics"])).text
    steps = re.search(r'step_rows_count\{node="node-1",phase="decode"\} (\S+)', text)
    assert steps is not None
    assert float(steps[1]) == 5


async def test_a_metrics_port_that_is_taken_is_known_before_the_model_is_cut(tiny, env):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = await meshnet("node", "-m", tiny, "-l", "0:6", "--metrics", port, env=env)
    assert ended.status == 2
    assert "choose another" in ended.said


async def test_a_run_s_spans_come_from_all_its_processes_as_one_trace(tiny, env):
    with collector() as kept:
        ended = await meshnet(
            "run", tiny, "hi", *GREEDY, "--nodes", "2", "--otlp", kept.url, env=env
        )
    assert (ended.status, ended.err) == (0, "")
    assert len({span.trace_id for span in kept.spans}) == 1
    (session,) = kept.named("meshnet.session")
    assert (session.service, session.parent_id) == ("meshnet-run", "")
    shards = kept.named("meshnet.shard")
    assert {shard.instance for shard in shards} == {"node-1", "node-2"}
    assert {shard.parent_id for shard in shards} == {session.span_id}
    for name in ("meshnet.prefill", "meshnet.decode"):
        assert {span.parent_id for span in kept.named(name)} == {each.span_id for each in shards}


async def test_a_request_s_trace_is_continued_where_the_environment_says_so(tiny, env):
    with collector() as kept:
        variable = {"OTEL_EXPORTER_OTLP_ENDPOINT": kept.url}
        options = ("--port", "0", "--nodes", "2", "--ctx", "256")
        async with command("serve", tiny, *options, env=env | variable) as started:
            url = re.search(r"http://[\d.:]+", await started.read_line())
            assert url is not None
            async with httpx.AsyncClient(base_url=url[0], timeout=20) as client:
                await client.post("/v1/completions", json=ASK, headers={"traceparent": HEADER})
            async with asyncio.timeout(WAIT_SECONDS):
                while len(kept.spans) < 8:  # noqa: ASYNC110 - spans come when they come
                    await asyncio.sleep(0.05)
    assert {span.trace_id for span in kept.spans} == {TRACE}
    (request,) = kept.named("POST /v1/completions")
    assert (request.service, request.parent_id) == ("meshnet-gateway", "b7ad6b7169203331")


async def test_a_collector_that_is_not_there_costs_nothing_but_the_spans(tiny, env):
    ended = await meshnet(
        *("run", tiny, "hi", *GREEDY, "--nodes", "2", "--otlp", "http://127.0.0.1:9"), env=env
    )
    assert ended.status == 0
    assert "Traceback" not in ended.err


async def test_what_is_no_url_is_refused(tiny, env):
    ended = await meshnet("run", tiny, "hi", "--otlp", "127.0.0.1:4318", env=env)
    assert ended.status == 2
    assert ended.said.startswith("error: otlp: ")
