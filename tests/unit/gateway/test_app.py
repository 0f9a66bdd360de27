import asyncio
import logging
import threading
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from meshnet.domain.errors import (
    InternalError,
    InvalidArgumentError,
    NodeLostError,
    NodeUnreachableError,
    ResourceExhaustedError,
    TemplateError,
)
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import HealthReport
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.gateway.app import create_app
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.fair import QueueBounds
from tests.support.scripted_model import Script, ScriptedModel, scripted_node

CHAT = {"model": "scripted", "messages": [{"role": "user", "content": "hello"}]}


def client_of(*models: ScriptedModel, config: GatewayConfig | None = None) -> httpx.AsyncClient:
    app = create_app(models, config or GatewayConfig())
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app, raise_app_exceptions=False),
        base_url="http://localhost",
    )


async def posted(model: ScriptedModel, **config: Any) -> httpx.Response:
    async with client_of(model, config=GatewayConfig(**config)) as client:
        return await client.post("/v1/chat/completions", json=CHAT)


def error_of(response: httpx.Response) -> dict[str, Any]:
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return dict(body["error"])


def test_models_need_a_name_each() -> None:
    for models in ([], [ScriptedModel(), ScriptedModel()]):
        with pytest.raises(InvalidArgumentError):
            create_app(models, GatewayConfig())


async def test_models_are_listed_and_shown() -> None:
    async with client_of(ScriptedModel(), ScriptedModel(name="org/big")) as client:
        listed = (await client.get("/v1/models")).json()
        shown = (await client.get("/v1/models/org/big")).json()
        missing = await client.get("/v1/models/nope")
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == ["scripted", "org/big"]
    assert shown == {
        "id": "org/big",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "meshnet",
    }
    assert missing.status_code == 404
    assert error_of(missing)["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/docs", 404, "unknown_url"),
        *(
            ("POST", path, 404, "unknown_url")
            for path in (
                "/v1/embeddings",
                "/v1/audio/speech",
                "/v1/audio/transcriptions",
                "/v1/images/generations",
                "/v1/files",
                "/v1/uploads",
                "/v1/batches",
                "/v1/fine_tuning/jobs",
                "/v1/assistants",
                "/v1/threads",
                "/v1/vector_stores",
                "/v1/moderations",
                "/v1/realtime/sessions",
            )
        ),
        ("GET", "/v1/responses/resp_1", 404, "unknown_url"),
        ("DELETE", "/v1/chat/completions/chatcmpl-1", 404, "unknown_url"),
        ("POST", "/v1/chat/completions/", 404, "unknown_url"),
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models/scripted", 405, "method_not_allowed"),
        ("OPTIONS", "/v1/chat/completions", 405, "method_not_allowed"),
    ],
)
async def test_what_isnt_offered_is_refused_in_openais_shape(
    method: str, path: str, status: int, code: str
) -> None:
    async with client_of(ScriptedModel()) as client:
        response = await client.request(method, path, headers={"origin": "http://evil.example"})
    assert response.status_code == status
    told = error_of(response)
    assert (told["code"], told["type"]) == (code, "invalid_request_error")
    assert "POST /v1/chat/completions" in told["message"]
    assert ("allow" in response.headers) == (status == 405)
    assert not [name for name in response.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ResourceExhaustedError("8 sessions are open"), 429, "resource_exhausted"),
        (NodeLostError("node b is gone"), 502, "node_lost"),
        (InternalError("a bug"), 500, "internal"),
        (RuntimeError("secret"), 500, "internal"),
    ],
)
async def test_an_error_before_the_first_token_has_its_own_status(
    error: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    response = await posted(ScriptedModel(Script(error=error)), queue=QueueBounds(0))
    assert response.status_code == status
    told = error_of(response)
    assert told["code"] == code
    assert "Traceback" not in response.text
    assert "secret" not in response.text
    traced = [record for record in caplog.records if record.exc_info]
    assert bool(traced) == (status == 500)


async def test_a_template_that_refuses_is_the_messages_fault() -> None:
    response = await posted(ScriptedModel(template_error=TemplateError("roles must alternate")))
    assert (response.status_code, error_of(response)["param"]) == (400, "messages")


async def test_a_prompt_beyond_the_context_has_openais_code() -> None:
    response = await posted(ScriptedModel(context_length=4))
    assert (response.status_code, error_of(response)["code"]) == (400, "context_length_exceeded")


async def test_a_body_over_the_limit_is_refused_while_it_is_read() -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b" " * 64

    async with client_of(ScriptedModel(), config=GatewayConfig(max_body_bytes=1000)) as client:
        response = await client.post(
            "/v1/chat/completions",
            content=endless(),
            headers={"content-type": "application/json"},
        )
    assert response.status_code == 413
    assert error_of(response)["code"] == "request_too_large"
    assert sent == 16


async def test_a_body_that_doesnt_come_is_given_up() -> None:
    async def stuck() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.sleep(60)

    async with client_of(
        ScriptedModel(), config=GatewayConfig(client_timeout_seconds=0.05)
    ) as client:
        response = await client.post(
            "/v1/completions", content=stuck(), headers={"content-type": "application/json"}
        )
    assert (response.status_code, error_of(response)["code"]) == (408, "request_timeout")


@pytest.mark.parametrize("media_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_media_type_that_a_foreign_page_could_send_is_refused(media_type: str) -> None:
    model = ScriptedModel()
    async with client_of(model) as client:
        response = await client.post(
            "/v1/chat/completions", content=b"{}", headers={"content-type": media_type}
        )
    assert (response.status_code, error_of(response)["code"]) == (415, "unsupported_media_type")
    assert model.requests == []


async def test_a_foreign_host_header_is_refused() -> None:
    async with client_of(ScriptedModel()) as client:
        response = await client.get("/v1/models", headers={"host": "evil.example"})
    assert (response.status_code, error_of(response)["code"]) == (403, "host_not_allowed")
    assert "x-request-id" in response.headers


@pytest.mark.parametrize(
    ("header", "status"),
    [
        ("Bearer right-key", 200),
        ("bearer right-key", 200),
        ("Bearer wrong-key", 401),
        ("Basic right-key", 401),
        ("right-key", 401),
        ("", 401),
        ("Bearer \xe9", 401),
    ],
)
async def test_a_key_is_asked_for_if_there_is_one(header: str, status: int) -> None:
    async with client_of(ScriptedModel(), config=GatewayConfig(api_key="right-key")) as client:
        response = await client.get(
            "/v1/models", headers=[(b"authorization", header.encode("latin-1"))]
        )
    assert response.status_code == status
    if status == 401:
        assert error_of(response)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("sent", "kept"), [("trace-1:a.b_C", True), ("bad id", False), ("", False)]
)
async def test_the_request_id_is_returned_and_in_every_log_line(
    sent: str, kept: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "meshnet.gateway")
    async with client_of(ScriptedModel()) as client:
        response = await client.post(
            "/v1/chat/completions", json=CHAT, headers={"x-request-id": sent}
        )
    returned = response.headers["x-request-id"]
    assert (returned == sent) is kept
    assert returned
    lines = [record.message for record in caplog.records if record.name == "meshnet.gateway"]
    assert len(lines) == 3
    assert all(line.startswith(f"[{returned}] ") for line in lines)


async def test_a_path_cant_forge_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "meshnet.gateway")
    async with client_of(ScriptedModel()) as client:
        await client.get("/x%0Aforged")
    assert not any("\n" in record.message for record in caplog.records)


async def test_two_requests_without_a_seed_differ() -> None:
    model = ScriptedModel()
    async with client_of(model) as client:
        for _ in range(2):
            await client.post("/v1/chat/completions", json=CHAT)
    first, second = (request.sampling.seed for request in model.requests)
    assert first != second


async def test_health_shows_each_node() -> None:
    async with client_of(ScriptedModel()) as client:
        response = await client.get("/health")
    assert response.status_code == 200
    body = response.json()
    assert (body["status"], body["reason"]) == ("ready", None)
    assert [node["node_id"] for node in body["models"][0]["nodes"]] == ["head", "tail"]
    assert body["models"][0]["nodes"][1]["layers"] == [2, 4]


async def test_health_is_503_with_the_reason_if_a_node_isnt_ready() -> None:
    model = ScriptedModel()
    loading = HealthReport(
        LifecycleState.LOADING, StructuredStatus(StatusCode.NODE_NOT_READY, True, "at 40 %")
    )
    model.nodes = (
        scripted_node("head", LayerRange(0, 2), 4),
        scripted_node("tail", LayerRange(2, 4), 4, loading),
    )
    async with client_of(model, ScriptedModel(name="fine")) as client:
        response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["reason"] == "scripted: node tail is loading (at 40 %)"
    assert [model["ready"] for model in response.json()["models"]] == [False, True]


async def test_health_is_503_if_a_node_cant_be_asked_or_not_in_time() -> None:
    away, slow = ScriptedModel(name="away"), ScriptedModel(name="slow")
    away.nodes = NodeUnreachableError("node b can't be reached")
    slow.node_seconds = 60
    config = GatewayConfig(health_timeout_seconds=0.05)
    async with client_of(away, slow, config=config) as client:
        response = await client.get("/health")
    assert response.status_code == 503
    assert response.json()["reason"] == (
        "away: node b can't be reached; slow: its nodes didn't answer within 0.05 s"
    )


async def test_one_request_too_many_is_told_to_come_back_before_its_body_is_read() -> None:
    waiting = ScriptedModel(Script("abc", delay_seconds=5.0))
    async with client_of(waiting, config=GatewayConfig(max_requests=2)) as client:
        served = [
            asyncio.create_task(client.post("/v1/chat/completions", json=CHAT)) for _ in range(2)
        ]
        await asyncio.sleep(0.05)

        asked_for = 0

        async def body() -> AsyncIterator[bytes]:
            nonlocal asked_for
            asked_for += 1
            yield b""

        headers = {"content-type": "application/json"}
        refused = await client.post("/v1/chat/completions", content=body(), headers=headers)
        assert (refused.status_code, asked_for) == (429, 0)
        assert refused.headers["retry-after"] == "1"
        assert error_of(refused)["code"] == "resource_exhausted"
        assert (await client.get("/v1/models")).status_code == 200
        for each in served:
            each.cancel()
        await asyncio.wait(served)
        again = client_of(ScriptedModel(), config=GatewayConfig(max_requests=1))
        async with again as free:
            for _ in range(3):
                assert (await free.post("/v1/chat/completions", json=CHAT)).status_code == 200


async def test_requests_are_read_while_the_threads_for_everything_else_are_busy() -> None:
    held = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    busy = loop.run_in_executor(None, held.wait)
    try:
        async with asyncio.timeout(5):
            assert (await posted(ScriptedModel())).status_code == 200
    finally:
        held.set()
        await busy
