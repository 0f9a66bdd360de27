"""JSON, grammars and enforced calls over HTTP, as OpenAI's own client asks for them.

The model has random weights, so that only the grammars make sense of its answers.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import jsonschema
import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel, Field

from tests.support.live_gateway import live_gateway
from tests.support.mesh import mesh
from tests.support.tiny_server import tiny_server

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 5}, "ok": {"type": "boolean"}},
    "required": ["n", "ok"],
    "additionalProperties": False,
}
TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": SCHEMA, "strict": True}}
    for name in ("first", "second")
]
ASK: Any = {"model": "tiny", "messages": [{"role": "user", "content": "?"}], "seed": 4}
ITEMS: Any = {"model": "tiny", "input": "?", "max_output_tokens": 400}


class Colour(Enum):
    RED = "red"
    GREEN = "green"


class Answer(BaseModel):
    colour: Colour
    digits: list[int] = Field(min_length=1, max_length=3)
    rest: bool | None


@asynccontextmanager
async def tiny_client(path: Path) -> AsyncIterator[AsyncOpenAI]:
    async with (
        tiny_server(path) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60) as client,
    ):
        yield client


async def test_formats_of_chats(tmp_path: Path) -> None:
    async with tiny_client(tmp_path) as client:
        parsed = await client.chat.completions.parse(**ASK, response_format=Answer, n=3)
        for choice in parsed.choices:
            assert isinstance(choice.message.parsed, Answer)
            assert choice.finish_reason == "stop"
        named = {"name": "a", "schema": SCHEMA, "strict": True}
        schema: Any = {"type": "json_schema", "json_schema": named}
        for temperature in (0.0, 1.0):
            stream = await client.chat.completions.create(
                **ASK, response_format=schema, temperature=temperature, stream=True
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            jsonschema.validate(json.loads(text), SCHEMA)
        cut = await client.chat.completions.create(**ASK, response_format=schema, max_tokens=3)
        assert cut.choices[0].finish_reason == "length"
        free = await client.chat.completions.create(
            **ASK, response_format={"type": "json_object"}, max_tokens=300, logit_bias={"125": 9}
        )
        assert isinstance(json.loads(free.choices[0].message.content or ""), dict)


async def test_grammars_and_formats_elsewhere(tmp_path: Path) -> None:
    async with tiny_client(tmp_path) as client:
        body = {"grammar": 'root ::= ("yes" | "no") "!"{2}'}
        said = await client.completions.create(model="tiny", prompt="?", extra_body=body)
        assert said.choices[0].text in ("yes!!", "no!!")
        assert said.choices[0].finish_reason == "stop"
        parsed = await client.responses.parse(**ITEMS, text_format=Answer)
        assert isinstance(parsed.output_parsed, Answer)
        wanted: Any = {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}
        plain = await client.responses.create(**ITEMS, text=wanted)
        jsonschema.validate(json.loads(plain.output_text), SCHEMA)
        assert plain.text is not None and plain.text.format is not None
        assert plain.text.format.type == "json_schema"


@pytest.mark.slow
async def test_enforced_calls(tmp_path: Path) -> None:
    async with tiny_client(tmp_path) as client:
        second: Any = {"type": "function", "function": {"name": "second"}}
        choices: Any = (("required", {"first", "second"}), (second, {"second"}))
        for choice, names in choices:
            answer = await client.chat.completions.create(**ASK, tools=TOOLS, tool_choice=choice)
            calls: Any = answer.choices[0].message.tool_calls
            assert answer.choices[0].finish_reason == "tool_calls"
            assert not answer.choices[0].message.content
            for call in calls:
                assert call.function.name in names
                jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
        one = await client.chat.completions.create(
            **ASK, tools=TOOLS, tool_choice="required", parallel_tool_calls=False
        )
        assert len(one.choices[0].message.tool_calls or []) == 1
        flat: Any = [{"type": "function", **TOOLS[0]["function"]}]
        given = await client.responses.create(
            **ITEMS, tools=flat, tool_choice={"type": "function", "name": "first"}
        )
        (item,) = given.output
        assert item.type == "function_call"
        jsonschema.validate(json.loads(item.arguments), SCHEMA)


async def test_strict_functions_beside_text(tmp_path: Path) -> None:
    async with tiny_client(tmp_path) as client:
        for temperature in (0.0, 1.0):
            said = await client.chat.completions.create(
                **ASK, tools=TOOLS, temperature=temperature, n=2, max_tokens=100
            )
            for choice in said.choices:
                assert "<tool_call>" not in (choice.message.content or "")
        flat: Any = [{"type": "function", **TOOLS[0]["function"]}]
        given = await client.responses.create(**(ITEMS | {"max_output_tokens": 9}), tools=flat)
        (tool,) = given.tools
        assert tool.type == "function"
        assert tool.strict is True


async def test_what_cant_be_followed_is_a_bad_request_that_names_its_parameter(
    tmp_path: Path,
) -> None:
    recursive = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/b"}, {"$ref": "#/$defs/b"}]}}}
    chained: Any = {f"{n}": {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2 + [{}]} for n in range(40)}
    explosive: Any = {
        "$ref": "#/$defs/0",
        "$defs": {**chained, "40": {"type": "null"}, **recursive},
    }
    inner = {"name": "a", "schema": {"type": "array", "uniqueItems": True}}
    unique: Any = {"type": "json_schema", "json_schema": inner}
    async with tiny_client(tmp_path) as client:
        cases: Any = (
            ({"extra_body": {"grammar": "root ::= root"}}, "grammar"),
            ({"extra_body": {"grammar": 'root ::= "a"{0,100000}'}}, "grammar"),
            ({"extra_body": {"grammar": "root ::= " + "(" * 9000}}, "grammar"),
            ({"extra_body": {"grammar": 'root ::= "' + "a" * (1 << 20) + '"'}}, "grammar"),
            ({"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
            ({"tool_choice": "required"}, "tool_choice"),
            ({"response_format": unique}, "response_format.json_schema.schema"),
        )
        for parameters, field in cases:
            with pytest.raises(openai.BadRequestError) as refused:
                await client.chat.completions.create(**ASK, **parameters)
            assert refused.value.param == field, refused.value
        deep: Any = {"type": "json_schema", "json_schema": {"name": "a", "schema": explosive}}
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**ASK, response_format=deep)
        assert refused.value.param == "response_format.json_schema.schema"


async def test_a_chain_that_cant_do_it_says_so() -> None:
    async with (
        mesh((2,)) as nodes,
        live_gateway(await nodes.model()) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        with pytest.raises(openai.BadRequestError, match="grammar") as refused:
            await client.chat.completions.create(
                model="fixture",
                messages=ASK["messages"],
                response_format={"type": "json_object"},
            )
        assert refused.value.code == "invalid_argument"
