"""The gateway as OpenAI's own client sees it, over a socket."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessageParam

from meshnet.domain.errors import EngineError, NodeLostError, ResourceExhaustedError
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.fair import QueueBounds
from meshnet.session.service import TextRequest
from tests.support.live_gateway import LOCAL, live_gateway, until
from tests.support.scripted_model import Script, ScriptedModel

T = TypeVar("T")

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hello"}]


@asynccontextmanager
async def async_client(
    model: ScriptedModel, *, config: GatewayConfig = LOCAL, key: str = "none", retries: int = 0
) -> AsyncIterator[AsyncOpenAI]:
    async with (
        live_gateway(model, config=config) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=retries, timeout=10) as client,
    ):
        yield client


async def in_thread(model: ScriptedModel, use: Callable[[OpenAI], T]) -> T:
    def run(url: str) -> T:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as client:
            return use(client)

    async with live_gateway(model) as url:
        return await asyncio.to_thread(run, url)


async def test_a_chat_completion() -> None:
    model = ScriptedModel(Script("Grüße!"))
    answer = await in_thread(
        model, lambda client: client.chat.completions.create(model="scripted", messages=HELLO)
    )
    assert answer.id.startswith("chatcmpl-")
    assert (answer.object, answer.model) == ("chat.completion", "scripted")
    assert answer.choices[0].message.content == "Grüße!"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len("user: hello\n")
    assert answer.usage.completion_tokens == len("Grüße!".encode())
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer._request_id is not None
    assert answer._request_id.startswith("req-")


async def test_a_chat_stream_read_by_the_synchronous_client() -> None:
    def read(client: OpenAI) -> list[str | None]:
        with client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True
        ) as stream:
            return [chunk.choices[0].delta.content for chunk in stream]

    parts = await in_thread(ScriptedModel(Script("Grüße!")), read)
    assert parts[0] == ""
    assert parts[-1] is None
    assert "".join(part or "" for part in parts) == "Grüße!"
    assert len(parts) == 2 + len("Grüße!")


async def test_a_chat_stream_with_usage() -> None:
    async with async_client(ScriptedModel()) as client:
        stream = await client.chat.completions.create(
            model="scripted",
            messages=HELLO,
            stream=True,
            max_completion_tokens=5,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    *told, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in told) == "Hello"
    assert told[0].choices[0].delta.role == "assistant"
    assert told[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 5
    assert {chunk.id for chunk in chunks} == {last.id}


async def test_a_stop_string_ends_the_text_before_it() -> None:
    async with async_client(ScriptedModel()) as client:
        whole = await client.chat.completions.create(
            model="scripted", messages=HELLO, stop=[", wor", "!"]
        )
        stream = await client.completions.create(
            model="scripted", prompt="x", stop=", wor", stream=True
        )
        streamed = [chunk.choices[0] async for chunk in stream]
    assert whole.choices[0].message.content == "Hello"
    assert whole.choices[0].finish_reason == "stop"
    assert "".join(choice.text for choice in streamed) == "Hello"
    assert streamed[-1].finish_reason == "stop"


async def test_a_text_completion_with_logprobs() -> None:
    async with async_client(ScriptedModel()) as client:
        answer = await client.completions.create(
            model="scripted", prompt=["x"], logprobs=2, max_tokens=2
        )
    assert answer.id.startswith("cmpl-")
    choice = answer.choices[0]
    assert (choice.text, choice.finish_reason) == ("He", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["H", "e"]
    assert choice.logprobs.text_offset == [0, 1]
    assert choice.logprobs.token_logprobs == [-0.25, -0.25]
    assert choice.logprobs.top_logprobs == [{"H": -0.25, "I": -0.75}, {"e": -0.25, "f": -0.75}]


async def test_a_chat_stream_with_logprobs_has_every_token_once() -> None:
    async with async_client(ScriptedModel(Script("aé"))) as client:
        stream = await client.chat.completions.create(
            model="scripted", messages=HELLO, stream=True, logprobs=True, top_logprobs=1
        )
        logprobs = [chunk.choices[0].logprobs async for chunk in stream]
    tokens = [token for part in logprobs if part for token in part.content or []]
    assert bytes(byte for token in tokens for byte in token.bytes or []).decode() == "aé"
    assert [len(token.top_logprobs) for token in tokens] == [1, 1, 1]


async def test_how_tokens_are_chosen_is_the_client_s_to_say() -> None:
    model = ScriptedModel()
    async with async_client(model) as client:
        await client.chat.completions.create(
            model="scripted",
            messages=HELLO,
            seed=7,
            logit_bias={"65": -100, "66": 2},
            temperature=0.5,
            top_p=0.9,
            presence_penalty=0.25,
            frequency_penalty=0.5,
        )
    chosen = model.requests[0].sampling
    assert (chosen.seed, chosen.logit_bias) == (7, {65: -100.0, 66: 2.0})
    assert (chosen.temperature, chosen.top_p) == (0.5, 0.9)
    assert (chosen.presence_penalty, chosen.frequency_penalty) == (0.25, 0.5)


async def test_models() -> None:
    async with async_client(ScriptedModel()) as client:
        listed = [model.id async for model in client.models.list()]
        shown = await client.models.retrieve("scripted")
    assert listed == ["scripted"]
    assert (shown.object, shown.owned_by) == ("model", "meshnet")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ResourceExhaustedError("full"), openai.RateLimitError),
        (EngineError("broken"), openai.InternalServerError),
        (NodeLostError("gone"), openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_error_is_the_clients_own_kind_of_exception(
    error: Exception, kind: type[openai.APIStatusError], stream: bool
) -> None:
    config = GatewayConfig(queue=QueueBounds(0))
    async with async_client(ScriptedModel(Script(error=error)), config=config) as client:
        with pytest.raises(kind):
            await client.chat.completions.create(model="scripted", messages=HELLO, stream=stream)


async def test_a_bad_request_names_its_parameter() -> None:
    async with async_client(ScriptedModel()) as client:
        with pytest.raises(openai.BadRequestError) as bad:
            await client.chat.completions.create(
                model="scripted", messages=HELLO, extra_body={"temperature": "hot"}
            )
        with pytest.raises(openai.NotFoundError) as unknown:
            await client.chat.completions.create(model="gpt-x", messages=HELLO)
    assert (bad.value.param, bad.value.code) == ("temperature", "invalid_argument")
    assert (unknown.value.param, unknown.value.code) == ("model", "model_not_found")


async def test_a_wrong_key_is_an_authentication_error() -> None:
    config = GatewayConfig(api_key="right")
    async with async_client(ScriptedModel(), config=config, key="wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
    async with async_client(ScriptedModel(), config=config, key="right") as client:
        assert (await client.models.list()).data


async def test_an_error_in_mid_stream_reaches_the_reader_after_the_text_so_far() -> None:
    model = ScriptedModel(Script(error=NodeLostError("node b is gone"), error_at=5))
    async with async_client(model) as client:
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        text = ""
        with pytest.raises(openai.APIError, match="node b is gone") as caught:
            async for chunk in stream:
                text += chunk.choices[0].delta.content or ""
    assert text == "Hello"
    assert caught.value.code == "node_lost"


async def test_the_client_asks_again_only_if_that_can_help() -> None:
    broken = ScriptedModel(Script(error=EngineError("broken")))
    async with async_client(broken, retries=2) as client:
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="scripted", messages=HELLO)
    assert len(broken.requests) == 1

    def full_at_first(_request: TextRequest) -> Script:
        return Script(error=NodeLostError("gone")) if len(passing.requests) == 1 else Script()

    passing = ScriptedModel(full_at_first)
    async with async_client(passing, retries=2) as client:
        answer = await client.chat.completions.create(model="scripted", messages=HELLO)
    assert answer.choices[0].message.content == "Hello, world!"
    assert len(passing.requests) == 2


async def test_eight_answers_at_once_dont_mix() -> None:
    model = ScriptedModel(
        lambda request: Script(bytes(request.prompt).decode().upper(), delay_seconds=0.002)
    )
    most = 0

    async def ask(client: AsyncOpenAI, index: int) -> str:
        nonlocal most
        text = ""
        stream = await client.completions.create(
            model="scripted", prompt=f"request {index}", stream=True
        )
        async for chunk in stream:
            most = max(most, model.running)
            text += chunk.choices[0].text
        return text

    async with async_client(model) as client:
        answers = await asyncio.gather(*(ask(client, index) for index in range(8)))
    assert answers == [f"REQUEST {index}" for index in range(8)]
    assert most == 8


async def test_closing_a_stream_cancels_the_generation() -> None:
    model = ScriptedModel(Script("x" * 1000, delay_seconds=0.01))
    async with async_client(model) as client:
        stream = await client.chat.completions.create(model="scripted", messages=HELLO, stream=True)
        async for chunk in stream:
            if chunk.choices[0].delta.content:
                break
        await stream.close()
        await until(lambda: model.running == 0)
    assert model.cancelled == model.requests
