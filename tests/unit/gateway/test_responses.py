import json
import math
from typing import Any

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.sampling import SamplingParams
from meshnet.gateway.openai import Call, Defaults
from meshnet.gateway.responses import REFUSED_IN_RESPONSES, ResponsesBody, read_responses
from tests.support.scripted_model import ScriptedModel
from tests.support.tool_outputs import TEMPLATES

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}}
USER = {"role": "user", "content": "hello"}


def read(served: ScriptedModel | None = None, **parameters: object) -> Call:
    served = served or ScriptedModel(template=TEMPLATES["hermes"])
    body = {"model": "scripted", "input": "hello"} | parameters
    return read_responses(json.dumps(body).encode(), {"scripted": served}, Defaults(7, 60.0))


def turns(*items: object, **parameters: object) -> list[Any]:
    model = ScriptedModel(template=TEMPLATES["hermes"])
    read(model, input=list(items), **parameters)
    return list(model.conversations[0])


def test_a_text_is_a_user_s_turn() -> None:
    call = read()
    (request,) = call.requests
    assert bytes(request.prompt) == b"user: hello\n"
    assert request.sampling == SamplingParams(seed=7)
    assert (request.max_new_tokens, call.stream) == (None, False)


def test_parameters_arrive() -> None:
    call = read(max_output_tokens=5, temperature=0, top_p=0.5, seed=3, stream=True, tools=[TOOL])
    (request,) = call.requests
    assert request.sampling == SamplingParams(temperature=0.0, top_p=0.5, seed=3)
    assert (request.max_new_tokens, call.stream) == (5, True)
    assert call.output.tools == {"f": {"type": "object"}}
    assert call.echo["tools"] == [{"strict": False} | TOOL]


def test_null_is_the_same_as_leaving_a_parameter_out() -> None:
    names = {*ResponsesBody.model_fields, *REFUSED_IN_RESPONSES} - {"model", "input"}
    assert read(**dict.fromkeys(names)).requests == read().requests


def test_items_become_turns_and_an_assistant_s_items_one_turn() -> None:
    call = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": '{"a": 1}'}
    thought = {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}
    said = {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]}
    result = {"type": "function_call_output", "call_id": "c1", "output": "42"}
    told = turns(
        {"role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        USER,
        *(thought, said, call, call | {"call_id": "c2"}),
        *(result, result | {"call_id": "c2"}),
        thought,
        said,
        USER,
        instructions="first",
    )
    calls = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}
        for name in ("c1", "c2")
    ]
    answer = {"role": "assistant", "content": "I look.", "reasoning_content": "Hm."}
    assert told == [
        {"role": "system", "content": "first"},
        {"role": "system", "content": "be brief"},
        USER,
        answer | {"tool_calls": calls},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "tool", "content": "42", "tool_call_id": "c2"},
        answer,
        USER,
    ]


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        *(
            ({name: True}, name)
            for name in sorted(REFUSED_IN_RESPONSES)
            if name not in ("background",)
        ),
        ({"background": True}, "background"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"verbosity": "low"}}, "text.verbosity"),
        ({"reasoning": {"effort": "high"}}, "reasoning"),
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": [{"content": "x"}]}, "input[0].role"),
        ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
        (
            {"input": [USER, {"role": "user", "content": [{"type": "input_image"}]}]},
            "input[1].content",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call", "call_id": "x"}]}, "input[0].name"),
        (
            {"input": [{"type": "function_call", "call_id": "x", "name": "f", "arguments": "["}]},
            "input[0].arguments",
        ),
        ({"tools": [{"type": "web_search"}]}, "tools[0].name"),
        ({"tools": [TOOL | {"type": "custom"}]}, "tools[0].type"),
        ({"tools": [TOOL | {"strict": 1}]}, "tools[0].strict"),
        ({"tools": [TOOL, TOOL]}, "tools[1].name"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": "hot"}, "temperature"),
    ],
)
def test_what_cant_be_done_as_asked_is_refused_by_name(
    parameters: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        read(None, **parameters)
    assert caught.value.details["field"] == field


def test_a_model_whose_calls_arent_known_takes_no_tools() -> None:
    with pytest.raises(InvalidArgumentError, match="chat template of scripted"):
        read(ScriptedModel(), tools=[TOOL])


@pytest.mark.parametrize("number", ["1e999", "-1e999", "NaN", "Infinity"])
def test_a_schema_with_a_number_that_no_answer_could_repeat_is_refused(number: str) -> None:
    schema = '{"type": "object", "properties": {"a": {"enum": [1.5, %s]}}}' % number  # noqa: UP031
    body = (
        '{"model": "scripted", "input": "hello", '
        f'"tools": [{{"type": "function", "name": "f", "parameters": {schema}}}]}}'
    )
    model = ScriptedModel(template=TEMPLATES["hermes"])
    with pytest.raises(InvalidArgumentError, match="finite") as caught:
        read_responses(body.encode(), {"scripted": model}, Defaults(7, 60.0))
    assert caught.value.details["field"] == "tools[0].parameters"
    assert not model.conversations


def test_what_isnt_known_of_a_tool_isnt_repeated() -> None:
    call = read(tools=[TOOL | {"limit": math.inf}])
    assert call.echo["tools"] == [{"strict": False} | TOOL]
