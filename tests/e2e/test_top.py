"""``meshnet top`` against a gateway: as text, as JSON, and what it says when there is none."""

import asyncio
import json

import pytest

from meshnet.gateway.config import GatewayConfig
from tests.support.commands import meshnet, require_clean
from tests.support.live_gateway import live_gateway
from tests.support.scripted_machines import ScriptedMachines
from tests.support.scripted_model import ScriptedModel

pytestmark = pytest.mark.slow


async def test_a_pipe_gets_the_state_of_now_and_the_end(env):
    async with live_gateway(ScriptedModel(), machines=ScriptedMachines()) as url:
        text = await meshnet("top", url, env=env)
        told = await meshnet("top", url, "--json", env=env)
    assert (text.status, told.status) == (0, 0)
    rows = [line.split("\t") for line in text.out.splitlines()]
    assert rows[0] == ["scripted \u00b7 32 layers \u00b7 0.0 tokens/s \u00b7 0 in flight"]
    assert [row[0] for row in rows[2:]] == ["attic-pc", "laptop", "mac-mini", "pi-5"]
    state = json.loads(told.out)
    assert state["network"]["total_layers"] == 32
    assert "history" not in state


async def test_the_key_is_sent_and_missed(env):
    config = GatewayConfig(api_key="right")
    async with live_gateway(ScriptedModel(), config=config, machines=ScriptedMachines()) as url:
        let_in = await meshnet("top", url, env=env | {"MESHNET_API_KEY": "right"})
        refused = await meshnet("top", url, "--api-key", "wrong", env=env)
    assert let_in.status == 0
    assert refused.status == 2
    assert "operator's key" in refused.said
    require_clean(refused)


async def test_a_wrong_address_is_told_in_one_line(env):
    async with live_gateway(ScriptedModel()) as url:
        no_dashboard = await meshnet("top", url, env=env)
    gone = await meshnet("top", url, env=env)
    no_url = await meshnet("top", "somewhere", env=env)
    assert (no_dashboard.status, gone.status, no_url.status) == (2, 1, 2)
    assert "has no dashboard" in no_dashboard.said
    assert f"can't reach a gateway at {url}" in gone.said
    assert no_url.said.startswith("error: url: 'somewhere'")
    for ended in (no_dashboard, gone, no_url):
        require_clean(ended)


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [("", 1, "ended without telling a state"), ("data: hello\n\n", 2, "is no gateway")],
)
async def test_another_server_is_told_from_a_gateway(env, body, status, problem):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{body}".encode())
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        ended = await meshnet("top", f"http://{host}:{port}", env=env)
    assert ended.status == status
    assert problem in ended.said
    require_clean(ended)
