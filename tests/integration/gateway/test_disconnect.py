"""Whatever way a client leaves, its generation ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from meshnet.gateway.config import GatewayConfig
from tests.support.live_gateway import LOCAL, live_gateway, until
from tests.support.scripted_model import Script, ScriptedModel

SLOW = Script("x" * 1000, delay_seconds=0.05)
NEVER = Script(delay_seconds=60)


@asynccontextmanager
async def connection(
    model: ScriptedModel, config: GatewayConfig = LOCAL
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    async with live_gateway(model, config=config) as url:
        address = urlsplit(url)
        assert address.hostname is not None
        # A small window, so that a client that doesn't read is noticed after little data.
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await asyncio.get_running_loop().sock_connect(client, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=client, limit=4096)
        try:
            yield reader, writer
        finally:
            writer.close()
            await asyncio.wait_for(asyncio.gather(writer.wait_closed(), return_exceptions=True), 2)


def post(**parameters: object) -> bytes:
    body = json.dumps({"model": "scripted", "prompt": "x", "max_tokens": 10**6} | parameters)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return (head + body).encode()


@pytest.mark.parametrize("script", [SLOW, NEVER], ids=["between tokens", "before the first"])
@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
async def test_a_closed_connection_cancels_the_generation(script: Script, stream: bool) -> None:
    model = ScriptedModel(script)
    async with connection(model) as (_, writer):
        writer.write(post(stream=stream))
        await until(lambda: model.running == 1)
        writer.close()
        await until(lambda: model.running == 0)
        assert model.cancelled == model.requests


async def test_a_half_sent_body_starts_nothing() -> None:
    model = ScriptedModel()
    async with connection(model) as (_, writer):
        writer.write(post()[:-5])
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.close()
        await writer.wait_closed()
    assert model.requests == []


async def test_a_reader_that_takes_nothing_is_given_up() -> None:
    model = ScriptedModel(Script("x" * 50_000))
    async with connection(model, GatewayConfig(client_timeout_seconds=0.2)) as (_, writer):
        writer.write(post(stream=True, logprobs=20))
        await until(lambda: model.running == 1)
        await until(lambda: model.running == 0, seconds=10)
        assert model.cancelled == model.requests


async def test_a_second_request_follows_on_the_same_connection() -> None:
    model = ScriptedModel()
    async with connection(model) as (reader, writer):
        for _ in range(2):
            writer.write(post(stream=True))
            async with asyncio.timeout(2):
                answer = await reader.readuntil(b"data: [DONE]\n\n")
                await reader.readuntil(b"0\r\n\r\n")
            assert answer.startswith(b"HTTP/1.1 200")
    assert len(model.requests) == 2
    assert model.cancelled == []


async def test_a_body_over_the_limit_is_answered_while_the_client_still_sends() -> None:
    async with connection(ScriptedModel(), GatewayConfig(max_body_bytes=1000)) as (reader, writer):
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        writer.write(b"400\r\n" + b" " * 0x400 + b"\r\n")
        async with asyncio.timeout(2):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413")
