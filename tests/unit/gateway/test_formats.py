"""From ``response_format``, ``tool_choice`` and ``grammar`` to the grammar of an answer."""

import json
from typing import Any

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.openai import Call, Defaults, read_chat, read_completion
from meshnet.gateway.responses import read_responses
from tests.support.scripted_model import ScriptedModel
from tests.support.tool_outputs import TEMPLATES

DEFAULTS = Defaults(1, 60.0)
OBJECT: Any = {"type": "json_object"}
SCHEMA: Any = {
    "type": "json_schema",
    "json_schema": {"name": "a", "strict": True, "schema": {"const": "only this"}},
}


def tool(name: str, **more: object) -> dict[str, object]:
    schema = {"type": "object", "properties": {name: {"type": "null"}}, "required": [name]}
    return {"type": "function", "function": {"name": name, "parameters": schema} | more}


TOOLS: Any = [tool("one"), tool("two")]


def hermes(**scripted: Any) -> ScriptedModel:
    return ScriptedModel(template=TEMPLATES["hermes"], **scripted)


def chat(model: ScriptedModel | None = None, **parameters: object) -> Call:
    model = model or hermes()
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": model.name, "messages": messages} | parameters
    return read_chat(json.dumps(body).encode(), {model.name: model}, DEFAULTS)


def grammar_of(call: Call) -> str:
    (request,) = call.requests
    return request.sampling.grammar


def test_text_has_no_grammar_and_is_not_looked_at():
    model = hermes()
    for parameters in ({}, {"response_format": {"type": "text"}}, {"tools": TOOLS}):
        assert grammar_of(chat(model, **parameters)) == ""
    assert model.grammars == []


def test_a_format_becomes_a_grammar_that_is_looked_at_first():
    model = hermes()
    made = grammar_of(chat(model, response_format=SCHEMA))
    assert '"\\"only this\\""' in made
    assert model.grammars == [made]
    assert "object ::=" in grammar_of(chat(model, response_format=OBJECT))


def test_each_choice_follows_it():
    call = chat(response_format=SCHEMA, n=3)
    assert len({request.sampling.grammar for request in call.requests}) == 1
    assert len({request.sampling.seed for request in call.requests}) == 3


@pytest.mark.parametrize(
    ("parameters", "called", "answers"),
    [
        ({"tool_choice": "required"}, {"one", "two"}, False),
        ({"tool_choice": {"type": "function", "function": {"name": "two"}}}, {"two"}, False),
        ({"response_format": SCHEMA}, {"one", "two"}, True),
        ({"response_format": SCHEMA, "tool_choice": "required"}, {"one", "two"}, False),
        ({"response_format": SCHEMA, "tool_choice": "none"}, set(), True),
    ],
)
def test_what_an_answer_may_be(parameters, called, answers):
    model = hermes()
    made = grammar_of(chat(model, tools=TOOLS, **parameters))
    assert {name for name in ("one", "two") if f'\\"name\\": \\"{name}\\"' in made} == called
    assert ("only this" in made) is answers
    # All tools are shown, whichever may be called.
    assert len(model.tools[0] or []) == (0 if parameters.get("tool_choice") == "none" else 2)


def test_a_strict_function_is_called_by_its_schema_only_and_others_with_any_object():
    tools = [tool("one", strict=True), tool("two", strict=False)]
    made = grammar_of(chat(tools=tools))
    assert '"\\"one\\"" ":"' in made, "a member of its schema"
    assert '"\\"two\\"" ":"' not in made
    assert "object ::=" in made
    assert made.splitlines()[0].endswith("{0,15} )?"), "calls, or none"
    assert grammar_of(chat(tools=tools, tool_choice="none")) == ""
    for choice in ({"tool_choice": "required"}, {"response_format": SCHEMA}):
        every = grammar_of(chat(tools=tools, **choice))
        assert "object ::=" not in every, "where a call is asked for, all have their schemas"


def test_what_cant_be_kept_of_a_strict_function_is_refused_by_its_place():
    beyond = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    strict = [tool("one", strict=True, parameters=beyond)]
    with pytest.raises(InvalidArgumentError, match="uniqueItems") as refused:
        chat(tools=strict)
    assert refused.value.details["field"] == "tools[0].function.parameters"
    assert grammar_of(chat(tools=[tool("one", parameters=beyond), tool("two", strict=True)]))


def test_a_single_call_has_none_after_it():
    several = grammar_of(chat(tools=TOOLS, tool_choice="required"))
    single = grammar_of(chat(tools=TOOLS, tool_choice="required", parallel_tool_calls=False))
    assert "{0,15}" in several.splitlines()[0]
    assert "{0,15}" not in single.splitlines()[0]


@pytest.mark.parametrize("end", ["", "<think>\n"])
def test_reasoning_may_come_first_and_must_end_if_it_has_begun(end):
    model = ScriptedModel(template=TEMPLATES["qwen3"], prompt_end=end)
    root = grammar_of(chat(model, response_format=SCHEMA)).splitlines()[0]
    assert '"</think>"' in root
    assert ('"<think>"' in root) is (not end)


@pytest.mark.parametrize(
    ("choice", "word"),
    [
        ("often", "often"),
        ({"type": "function"}, "function"),
        ({"type": "allowed_tools", "mode": "auto"}, "allowed_tools"),
        ({"type": "function", "function": {"name": "three"}}, "three"),
        (7, "7"),
    ],
)
def test_a_choice_that_isnt_one_is_refused(choice, word):
    with pytest.raises(InvalidArgumentError, match=word) as refused:
        chat(tools=TOOLS, tool_choice=choice)
    assert refused.value.details["field"] == "tool_choice"


def test_a_function_s_schema_is_named_where_it_cant_be_kept():
    tools = [tool("one"), tool("two", parameters={"type": "object", "minProperties": 2})]
    with pytest.raises(InvalidArgumentError, match="minProperties") as refused:
        chat(tools=tools, tool_choice="required")
    assert refused.value.details["field"] == "tools[1].function.parameters"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"grammar": "g"}, "grammar"),
        ({"response_format": OBJECT}, "response_format"),
        ({"response_format": SCHEMA}, "response_format.json_schema.schema"),
        ({"tools": TOOLS, "tool_choice": "required"}, "tool_choice"),
    ],
)
def test_what_cant_be_followed_is_told_of_the_parameter_it_came_from(parameters, field):
    model = hermes()
    model.grammar_error = InvalidArgumentError("grammar", "it takes too long")
    with pytest.raises(InvalidArgumentError, match="it takes too long") as refused:
        chat(model, **parameters)
    assert refused.value.details["field"] == field
    assert refused.value.message.startswith(f"{field}: ")


@pytest.mark.parametrize(
    "beside",
    [{"response_format": OBJECT}, {"tools": TOOLS}, {"tools": TOOLS, "tool_choice": "required"}],
)
def test_a_grammar_is_the_only_one(beside):
    with pytest.raises(InvalidArgumentError, match="beside") as refused:
        chat(grammar='root ::= "a"', **beside)
    assert refused.value.details["field"] == "grammar"


def test_the_other_endpoints_take_theirs():
    model = hermes()
    named = {model.name: model}
    plain = {"model": model.name, "prompt": ["a", "b"], "grammar": 'root ::= "a"'}
    call = read_completion(json.dumps(plain).encode(), named, DEFAULTS)
    assert [it.sampling.grammar for it in call.requests] == ['root ::= "a"'] * 2
    flat = {"type": "json_schema", "name": "a", "strict": True, "schema": {"const": "only this"}}
    body = {"model": model.name, "input": "?", "text": {"format": flat}}
    answer = read_responses(json.dumps(body).encode(), named, DEFAULTS)
    assert "only this" in grammar_of(answer)
    assert answer.echo["text"] == {"format": flat}
    calls = {
        "model": model.name,
        "input": "?",
        "tools": [{"type": "function", **TOOLS[0]["function"], "strict": True}],
        "tool_choice": {"type": "function", "name": "one"},
    }
    call = read_responses(json.dumps(calls).encode(), named, DEFAULTS)
    assert '\\"one\\"' in grammar_of(call)
    tools: Any = call.echo["tools"]
    assert tools[0]["strict"] is True
