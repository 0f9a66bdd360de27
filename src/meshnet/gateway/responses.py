"""The body of ``POST /v1/responses`` becomes a domain request; a pure function, as its siblings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.formats import constrained, text_format, tool_choice
from meshnet.gateway.openai import (
    Call,
    Defaults,
    Models,
    model_named,
    positive,
    prompted,
    sampling_of,
)
from meshnet.gateway.schema import (
    MAX_TOOLS,
    Body,
    Content,
    OfferedFunction,
    Refused,
    SamplingBody,
    TextFormat,
    TextOptions,
    parse,
    refuse,
    text_parts,
)
from meshnet.gateway.tooluse import arguments_of, earlier_call, offered, output_terms
from meshnet.session.service import TextRequest

REFUSED_IN_RESPONSES: Refused = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "conversation": (),
    "image": (),
    "include": ([],),
    "max_tool_calls": (),
    "max_tokens": (),
    "moderation": (),
    "n": (1,),
    "previous_response_id": (),
    "prompt": (),
    "reasoning": ({}, {"effort": "none"}),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "stream_options": ({}, {"include_obfuscation": False}),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
PART_TYPES = ("input_text", "output_text", "reasoning_text", "text")

Turn = dict[str, Any]


def _content(value: object) -> str:
    return text_parts(value, PART_TYPES)


class InputItem(Body):
    """A turn, a call, what a call gave, or reasoning."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["system", "developer", "user", "assistant"] | None = None
    content: Annotated[str, PlainValidator(_content, json_schema_input_type=Content)] = ""
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: Annotated[str, PlainValidator(_content, json_schema_input_type=Content)] = ""


def _items(value: object) -> object:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponseTool(OfferedFunction):
    """A function that the model may call."""

    type: Literal["function"]


_FORMAT_FIELDS = set(TextFormat.model_fields)
_TOOL_FIELDS = set(ResponseTool.model_fields)
"""What is repeated of a tool: nothing that wasn't checked."""


class ResponsesBody(SamplingBody):
    """The body of ``POST /v1/responses``."""

    input: Annotated[
        list[InputItem],
        BeforeValidator(_items, json_schema_input_type=str | list[InputItem]),
    ] = Field(min_length=1)
    instructions: str | None = None
    max_output_tokens: int | None = None
    text: TextOptions | None = None
    tools: list[ResponseTool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None


def read_responses(body: bytes, models: Models, defaults: Defaults) -> Call:
    """Read the body of ``POST /v1/responses``; raises as ``read_chat`` does."""
    asked = parse(ResponsesBody, body)
    refuse(asked, REFUSED_IN_RESPONSES)
    model = model_named(models, asked.model)
    functions = asked.tools or []
    choice = tool_choice(asked.tool_choice, functions)
    tools = offered(functions, choice, "tools[{}].")
    limit = asked.max_output_tokens
    request = TextRequest(
        prompt=(),
        sampling=sampling_of(asked, model, defaults),
        max_new_tokens=None if limit is None else positive("max_output_tokens", limit),
        stop=asked.stop,
        timeout_seconds=defaults.timeout_seconds,
    )
    single = asked.parallel_tool_calls is False
    output = output_terms(model, tools, single_call=single)
    request, output = prompted(model, _turns(asked), tools, request, output)
    fields = [f"tools[{index}].parameters" for index in range(len(functions))]
    request = constrained(model, request, output, text_format(asked.text), choice, fields)
    if not request.prompt:
        raise InvalidArgumentError("input", "it has no tokens; at least one is needed")
    return Call(
        model,
        (request,),
        n=1,
        stream=bool(asked.stream),
        include_usage=False,
        output=output,
        echo=_echo(asked),
    )


def _turns(asked: ResponsesBody) -> list[Turn]:
    turns: list[Turn] = []
    if asked.instructions is not None:
        turns.append({"role": "system", "content": asked.instructions})
    return turns + _item_turns(asked.input)


def _item_turns(items: Sequence[InputItem]) -> list[Turn]:
    """One turn a message; reasoning and calls join the assistant's turn beside them."""
    turns: list[Turn] = []
    open_turn: Turn | None = None
    for index, item in enumerate(items):
        where = f"input[{index}]."
        if item.type == "message" and item.role is None:
            raise InvalidArgumentError(f"{where}role", "it is required")
        if item.type == "function_call_output":
            open_turn = None
            name = _required(item.call_id, f"{where}call_id")
            turns.append({"role": "tool", "content": item.output, "tool_call_id": name})
        elif item.type == "message" and item.role != "assistant":
            open_turn = None
            role = "system" if item.role == "developer" else item.role
            turns.append({"role": role, "content": item.content})
        else:
            if open_turn is None or not _joins(open_turn, item):
                open_turn = {"role": "assistant", "content": ""}
                turns.append(open_turn)
            _join(open_turn, item, where)
    return turns


def _joins(turn: Turn, item: InputItem) -> bool:
    """Whether an assistant's item goes on with a turn: reasoning, text and calls in this order."""
    if item.type == "function_call":
        return True
    return not turn["content"] and "tool_calls" not in turn and item.type == "message"


def _join(turn: Turn, item: InputItem, where: str) -> None:
    if item.type == "message":
        turn["content"] = item.content
    elif item.type == "reasoning":
        turn["reasoning_content"] = item.content
    else:
        call = earlier_call(
            _required(item.call_id, f"{where}call_id"),
            _required(item.name, f"{where}name"),
            arguments_of(item.arguments or "", where),
        )
        turn.setdefault("tool_calls", []).append(call)


def _required(value: str | None, name: str) -> str:
    if value is None:
        raise InvalidArgumentError(name, "it is required")
    return value


def _echoed_format(asked: ResponsesBody) -> dict[str, object]:
    wanted = asked.text.format if asked.text is not None else None
    if wanted is None:
        return {"type": "text"}
    return wanted.model_dump(include=_FORMAT_FIELDS, exclude_none=True, by_alias=True)


def _echo(asked: ResponsesBody) -> dict[str, object]:
    """What OpenAI's ``response`` object repeats of the request."""
    return {
        "instructions": asked.instructions,
        "max_output_tokens": asked.max_output_tokens,
        "metadata": {},
        "parallel_tool_calls": asked.parallel_tool_calls is not False,
        "previous_response_id": None,
        "store": False,
        "temperature": 1.0 if asked.temperature is None else asked.temperature,
        "text": {"format": _echoed_format(asked)},
        "tool_choice": asked.tool_choice or "auto",
        "tools": [
            tool.model_dump(include=_TOOL_FIELDS, exclude_none=True) | {"strict": bool(tool.strict)}
            for tool in asked.tools or ()
        ],
        "top_p": 1.0 if asked.top_p is None else asked.top_p,
        "truncation": "disabled",
    }
