"""Whatever way a client leaves, its generation ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from meshnet.gateway import server
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


@pytest.mark.slow
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


async def test_a_head_that_does_not_come_to_its_end_closes_the_connection(monkeypatch) -> None:
    monkeypatch.setattr(server._Protocol, "first_request_seconds", 0.2)
    async with connection(ScriptedModel()) as (reader, writer):
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        async with asyncio.timeout(2):
            assert await reader.read() == b""


async def test_a_body_that_trickles_is_answered_and_its_connection_closed() -> None:
    config = GatewayConfig(client_timeout_seconds=0.3)
    async with connection(ScriptedModel(), config) as (reader, writer):
        head, _, body = post().partition(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")

        async def trickle() -> None:
            for byte in body:
                writer.write(bytes([byte]))
                await asyncio.sleep(0.02)

        trickling = asyncio.create_task(trickle())
        async with asyncio.timeout(2):
            assert (await reader.readline()).startswith(b"HTTP/1.1 408")
        trickling.cancel()


async def test_a_body_in_pieces_without_a_length_is_read() -> None:
    async with connection(ScriptedModel(Script("Hello"))) as (reader, writer):
        head, _, body = post().partition(b"\r\n\r\n")
        lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
        pieces = b"".join(b"1\r\n" + bytes([byte]) + b"\r\n" for byte in body)
        writer.write(b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", pieces]))
        writer.write(b"0\r\n\r\n")
        async with asyncio.timeout(2):
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")


async def test_requests_that_come_in_one_piece_are_answered_in_their_order() -> None:
    model = ScriptedModel(lambda request: Script(bytes(request.prompt).decode().upper()))
    async with connection(model) as (reader, writer):
        writer.write(b"".join(post(prompt=f"q{number}") for number in range(3)))
        async with asyncio.timeout(5):
            for number in range(3):
                head = await reader.readuntil(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 200")
                length = int(head.lower().partition(b"content-length: ")[2].split()[0])
                answer = json.loads(await reader.readexactly(length))
                assert answer["choices"][0]["text"] == f"Q{number}"
