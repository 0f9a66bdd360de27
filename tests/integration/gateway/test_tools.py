"""Several choices, tools, reasoning and cancelling, as OpenAI's own client sees them."""

import asyncio
import itertools
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionChunk

from meshnet.domain.errors import NodeLostError
from meshnet.gateway.openai import choice_seed
from meshnet.session.service import TextRequest
from tests.support.live_gateway import live_gateway, until
from tests.support.scripted_model import Script, ScriptedModel
from tests.support.tool_outputs import OSLO, TEMPLATES, hermes

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
ASK: Any = {
    "model": "scripted",
    "messages": [{"role": "user", "content": "Weather in Oslo?"}],
    "tools": [TOOL],
}
THOUGHT = f"Hm.</think>\n\nI look.\n{hermes(OSLO)}\n{hermes(OSLO)}"


def by_seed(request: TextRequest) -> Script:
    """Each choice says its seed."""
    return Script(str(request.sampling.seed), delay_seconds=0.001)


def thinker(text: str = THOUGHT) -> ScriptedModel:
    return ScriptedModel(Script(text), template=TEMPLATES["qwen3"], prompt_end="<think>\n")


async def used(model: ScriptedModel, use: Any) -> Any:
    async with (
        live_gateway(model) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as client,
    ):
        return await use(client)


async def chunks_of(served: ScriptedModel, **parameters: Any) -> list[ChatCompletionChunk]:
    async def use(client: AsyncOpenAI) -> list[ChatCompletionChunk]:
        stream = await client.chat.completions.create(stream=True, **parameters)
        return [chunk async for chunk in stream]

    return list(await used(served, use))


async def test_n_choices_are_indexed_and_have_seeds_of_their_own() -> None:
    answer = await used(
        ScriptedModel(by_seed),
        lambda client: client.chat.completions.create(
            model="scripted", messages=ASK["messages"], n=3, seed=1
        ),
    )
    expected = [str(choice_seed(1, index)) for index in range(3)]
    assert [choice.message.content for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage.prompt_tokens == len("user: Weather in Oslo?\n")
    assert answer.usage.completion_tokens == sum(map(len, expected))


async def test_streamed_choices_come_interleaved() -> None:
    chunks = await chunks_of(
        ScriptedModel(Script("abcdef", delay_seconds=0.005)),
        model="scripted",
        messages=ASK["messages"],
        n=2,
        stream_options={"include_usage": True},
    )
    *told, last = chunks
    texts = {0: "", 1: ""}
    order = []
    for chunk in told:
        (choice,) = chunk.choices
        texts[choice.index] += choice.delta.content or ""
        order.append(choice.index)
    assert texts == {0: "abcdef", 1: "abcdef"}
    changes = sum(a != b for a, b in itertools.pairwise(order))
    assert changes > 4, order
    assert [chunk.choices[0].finish_reason for chunk in told].count("stop") == 2
    assert last.usage is not None
    assert last.usage.completion_tokens == 12


async def test_several_prompts_are_answered_in_their_order() -> None:
    model = ScriptedModel(lambda request: Script(bytes(request.prompt).decode().upper()))
    answer = await used(
        model,
        lambda client: client.completions.create(model="scripted", prompt=["one", "two"], n=2),
    )
    assert [choice.text for choice in answer.choices] == ["ONE", "ONE", "TWO", "TWO"]
    assert answer.usage.prompt_tokens == 6


async def test_one_failing_choice_ends_them_all() -> None:
    def script(request: TextRequest) -> Script:
        if len(model.requests) == 2:
            return Script(error=NodeLostError("gone"), error_at=2, delay_seconds=0.01)
        return Script("x" * 1000, delay_seconds=0.01)

    model = ScriptedModel(script)
    with pytest.raises(openai.InternalServerError):
        await used(
            model,
            lambda client: client.completions.create(
                model="scripted", prompt="x", n=3, max_tokens=1000
            ),
        )
    assert model.running == 0
    assert len(model.cancelled) == 2


async def test_leaving_cancels_every_choice() -> None:
    model = ScriptedModel(Script("x" * 1000, delay_seconds=0.01))

    async def use(client: AsyncOpenAI) -> None:
        stream = await client.completions.create(
            model="scripted", prompt="x", n=4, stream=True, max_tokens=1000
        )
        await anext(aiter(stream))
        await stream.close()
        await until(lambda: model.running == 0)

    await used(model, use)
    assert len(model.cancelled) == 4


async def test_an_answer_has_text_reasoning_and_calls_apart() -> None:
    model = thinker()
    answer = await used(model, lambda client: client.chat.completions.create(**ASK))
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.reasoning_content == "Hm."
    calls = choice.message.tool_calls
    assert [call.function.name for call in calls] == ["weather", "weather"]
    assert [call.function.arguments for call in calls] == ['{"city": "Oslo"}'] * 2
    assert len({call.id for call in calls}) == 2
    assert all(len(call.id) == 9 and call.id.isalnum() for call in calls)
    assert model.tools == [[TOOL]]


async def test_a_stream_has_the_same_in_deltas() -> None:
    chunks = await chunks_of(thinker(), **ASK)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "I look."
    thoughts = [getattr(delta, "reasoning_content", None) or "" for delta in deltas]
    assert "".join(thoughts) == "Hm."
    heads = [call for delta in deltas for call in delta.tool_calls or [] if call.id]
    assert [(head.index, head.type) for head in heads] == [(0, "function"), (1, "function")]
    arguments = {0: "", 1: ""}
    for delta in deltas:
        for call in delta.tool_calls or []:
            assert call.function is not None
            arguments[call.index] += call.function.arguments or ""
    assert arguments == dict.fromkeys((0, 1), '{"city": "Oslo"}')
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_the_client_s_own_collector_accepts_the_stream() -> None:
    async def use(client: AsyncOpenAI) -> Any:
        async with client.chat.completions.stream(**ASK) as stream:
            return await stream.get_final_completion()

    answer = await used(thinker(), use)
    calls = answer.choices[0].message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"city": "Oslo"}'] * 2
    assert answer.choices[0].message.content == "I look."


async def test_a_cut_off_answer_has_its_whole_calls_and_says_so() -> None:
    end = THOUGHT.index("</tool_call>") + 30
    answer = await used(
        thinker(), lambda client: client.chat.completions.create(**ASK, max_tokens=end)
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "length"
    assert len(choice.message.tool_calls) == 1
    assert choice.message.content.startswith("I look.")
    assert "<tool_call>" in choice.message.content


@pytest.mark.parametrize(
    ("more", "calls", "reason"),
    [({"parallel_tool_calls": False}, 1, "tool_calls"), ({"tool_choice": "none"}, 0, "stop")],
)
async def test_a_request_can_ask_for_fewer_calls(more: Any, calls: int, reason: str) -> None:
    model = thinker()
    answer = await used(model, lambda client: client.chat.completions.create(**ASK, **more))
    (choice,) = answer.choices
    assert (len(choice.message.tool_calls or []), choice.finish_reason) == (calls, reason)
    assert model.tools == [[TOOL] if calls else None]


async def test_the_calls_and_results_of_earlier_turns_reach_the_template() -> None:
    model = thinker("Sunny.")
    call = {"id": "c1", "type": "function", "function": TOOL["function"] | {"arguments": '{"a":1}'}}
    messages = [
        *ASK["messages"],
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]
    await used(
        model, lambda client: client.chat.completions.create(**(ASK | {"messages": messages}))
    )
    function = {"name": "weather", "arguments": {"a": 1}}
    assert list(model.conversations[0][1:]) == [
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "sun"},
    ]


async def test_logprobs_of_calls_are_all_there() -> None:
    chunks = await chunks_of(thinker("</think>" + hermes(OSLO)), **ASK, logprobs=True)
    entries = [
        entry
        for chunk in chunks
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content or []
    ]
    assert "".join(entry.token for entry in entries) == "</think>" + hermes(OSLO)


@pytest.mark.parametrize(("stream", "by"), [(True, "answer"), (True, "header"), (False, "header")])
async def test_a_request_is_cancelled_by_either_of_its_ids(stream: bool, by: str) -> None:
    model = ScriptedModel(Script("x" * 1000, delay_seconds=0.01))
    body = {"model": "scripted", "prompt": "x", "n": 2, "max_tokens": 1000, "stream": stream}
    async with live_gateway(model) as url, httpx.AsyncClient(base_url=url, timeout=5) as http:
        headers = {"x-request-id": "mine-1"}
        asking = asyncio.create_task(http.post("/v1/completions", json=body, headers=headers))
        await until(lambda: model.running == 2)
        if by == "answer":
            name = await _first_id(http, body)
            await until(lambda: model.running == 4)
            began = 4
        else:
            name, began = "mine-1", 2
        cancelled = await http.delete(f"/v1/requests/{name}")
        assert cancelled.json() == {"id": name, "object": "request", "cancelled": True}
        await until(lambda: model.running == began - 2, seconds=0.1)
        if by == "header":
            answer = await asking
            assert "the request was cancelled" in answer.text
            # A stream may have begun, and a begun answer's status is sent.
            assert answer.status_code in ((200, 499) if stream else (499,))
            assert (await http.delete("/v1/requests/mine-1")).status_code == 404
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)


async def _first_id(http: httpx.AsyncClient, body: dict[str, Any]) -> str:
    """Begin a second stream and keep it open; its id."""
    request = http.build_request("POST", "/v1/completions", json=body)
    answer = await http.send(request, stream=True)
    async for line in answer.aiter_lines():
        if line.startswith("data: "):
            return str(httpx.Response(200, text=line.removeprefix("data: ")).json()["id"])
    raise AssertionError("no event came")
