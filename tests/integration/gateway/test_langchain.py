"""LangChain's client for OpenAI, unchanged but for its address."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import httpx
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field, SecretStr

from tests.support.live_gateway import live_gateway
from tests.support.scripted_model import Script, ScriptedModel
from tests.support.tiny_server import tiny_server
from tests.support.tool_outputs import OSLO, TEMPLATES, hermes


@tool
def weather(city: Annotated[str, Field(max_length=8)]) -> str:
    """Tells the weather of a city."""
    return f"sun in {city}"


class Answer(BaseModel):
    """An answer."""

    colour: str = Field(description="a colour", max_length=8)
    digits: list[bool] = Field(max_length=3)
    sure: bool


@asynccontextmanager
async def chatting(url: str, model: str, **more: Any) -> AsyncIterator[ChatOpenAI]:
    async with httpx.AsyncClient(timeout=60) as http:
        yield ChatOpenAI(
            base_url=f"{url}/v1",
            api_key=SecretStr("none"),
            model=model,
            max_retries=0,
            http_async_client=http,
            **more,
        )


@asynccontextmanager
async def scripted(text: str, **more: Any) -> AsyncIterator[tuple[ChatOpenAI, ScriptedModel]]:
    model = ScriptedModel(Script(text), template=TEMPLATES["hermes"])
    async with live_gateway(model) as url, chatting(url, "scripted", **more) as chat:
        yield chat, model


async def test_an_answer_whole_and_streamed_with_its_usage() -> None:
    async with scripted("Grüße, 世界!") as (chat, _):
        said = await chat.ainvoke("hello")
        assert said.content == "Grüße, 世界!"
        assert said.usage_metadata is not None
        assert said.usage_metadata["output_tokens"] == len("Grüße, 世界!".encode())
        assert said.response_metadata["finish_reason"] == "stop"
        whole: Any = None
        async for chunk in chat.astream("hello", stream_usage=True):
            whole = chunk if whole is None else whole + chunk
        assert whole.content == said.content
        for name in ("input_tokens", "output_tokens", "total_tokens"):
            assert whole.usage_metadata[name] == said.usage_metadata[name]
        many = await chat.abatch(["one", "two"])
        assert [each.content for each in many] == [said.content] * 2
        rated = await chat.bind(logprobs=True, top_logprobs=2).ainvoke("hello")
        assert len(rated.response_metadata["logprobs"]["content"]) == len(said.content.encode())


async def test_calls_come_and_what_they_gave_goes_back() -> None:
    async with scripted(f"I look.\n{hermes(OSLO)}") as (chat, model):
        asked: list[Any] = [HumanMessage("Weather in Oslo?")]
        calling = chat.bind_tools([weather])
        said = await calling.ainvoke(asked)
        assert isinstance(said, AIMessage)
        assert said.content == "I look."
        (call,) = said.tool_calls
        assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
        whole: Any = None
        async for chunk in calling.astream(asked):
            whole = chunk if whole is None else whole + chunk
        assert [it["args"] for it in whole.tool_calls] == [{"city": "Oslo"}]
        result = await weather.ainvoke(call)
        assert isinstance(result, ToolMessage)
        await calling.ainvoke([*asked, said, result])
    *_, told = model.conversations
    assert [turn["role"] for turn in told] == ["user", "assistant", "tool"]
    assert told[2]["content"] == "sun in Oslo"


async def test_structure_and_calls_that_are_asked_for(tmp_path: Path) -> None:
    async with tiny_server(tmp_path) as url, chatting(url, "tiny", seed=4) as chat:
        kinds: Any = (("json_schema", None), ("function_calling", True))
        for method, strict in kinds:
            asking = chat.with_structured_output(Answer, method=method, strict=strict)
            assert isinstance(await asking.ainvoke("?"), Answer)
        for choice in ("any", "weather"):
            said = await chat.bind_tools([weather], tool_choice=choice, strict=True).ainvoke("?")
            assert isinstance(said, AIMessage)
            assert {call["name"] for call in said.tool_calls} == {"weather"}
            assert not said.invalid_tool_calls
        free = chat.bind_tools([weather], strict=True, max_tokens=20)
        assert isinstance(await free.ainvoke("?"), AIMessage)


async def test_the_newer_endpoint() -> None:
    async with scripted(f"I look.\n{hermes(OSLO)}", use_responses_api=True) as (chat, _):
        said = await chat.bind_tools([weather]).ainvoke("Weather in Oslo?")
        assert isinstance(said, AIMessage)
        assert said.text == "I look."
        assert [call["args"] for call in said.tool_calls] == [{"city": "Oslo"}]
        assert said.usage_metadata is not None
        pieces = [chunk.text async for chunk in chat.astream("Weather?")]
        assert "".join(pieces) == f"I look.\n{hermes(OSLO)}", "without tools it is text"
