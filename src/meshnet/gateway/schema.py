"""OpenAI's request bodies as this gateway takes them.

Types are strict: no text for a number, no 1.0 for an integer. ``null`` is the same as leaving a
parameter out. Three kinds of parameters are not fields of the models below:

* refused, if they are set to anything but a value that changes nothing: the ``REFUSED`` tables.
  They ask for something that isn't offered, so an answer without it would be a wrong answer;
* ignored, since they change nothing about the text: ``user``, ``metadata``, ``safety_identifier``,
  ``prediction``, ``prompt_cache_*``;
* unknown ones, which are ignored too: clients send the extensions of many servers to each.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, ValidationError
from pydantic_core import PydanticCustomError

from meshnet.domain.errors import InputError, InvalidArgumentError
from meshnet.domain.sampling import MAX_TOP_LOGPROBS

MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 1000
"""Of one stop string: each choice of an answer prepares for each character."""
MAX_CHOICES = 16
"""Largest ``n``."""
MAX_TOOLS = 128
MAX_PROMPTS = 64
"""Most prompts of one request, and most generations of one."""

_Finite = TypeVar("_Finite", bound=dict[str, Any] | bool)

_OWN = "own"
"""The type of errors found here, whose messages need nothing added."""

_Strings = str | list[str] | None
Content = str | list[dict[str, Any]] | None
"""What a content looks like before it is read."""

Refused = Mapping[str, tuple[object, ...]]
"""Parameter names with the values that ask for nothing."""

REFUSED_IN_CHAT: Refused = {
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "moderation": (),
    "reasoning_effort": ("none",),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
REFUSED_IN_COMPLETION: Refused = {
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}
REFUSED_IN_MESSAGE: Refused = {
    "audio": (),
    "function_call": (),
    "refusal": ("",),
}


def text_parts(value: object, kinds: tuple[str, ...] = ("text",)) -> str:
    """Text, or text parts joined by line ends; null is empty text."""
    if value is None or isinstance(value, str):
        return value or ""
    if not isinstance(value, list):
        raise PydanticCustomError(_OWN, "must be a string, a list of text parts or null")
    texts = []
    for index, part in enumerate(value):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if isinstance(part, dict) else None
        if kind not in kinds:
            raise PydanticCustomError(
                _OWN,
                "part {index} has the type {kind}, but only text parts are offered",
                {"index": index, "kind": _short(kind)},
            )
        if not isinstance(text, str):
            raise PydanticCustomError(
                _OWN, "the text of part {index} must be a string", {"index": index}
            )
        texts.append(text)
    return "\n".join(texts)


def _content(value: object) -> str:
    return text_parts(value)


def _stop(value: object) -> tuple[str, ...]:
    """One stop string or a list of them; null is none."""
    if value is None:
        return ()
    strings = [value] if isinstance(value, str) else value
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise PydanticCustomError(_OWN, "must be a string, a list of strings or null")
    if len(strings) > MAX_STOP_STRINGS:
        raise PydanticCustomError(
            _OWN,
            "{count} strings are too many; send {limit} at most",
            {"count": len(strings), "limit": MAX_STOP_STRINGS},
        )
    if any(len(item) > MAX_STOP_CHARACTERS for item in strings):
        raise PydanticCustomError(
            _OWN,
            "a stop string may have {limit} characters at most",
            {"limit": MAX_STOP_CHARACTERS},
        )
    return tuple(strings)


def _prompts(value: object) -> tuple[str | tuple[int, ...], ...]:
    """Text or token ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list):
        if len(value) > MAX_PROMPTS and isinstance(value[0], str | list):
            raise PydanticCustomError(
                _OWN,
                "{count} prompts are too many; send {limit} at most",
                {"count": len(value), "limit": MAX_PROMPTS},
            )
        if value and all(isinstance(item, str) or _is_tokens(item) for item in value):
            return tuple(item if isinstance(item, str) else tuple(item) for item in value)
        if _is_tokens(value):
            return (tuple(value),)
    raise PydanticCustomError(
        _OWN, "must be a string, a list of token ids, or a list of strings or of such lists"
    )


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and all(type(item) is int for item in value)


def _finite(schema: _Finite) -> _Finite:
    """The schema, which answers repeat as JSON: infinity and NaN could be written by no answer."""
    unseen: list[object] = [schema]
    while unseen:
        value = unseen.pop()
        if isinstance(value, dict):
            unseen += value.values()
        elif isinstance(value, list):
            unseen += value
        elif isinstance(value, float) and not math.isfinite(value):
            raise PydanticCustomError(_OWN, "must hold finite numbers alone, none beyond 1.8e308")
    return schema


class Body(BaseModel):
    """What all bodies share; parameters that aren't fields stay in ``model_extra``."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True, allow_inf_nan=False)


class StreamOptions(Body):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class CalledFunction(Body):
    """What an earlier call called."""

    name: str
    arguments: str
    """The text of a JSON object."""


class EarlierCall(Body):
    """A call in a turn that is over."""

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(Body):
    """One turn of a conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, PlainValidator(_content, json_schema_input_type=Content)] = ""
    reasoning_content: str | None = None
    name: str | None = None
    tool_calls: list[EarlierCall] | None = None
    tool_call_id: str | None = None


class OfferedFunction(Body):
    """A function that the model may call."""

    name: str = Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")
    description: str | None = None
    parameters: Annotated[dict[str, Any], AfterValidator(_finite)] | None = None
    """A JSON schema of the arguments."""
    strict: bool | None = None
    """Whether the arguments follow the schema even where the model is free to call or not."""


class Tool(Body):
    """A tool that the model may use."""

    type: Literal["function"]
    function: OfferedFunction


_Schema = Annotated[dict[str, Any] | bool, AfterValidator(_finite)]


class NamedSchema(Body):
    """A JSON schema with what OpenAI wants to know of it."""

    name: str | None = None
    description: str | None = None
    schema_: _Schema = Field(alias="schema")
    strict: bool | None = None
    """Answers follow the schema in any case."""


class ResponseFormat(Body):
    """What a chat's answer is."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None


class TextFormat(Body):
    """What a response's text is: the same, with the schema beside its type."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: _Schema | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(Body):
    """How a response's text comes."""

    format: TextFormat | None = None


class SamplingBody(Body):
    """Parameters of every generation. Their bounds are :class:`SamplingParams`' own."""

    model: str
    stream: bool | None = None
    stop: Annotated[tuple[str, ...], PlainValidator(_stop, json_schema_input_type=_Strings)] = ()
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[int, Annotated[float, Field(ge=-100, le=100)]] | None = None
    grammar: str | None = None
    """GBNF that the answer must follow; an extension of llama-server."""


class GenerationBody(SamplingBody):
    """Parameters of answers with numbered choices."""

    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None


class ChatBody(GenerationBody):
    """The body of ``POST /v1/chat/completions``."""

    messages: list[Message] = Field(min_length=1)
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = Field(default=None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)


class CompletionBody(GenerationBody):
    """The body of ``POST /v1/completions``."""

    prompt: Annotated[
        tuple[str | tuple[int, ...], ...],
        PlainValidator(_prompts, json_schema_input_type=str | list[int] | list[str | list[int]]),
    ]
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)


BodyT = TypeVar("BodyT", bound=Body)


def parse(kind: type[BodyT], body: bytes) -> BodyT:
    """Read a JSON body; raises :class:`InputError`, which names the parameter that is at fault."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
    problem = first["msg"][:1].lower() + first["msg"][1:]
    field = _path(first["loc"])
    if first["type"] == "json_invalid":
        raise InputError(f"the body is no JSON text: {problem.removeprefix('invalid JSON: ')}")
    if not field:
        raise InputError(f"the body must be a JSON object, but it is {_short(first['input'])}")
    if first["type"] == "missing":
        raise InvalidArgumentError(field, "it is required")
    if first["type"] == _OWN:
        raise InvalidArgumentError(field, problem)
    raise InvalidArgumentError(field, f"{problem}, but it is {_short(first['input'])}")


def refuse(body: Body, refused: Refused, where: str = "") -> None:
    """Raise :class:`InvalidArgumentError` if ``body`` asks for something that isn't offered."""
    for name, value in (body.model_extra or {}).items():
        neutral = refused.get(name)
        if neutral is None or value is None or any(_same(value, item) for item in neutral):
            continue
        advice = f" or send {_short(neutral[0])}" if neutral else ""
        raise InvalidArgumentError(
            f"{where}{name}", f"{_short(value)} isn't offered here; leave it out{advice}"
        )


def _same(value: object, neutral: object) -> bool:
    # In Python, True equals 1 and False equals 0; in JSON they don't.
    return type(value) is type(neutral) and value == neutral


def _path(location: tuple[int | str, ...]) -> str:
    parts = [f"[{part}]" if isinstance(part, int) else f".{part}" for part in location]
    return "".join(parts).removesuffix(".[key]").removeprefix(".")


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
