"""Timings in an answer, for who asks with the header."""

import json

import httpx
import pytest

from meshnet.domain.generation import FinishReason
from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import HopTimings
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.timings import HEADER, timings_object
from meshnet.session.service import GenerationSummary
from tests.support.scripted_model import Script, ScriptedModel

BODY = {"model": "scripted", "prompt": "hello", "max_tokens": 3}


async def answer(stream: bool, headers: dict[str, str]) -> list[dict[str, object]]:
    app = create_app([ScriptedModel(Script("abcdef"))], GatewayConfig())
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        answered = await http.post(
            "/v1/completions", json=BODY | {"stream": stream}, headers=headers
        )
    if not stream:
        return [answered.json()]
    events = [line.removeprefix("data: ") for line in answered.text.splitlines() if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_last_object_alone_has_timings_where_they_are_asked_for(stream):
    *chunks, last = await answer(stream, {HEADER: "1"})
    assert last["meshnet_timings"] == {
        "first_token_ms": 0.0,
        "total_ms": 0.0,
        "pauses_ms": [],
        "hops": [],
    }
    assert not any("meshnet_timings" in chunk for chunk in chunks)


@pytest.mark.parametrize("headers", [{}, {HEADER: "0"}, {HEADER: "False"}])
@pytest.mark.parametrize("stream", [False, True])
async def test_nobody_else_gets_a_member_that_openai_does_not_have(stream, headers):
    assert not any("meshnet_timings" in each for each in await answer(stream, headers))


def test_every_hop_is_told_with_units_in_its_names():
    hop = HopTimings(NodeId("node-1"), LayerRange(0, 4), 20, 3_000_000, 10, 50_000_000)
    summary = GenerationSummary(FinishReason.LENGTH, 20, 11, 0.25, 0.5, timings=(hop,))
    told = timings_object(summary)["meshnet_timings"]
    assert isinstance(told, dict)
    assert (told["first_token_ms"], told["total_ms"]) == (250.0, 500.0)
    (only,) = told["hops"]
    assert (only["node"], only["layers"], only["decode_steps"]) == ("node-1", "[0, 4)", 10)
    assert (only["prefill_engine_ms"], only["engine_ms_per_token"]) == (3.0, 5.0)
