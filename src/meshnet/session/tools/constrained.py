"""Grammars of answers: calls in a family's form, reasoning before the answer.

The forms are those that ``meshnet.session.tools.grammars`` reads; a test has each read what its
grammar allows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.tokenizer import Tokenizer
from meshnet.session.schema_grammar.convert import SchemaRules
from meshnet.session.schema_grammar.gbnf import (
    EMPTY,
    GrammarWriter,
    Range,
    characters,
    common_ranges,
    either,
    literal,
    minus,
    without,
)
from meshnet.session.tools.families import OutputFormat
from meshnet.session.tools.grammars import CALL_KEYS, DEEPSEEK_CALL, DEEPSEEK_SEPARATOR

MAX_CALLS: Final = 16
"""Calls of one answer."""
MAX_PARAMETERS: Final = 64
"""Of a call whose function doesn't say which it has."""
LINE: Final = "\n"
_END_OF_PARAMETER: Final = literal("\n</parameter>\n")
_FENCE: Final = literal("\n```")
_ANY: Final[Sequence[Range]] = ((0x01, 0xD7FF), (0xE000, 0x10FFFF))
_SPACE: Final = "".join(chr(code) for code in range(1, 0x3001) if chr(code).isspace())
"""What a reader skips before a call without a marker: no higher code is space."""
_SPACE_RANGES: Final = common_ranges([(ord(it), ord(it)) for it in _SPACE], _ANY)


@dataclass(frozen=True, slots=True)
class OfferedCall:
    """A function that may be called: its parameters' schema, and the parameter that it came in."""

    name: str
    schema: Mapping[str, object]
    field: str


class AnswerWriter:
    """Writes grammars of answers for one model."""

    def __init__(self, writer: GrammarWriter, tokenizer: Tokenizer, form: OutputFormat) -> None:
        self.writer = writer
        self.template = tokenizer.chat_template or ""
        self._tokenizer = tokenizer
        self._form = form

    def calls(self, functions: Sequence[OfferedCall], *, single: bool) -> str:
        """The body of one call or, unless ``single``, several.

        Raises :class:`InvalidArgumentError` naming what of a schema isn't offered.
        """
        family = self._form.calls
        if family is None:
            raise InvalidArgumentError("tools", "the model has no form of calls that is known here")
        return _FORMS[family.name](self, functions, 1 if single else MAX_CALLS)

    def after_reasoning(self, body: str, *, begun: bool) -> str:
        """``body`` after reasoning, which may be left out unless the prompt has ``begun`` it."""
        if self._form.thoughts is None:
            return body
        opening, closing = self._form.thoughts
        thought = f'{self.text_without(closing)} {self.marker(closing)} "\\n"{{0,2}}'
        return f"{thought} {body}" if begun else f"( {self.marker(opening)} {thought} )? {body}"

    def marker(self, text: str) -> str:
        """A marker: where it is a control token, which isn't text, this token."""
        ids = self._tokenizer.tokenize(text, add_special=False, parse_special=True)
        if len(ids) == 1 and not self._tokenizer.piece(ids[0], special=False):
            return f"<[{ids[0]}]>"
        return literal(text)

    def by_choice(self, calls: str) -> str:
        """The body of ``calls``, of text, or of text and then calls where the form knows that.

        Its text holds nothing that the form's reader would take for the beginning of a call.
        """
        family = self._form.calls
        if family is None:
            return calls
        text = self._text_rules(family.openers)
        return either([calls, self._no_object(text)]) if family.bare else f"{text['']} ( {calls} )?"

    def text_without(self, word: str) -> str:
        """Any text that ``word`` isn't a part of."""
        return self._text_rules((word,))[""]

    def _text_rules(self, words: Sequence[str]) -> Mapping[str, str]:
        """Rules for any text that none of ``words`` is a part of, where one of them has begun.

        By what of it was there; "" is the whole text's (Aho and Corasick, 1975).
        """
        begun = dict.fromkeys(word[:length] for word in words for length in range(len(word)))
        names = {it: self.writer.reserve() for it in begun}
        for start, name in names.items():
            steps = {it: _begun(words, start + it) for it in dict.fromkeys("".join(words))}
            # Few alternatives: libllama tries each of them for each token of the vocabulary.
            steps = {it: then for it, then in steps.items() if then != ""}
            bodies = [f"{characters(_others(steps))} {names['']}"]
            bodies += [f"{literal(it)} {names[then]}" for it, then in steps.items() if then]
            self.writer.define(name, " | ".join([*bodies, EMPTY]))
        return names

    def _no_object(self, text: Mapping[str, str]) -> str:
        """The name of a rule: any ``text`` but one that begins as a call without a marker.

        That is an object whose first key is a call's.
        """
        firsts = {start: name for start, name in text.items() if len(start) == 1}
        going_on = [f"{literal(start)} {name}" for start, name in firsts.items()]
        begin, inside = self.writer.reserve(), self.writer.reserve()
        for name, special in ((begin, "{"), (inside, '"')):
            others = _others([*_SPACE, special, *firsts])
            bodies = [f"{characters(_SPACE_RANGES)} {name}", f"{characters(others)} {text['']}"]
            after = inside if name == begin else self._no_key(firsts, text[""])
            bodies += [*going_on, f"{literal(special)} {after}", EMPTY]
            self.writer.define(name, " | ".join(bodies))
        return begin

    def _no_key(self, firsts: Iterable[str], after: str) -> str:
        """The name of a rule: a key that isn't a call's, its closing quote and what comes after."""
        # Nor one that a marker begins in: its reader would look for calls there.
        inner = _others(['"', "\\", *firsts])
        tail = self.writer.rule(f"{characters(inner)}*")
        return self.writer.rule(
            f'{without(self.writer, inner, sorted(CALL_KEYS), tail)} "\\"" {after}'
        )

    def objects(self, functions: Sequence[OfferedCall], key: str) -> str:
        """The name of a rule: a call as a JSON object, the arguments under ``key``."""
        bodies = []
        for it in functions:
            begin = literal(f'{{"name": {json.dumps(it.name)}, "{key}": ')
            bodies.append(f'{begin} {self.arguments(it)} "}}"')
        return self.writer.rule(" | ".join(bodies))

    def arguments(self, function: OfferedCall) -> str:
        """The body of a function's arguments as a JSON object."""
        rules = SchemaRules(self.writer, _object_schema(function), function.field)
        return rules.value()

    def several(self, call: str, separator: str, most: int) -> str:
        """A call and up to ``most - 1`` more."""
        if most == 1:
            return call
        more = self.writer.rule(f"{literal(separator)} {call}" if separator else call)
        return f"{call} {more}{{0,{most - 1}}}"


def _begun(words: Sequence[str], text: str) -> str | None:
    """The longest beginning of one of ``words`` that ``text`` ends with; None for a whole one."""
    if text.endswith(tuple(words)):
        return None
    starts = (text[at:] for at in range(len(text) + 1))
    return next(it for it in starts if any(word.startswith(it) for word in words))


def _others(taken: Iterable[str]) -> list[Range]:
    """All characters but these."""
    return minus(_ANY, [(ord(it), ord(it)) for it in taken])


def _object_schema(function: OfferedCall) -> dict[str, object]:
    """The schema, which may leave out that arguments are an object."""
    schema = dict(function.schema)
    if schema.setdefault("type", "object") != "object":
        raise InvalidArgumentError(function.field, "arguments must be of the type object")
    return schema


def _hermes(answer: AnswerWriter, functions: Sequence[OfferedCall], most: int) -> str:
    called = answer.objects(functions, "arguments")
    opening, closing = answer.marker("<tool_call>"), answer.marker("</tool_call>")
    call = answer.writer.rule(f'{opening} "\\n" {called} "\\n" {closing}')
    return answer.several(call, "\n", most)


def _qwen_xml(answer: AnswerWriter, functions: Sequence[OfferedCall], most: int) -> str:
    opening, closing = answer.marker("<tool_call>"), answer.marker("</tool_call>")
    bodies = []
    for it in functions:
        begin, end = literal(f"<function={it.name}>\n"), literal("</function>\n")
        bodies.append(f"{begin} {_xml_parameters(answer, it)} {end}")
    called = answer.writer.rule(" | ".join(bodies))
    call = answer.writer.rule(f'{opening} "\\n" {called} {closing}')
    return answer.several(call, "\n", most)


def _xml_parameters(answer: AnswerWriter, function: OfferedCall) -> str:
    schema = _object_schema(function)
    rules = SchemaRules(answer.writer, schema, function.field)
    rules.value()  # Refuses what isn't offered; the form is written here.
    if "properties" not in schema and schema.get("additionalProperties", True) is True:
        return _any_xml_parameters(answer)
    properties, required = schema.get("properties", {}), schema.get("required", [])
    parts = []
    for name, value in properties.items() if isinstance(properties, dict) else ():
        if value is False:
            continue
        if ">" in name or LINE in name:
            raise InvalidArgumentError(
                function.field, f"the name {json.dumps(name)} can't stand in this model's calls"
            )
        body = _xml_value(answer, rules, value, f"#/properties/{name}")
        whole = f"{literal(f'<parameter={name}>{LINE}')} {body} {_END_OF_PARAMETER}"
        must = isinstance(required, list) and name in required
        parts.append(answer.writer.rule(whole) + ("" if must else "?"))
    return " ".join(parts) or EMPTY


def _any_xml_parameters(answer: AnswerWriter) -> str:
    begin, end = literal("<parameter="), literal(f">{LINE}")
    name = f"{characters(_others('>' + LINE))}{{1,64}}"
    value = answer.text_without("</parameter>")
    one = answer.writer.rule(f"{begin} {name} {end} {value} {_END_OF_PARAMETER}")
    return f"{one}{{0,{MAX_PARAMETERS}}}"


def _xml_value(answer: AnswerWriter, rules: SchemaRules, schema: object, pointer: str) -> str:
    """A value as JSON, but text without quotes: what stands for it depends on the stated type."""
    kind = schema.get("type") if isinstance(schema, dict) else None
    kinds = [kind] if isinstance(kind, str) else kind
    if not isinstance(schema, dict) or not isinstance(kinds, list) or "string" not in kinds:
        return rules.of(schema, pointer)
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(listed, list) and all(isinstance(it, str) for it in listed):
        return either([literal(it) for it in listed])
    bound = {"pattern", "format", "minLength", "maxLength", "anyOf", "oneOf", "allOf", "$ref"}
    bound |= {"enum", "const"}
    for key in sorted(bound & schema.keys()):
        raise InvalidArgumentError(
            rules.field, f"at {pointer}: {key} of a text isn't offered in this model's calls"
        )
    return answer.text_without("</parameter>")


def _llama(answer: AnswerWriter, functions: Sequence[OfferedCall], most: int) -> str:
    return answer.several(answer.objects(functions, "parameters"), "; ", most)


def _mistral(answer: AnswerWriter, functions: Sequence[OfferedCall], most: int) -> str:
    if "[ARGS]" in answer.template:
        return _mistral_named(answer, functions, most)
    called = answer.objects(functions, "arguments")
    return f'{answer.marker("[TOOL_CALLS]")} "[" {answer.several(called, ", ", most)} "]"'


def _mistral_named(answer: AnswerWriter, functions: Sequence[OfferedCall], most: int) -> str:
    opening, middle = answer.marker("[TOOL_CALLS]"), answer.marker("[ARGS]")
    bodies = [f"{opening} {literal(it.name)} {middle} {answer.arguments(it)}" for it in functions]
    return answer.several(answer.writer.rule(" | ".join(bodies)), "", most)


def _deepseek(answer: AnswerWriter, functions: Sequence[OfferedCall], most: int) -> str:
    middle = answer.marker(DEEPSEEK_SEPARATOR)
    fenced = "```json" in answer.template
    bodies = []
    for it in functions:
        arguments = answer.arguments(it)
        if fenced:
            begin = literal(f"{it.name}\n```json\n")
            bodies.append(f'"function" {middle} {begin} {arguments} {_FENCE}')
        else:
            bodies.append(f"{literal(it.name)} {middle} {arguments}")
    begin, end = (answer.marker(f"<｜tool▁calls▁{it}｜>") for it in ("begin", "end"))  # noqa: RUF001
    closing = answer.marker("<｜tool▁call▁end｜>")  # noqa: RUF001
    call = answer.writer.rule(f"{answer.marker(DEEPSEEK_CALL)} {either(bodies)} {closing}")
    return f"{begin} {answer.several(call, LINE if fenced else '', most)} {end}"


_FORMS: Final[Mapping[str, Callable[[AnswerWriter, Sequence[OfferedCall], int], str]]] = {
    "hermes": _hermes,
    "qwen-xml": _qwen_xml,
    "llama": _llama,
    "mistral": _mistral,
    "deepseek": _deepseek,
}
"""By the family's name."""
