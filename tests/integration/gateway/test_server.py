"""Starting and stopping the server."""

import asyncio
import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.server import open_listener, serve, url_of
from tests.support.live_gateway import live_gateway, until
from tests.support.scripted_model import Script, ScriptedModel

ASK = {"model": "scripted", "prompt": "x"}


async def test_a_port_in_use_is_refused_before_anything_starts() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ready: list[str] = []
        with pytest.raises(InvalidArgumentError, match=f"127.0.0.1:{port}") as caught:
            await serve(
                create_app([ScriptedModel()], GatewayConfig()),
                "127.0.0.1",
                port,
                on_ready=ready.append,
                stop=asyncio.Event(),
            )
    assert caught.value.details["field"] == "port"
    assert ready == []


@pytest.mark.parametrize(
    ("host", "port", "field"),
    [("127.0.0.1", 65536, "port"), ("x" * 70, 0, "host"), ("192.0.2.1", 0, "host")],
)
def test_a_place_that_cant_be_listened_on_is_refused_by_name(
    host: str, port: int, field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        open_listener(host, port)
    assert caught.value.details["field"] == field


def test_the_url_names_the_port_that_was_found() -> None:
    with open_listener("localhost", 0) as listener:
        address = urlsplit(url_of(listener))
        assert address.hostname == "127.0.0.1"
        assert address.port == listener.getsockname()[1] != 0


async def stop_during(
    script: Script, *, stream: bool
) -> tuple[ScriptedModel, list[str], int, float]:
    """Ask, stop the server in mid-answer; the model, the lines, the status, seconds it took."""
    model = ScriptedModel(script)
    stop, ready = asyncio.Event(), asyncio.Queue[str]()
    app = create_app([model], GatewayConfig())
    serving = asyncio.create_task(serve(app, "127.0.0.1", 0, on_ready=ready.put_nowait, stop=stop))
    lines: list[str] = []

    async def ask(url: str) -> int:
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", f"{url}/v1/completions", json=ASK | {"stream": stream}) as got,
        ):
            lines.extend([line async for line in got.aiter_lines()])
            return got.status_code

    async with asyncio.timeout(5):
        asking = asyncio.create_task(ask(await ready.get()))
        await until(lambda: model.running == 1)
        began = time.monotonic()
        stop.set()
        await serving
        seconds = time.monotonic() - began
        (status,) = await asyncio.gather(asking, return_exceptions=True)
    return model, lines, status if isinstance(status, int) else 0, seconds


async def test_a_stop_ends_an_open_stream_with_an_error_event_within_a_second() -> None:
    model, lines, status, seconds = await stop_during(
        Script("x" * 1000, delay_seconds=0.02), stream=True
    )
    assert seconds < 1.0
    assert status == 200
    assert '"code":"node_not_ready"' in [line for line in lines if line][-1]
    assert (model.running, model.cancelled) == (0, model.requests)


async def test_a_stop_ends_a_whole_answer_with_503() -> None:
    model, lines, status, seconds = await stop_during(Script(delay_seconds=60), stream=False)
    assert (status, seconds < 1.0) == (503, True)
    assert "stopping" in "".join(lines)
    assert (model.running, model.cancelled) == (0, model.requests)


async def test_a_stop_lets_an_answer_end_that_is_nearly_there() -> None:
    model, lines, _, seconds = await stop_during(Script("abc", delay_seconds=0.03), stream=True)
    assert [line for line in lines if line][-1] == "data: [DONE]"
    assert seconds < 1.0
    assert model.cancelled == []


@pytest.mark.parametrize("stream", [True, False])
async def test_a_generation_that_wont_end_doesnt_hold_up_the_stop(
    stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    script = Script("x" * 1000, delay_seconds=0.02, closing_seconds=30)
    model, *_, seconds = await stop_during(script, stream=stream)
    assert seconds < 1.1
    assert model.running == 0
    assert "the gateway is stopping: 1 requests are cut off" in caplog.text


async def test_nothing_is_left_behind() -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    async with live_gateway(ScriptedModel()) as url, httpx.AsyncClient() as client:
        during = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
        assert (await client.post(f"{url}/v1/completions", json=ASK)).status_code == 200
    await asyncio.get_running_loop().shutdown_default_executor()
    assert handlers == during
    assert asyncio.all_tasks() == tasks
    assert set(threading.enumerate()) == threads
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))


async def test_a_failure_of_on_ready_stops_the_server() -> None:
    def fail(_url: str) -> None:
        raise LookupError("no screen")

    with pytest.raises(LookupError):
        await serve(
            create_app([ScriptedModel()], GatewayConfig()),
            "127.0.0.1",
            0,
            on_ready=fail,
            stop=asyncio.Event(),
        )


async def test_cancelling_serve_stops_the_server_as_well() -> None:
    ready = asyncio.Queue[str]()
    app = create_app([ScriptedModel()], GatewayConfig())
    serving = asyncio.create_task(
        serve(app, "127.0.0.1", 0, on_ready=ready.put_nowait, stop=asyncio.Event())
    )
    url = await asyncio.wait_for(ready.get(), 2)
    serving.cancel()
    async with asyncio.timeout(2):
        with pytest.raises(asyncio.CancelledError):
            await serving
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((urlsplit(url).hostname, urlsplit(url).port))
