"""How each family of models writes a call of a tool.

A grammar is a generator that is sent one character after the other, beginning with the one after
the marker that opened it. It yields a call with the character that completes it, else None,
returns when what follows isn't its own any more, and raises :class:`NoCallError` for a
character that no call of its family can have in that place. So where the text was cut into pieces
can't change what is found.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from typing import Any, NoReturn

from meshnet.session.tools.parts import ToolCall, Tools

Steps = Generator[ToolCall | None, str, None]
Grammar = Callable[[str, Tools], Steps]
"""Made of the opening marker and the tools on offer."""

CALL_KEYS = frozenset({"name", "type", "parameters", "arguments"})
"""One of them comes first in a call that no marker begins."""


class NoCallError(Exception):
    """The text isn't a call after all; it is caught by the parser, which gives it out as text."""


def tagged(opener: str, tools: Tools) -> Steps:
    """``<tool_call>`` with a JSON object, or with ``<function=...>`` and its parameters.

    The first is the format of Hermes and Qwen, the second that of Qwen3-Coder, whose calls may
    also lack the tag around them. The closing tags are left to the parser.
    """
    if opener == "<function=":
        yield from _function(tools)
        return
    character = yield from _after_space()
    if character == "{":
        yield _call(_json_value((yield from _json_text(character))))
        return
    yield from _literal("<function=", character)
    yield from _function(tools)


def llama(opener: str, tools: Tools) -> Steps:
    """``{"name": ..., "parameters": ...}``, after ``<|python_tag|>`` or as the whole answer.

    Several are separated by semicolons, commas or space. Without the marker, the name must be
    one on offer: an answer may be a JSON object and no call.
    """
    bare = opener == "{"
    character = opener if bare else (yield from _after_space())
    while True:
        if character != "{":
            _refuse(f"{character!r} begins no call")
        text = yield from _json_text(character, CALL_KEYS if bare else None)
        value = _json_value(text)
        if bare and (str(value.get("name")) not in tools or _given(value) is None):
            _refuse("no tool of that name is on offer")
        character = yield _call(value)
        while character in ";, \t\r\n":
            character = yield None


def mistral(_opener: str, _tools: Tools) -> Steps:
    """``[TOOL_CALLS]`` with an array of calls, or with ``name[ARGS]{...}``.

    The array's closing bracket is left to the parser.
    """
    character = yield from _after_space()
    if character == "[":
        yield from _array()
        return
    name = yield from _until(("[ARGS]", "[CALL_ID]", "{"), character)
    if name.endswith("[CALL_ID]"):
        yield from _until(("[ARGS]",))
    first = "{" if name.endswith("{") else (yield from _after_space())
    name = name.removesuffix("{").removesuffix("[ARGS]").removesuffix("[CALL_ID]").strip()
    yield _named(name, _json_value((yield from _json_text(first))))


def deepseek(opener: str, _tools: Tools) -> Steps:
    """:data:`DEEPSEEK_CALL` with a name and arguments, which some versions fence."""
    if opener != DEEPSEEK_CALL:
        yield from _literal(DEEPSEEK_CALL, (yield from _after_space()))
    kind = yield from _until((DEEPSEEK_SEPARATOR,))
    name = kind.removesuffix(DEEPSEEK_SEPARATOR)
    character = yield from _after_space()
    if character != "{":
        name = yield from _until(("\n",), character)
        yield from _literal("```json", (yield from _after_space()))
        character = yield from _after_space()
    yield _named(name.strip(), _json_value((yield from _json_text(character))))


DEEPSEEK_CALL = "<｜tool▁call▁begin｜>"  # noqa: RUF001 - the model's own marker
DEEPSEEK_SEPARATOR = "<｜tool▁sep｜>"  # noqa: RUF001


def _array() -> Steps:
    character = yield from _after_space()
    while True:
        following = yield _call(_json_value((yield from _json_text(character))))
        while following.isspace():
            following = yield None
        if following == "]":
            return
        if following != ",":
            _refuse(f"{following!r} follows no call in an array")
        character = yield from _after_space()


def _function(tools: Tools) -> Steps:
    name = (yield from _until((">",))).removesuffix(">").strip()
    types = _types(tools.get(name, {}))
    arguments: dict[str, object] = {}
    while True:
        character = yield from _after_space()
        tag = yield from _until((">", "="), character)
        if tag == "</function>":
            break
        if tag != "<parameter=":
            _refuse(f"{tag!r} begins no parameter")
        key = (yield from _until((">",))).removesuffix(">").strip()
        value = (yield from _until(("</parameter>",))).removesuffix("</parameter>")
        arguments[key] = _typed(value.removeprefix("\n").removesuffix("\n"), types.get(key))
    yield _named(name, arguments)


def _types(schema: Mapping[str, object]) -> Mapping[str, object]:
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        return {}
    return {key: it.get("type") for key, it in properties.items() if isinstance(it, dict)}


def _typed(text: str, kind: object) -> object:
    """A parameter's value: text where the schema says so, else JSON where it is some."""
    if kind == "string" or (isinstance(kind, list) and "string" in kind and text != "null"):
        return text
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError, NoCallError):
        return text


def _after_space() -> Generator[None, str, str]:
    character = yield None
    while character.isspace():
        character = yield None
    return character


def _literal(text: str, first: str) -> Generator[None, str, None]:
    """Take ``text``, whose first character is there already."""
    if first != text[0]:
        _refuse(f"{first!r} instead of {text!r}")
    for expected in text[1:]:
        if (yield None) != expected:
            _refuse(f"not {text!r}")


def _until(ends: tuple[str, ...], first: str = "") -> Generator[None, str, str]:
    """All text up to the first of ``ends``, that included."""
    text = [first]
    lasts = {end[-1] for end in ends}
    longest = max(map(len, ends))
    while not (text[-1] in lasts and "".join(text[-longest:]).endswith(ends)):
        text.append((yield None))
    return "".join(text)


def _json_text(first: str, keys: frozenset[str] | None = None) -> Generator[None, str, str]:
    """The text of a JSON object by its brackets; its first key must be one of ``keys``."""
    if first != "{":
        _refuse(f"{first!r} begins no JSON object")
    text, depth, quoted, escaped = [first], 1, False, False
    while depth:
        character = yield None
        text.append(character)
        if escaped:
            escaped = False
        elif quoted:
            escaped = character == "\\"
            if character == '"':
                quoted = False
                if keys is not None and "".join(text[1:]).strip().strip('"') not in keys:
                    _refuse("the first key isn't a call's")
                keys = None
        elif character == '"':
            quoted = True
        elif character in "{[":
            depth += 1
        elif character in "}]":
            depth -= 1
    return "".join(text)


def _json_value(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        _refuse("no valid JSON")
    if not isinstance(value, dict):
        _refuse("no JSON object")
    return value


def _given(value: Mapping[str, object]) -> object:
    return value.get("arguments", value.get("parameters"))


def _call(value: Mapping[str, object]) -> ToolCall:
    given = _given(value)
    if isinstance(given, str):
        given = _json_value(given)
    return _named(value.get("name"), {} if given is None else given)


def _named(name: object, arguments: object) -> ToolCall:
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        _refuse("a call needs a name and an object of arguments")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        # Half of a surrogate pair is JSON, but no text that could be sent.
        (name + text).encode()
    except (ValueError, RecursionError):
        _refuse("a value that JSON can't hold")
    return ToolCall(name, text)


def _refuse(why: str) -> NoReturn:
    raise NoCallError(why)
