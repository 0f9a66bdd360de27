"""``/v1/responses`` as OpenAI's own client sees it."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from meshnet.domain.errors import NodeLostError
from tests.integration.gateway.test_tools import THOUGHT, thinker, used
from tests.support.scripted_model import Script, ScriptedModel

TOOL: Any = {
    "type": "function",
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
ASK: Any = {"model": "scripted", "input": "Weather in Oslo?"}


async def test_a_text_answer() -> None:
    answer = await used(
        ScriptedModel(), lambda client: client.responses.create(**ASK, instructions="Be brief.")
    )
    assert answer.id.startswith("resp_")
    assert (answer.status, answer.output_text) == ("completed", "Hello, world!")
    assert answer.usage.output_tokens == len("Hello, world!")
    assert answer.instructions == "Be brief."
    Response.model_validate(answer.to_dict(), strict=False)


async def test_reasoning_text_and_calls_are_items() -> None:
    answer = await used(thinker(), lambda client: client.responses.create(**ASK, tools=[TOOL]))
    assert [item.type for item in answer.output] == [
        "reasoning",
        "message",
        "function_call",
        "function_call",
    ]
    thought, _, first, second = answer.output
    assert thought.content[0].text == "Hm."
    assert answer.output_text == "I look."
    assert (first.name, first.arguments) == ("weather", '{"city": "Oslo"}')
    assert first.call_id != second.call_id
    assert len({item.id for item in answer.output}) == 4
    assert answer.usage.output_tokens_details.reasoning_tokens == THOUGHT.index("</think>") + 8


async def test_a_cut_off_answer_is_incomplete() -> None:
    answer = await used(
        ScriptedModel(), lambda client: client.responses.create(**ASK, max_output_tokens=5)
    )
    assert (answer.status, answer.output_text) == ("incomplete", "Hello")
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"


async def test_the_events_of_a_stream_build_the_same_answer() -> None:
    async def use(client: AsyncOpenAI) -> Any:
        stream = await client.responses.create(**ASK, tools=[TOOL], stream=True)
        return [event async for event in stream]

    events = await used(thinker(), use)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == ["reasoning", "message", "function_call", "function_call"]
    final = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in final.output]

    def joined(kind: str) -> str:
        return "".join(event.delta for event in events if event.type == kind)

    assert joined("response.output_text.delta") == "I look."
    assert joined("response.reasoning_text.delta") == "Hm."
    assert joined("response.function_call_arguments.delta") == '{"city": "Oslo"}' * 2
    for event in events:
        if hasattr(event, "item_id"):
            assert event.item_id == final.output[event.output_index].id


async def test_the_client_s_own_collector_accepts_the_stream() -> None:
    async def use(client: AsyncOpenAI) -> Any:
        async with client.responses.stream(**ASK, tools=[TOOL]) as stream:
            return await stream.get_final_response()

    answer = await used(thinker(), use)
    assert answer.output_text == "I look."
    assert [item.type for item in answer.output].count("function_call") == 2


async def test_an_answer_s_items_are_the_next_request_s_input() -> None:
    model = thinker()

    async def use(client: AsyncOpenAI) -> Any:
        first = await client.responses.create(**ASK, tools=[TOOL])
        results = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "sun"}
            for item in first.output
            if item.type == "function_call"
        ]
        items: Any = [{"role": "user", "content": "Oslo?"}, *first.output, *results]
        return await client.responses.create(model="scripted", input=items, tools=[TOOL])

    await used(model, use)
    roles = [turn["role"] for turn in model.conversations[1]]
    assert roles == ["user", "assistant", "tool", "tool"]
    assert model.conversations[1][1]["reasoning_content"] == "Hm."


async def test_an_error_in_mid_stream_is_an_event() -> None:
    async def use(client: AsyncOpenAI) -> Any:
        stream = await client.responses.create(**ASK, stream=True)
        return [event async for event in stream]

    model = ScriptedModel(Script(error=NodeLostError("node b is gone"), error_at=5))
    *_, last = await used(model, use)
    assert (last.type, last.code, last.message) == ("error", "node_lost", "node b is gone")


async def test_what_isnt_offered_is_refused_by_name() -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await used(
            ScriptedModel(),
            lambda client: client.responses.create(**ASK, previous_response_id="resp_1"),
        )
    assert caught.value.param == "previous_response_id"
