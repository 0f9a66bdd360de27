"""What an answer must look like: ``response_format``, ``tool_choice`` and ``grammar``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.schema import OfferedFunction, ResponseFormat, TextOptions, refuse
from meshnet.session.schema_grammar.convert import SchemaRules
from meshnet.session.schema_grammar.gbnf import GrammarWriter, either
from meshnet.session.service import ModelService, TextRequest
from meshnet.session.tools.constrained import AnswerWriter, OfferedCall
from meshnet.session.tools.parser import OutputTerms

ANY_OBJECT: Final[Mapping[str, object]] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Format:
    """JSON that follows a schema."""

    schema: object
    field: str
    """The parameter that it came in."""


@dataclass(frozen=True, slots=True)
class ToolChoice:
    """Whether the model may call, and whether it must."""

    hidden: bool = False
    """The tools aren't shown to the model."""
    required: bool = False
    name: str | None = None
    """The only function that may be called."""
    strict: frozenset[str] = frozenset()
    """The functions whose arguments must follow their schemas wherever they are called."""


def chat_format(asked: ResponseFormat | None) -> Format | None:
    """The format of a chat's answer; None for text."""
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Format(ANY_OBJECT, "response_format")
    if asked.json_schema is None:
        raise InvalidArgumentError("response_format.json_schema", "it is required")
    return Format(asked.json_schema.schema_, "response_format.json_schema.schema")


def text_format(asked: TextOptions | None) -> Format | None:
    """The format of a response's text; None for text."""
    if asked is not None:
        refuse(asked, {"verbosity": ("medium",)}, where="text.")
    if asked is None or asked.format is None or asked.format.type == "text":
        return None
    if asked.format.type == "json_object":
        return Format(ANY_OBJECT, "text.format")
    if asked.format.schema_ is None:
        raise InvalidArgumentError("text.format.schema", "it is required")
    return Format(asked.format.schema_, "text.format.schema")


def tool_choice(choice: object, functions: Sequence[OfferedFunction]) -> ToolChoice:
    """What ``tool_choice`` says, in the form of either endpoint, of the ``functions`` on offer.

    Raises :class:`InvalidArgumentError` for anything else, and for what can't be chosen.
    """
    names = [it.name for it in functions]
    strict = frozenset(it.name for it in functions if it.strict)
    if choice in (None, "auto"):
        return ToolChoice(strict=strict)
    if choice == "none":
        return ToolChoice(hidden=True)
    name: object = None
    if isinstance(choice, dict) and choice.get("type") == "function":
        inner = choice.get("function", choice)
        name = inner.get("name") if isinstance(inner, dict) else None
    if choice != "required" and not isinstance(name, str):
        raise InvalidArgumentError(
            "tool_choice",
            f'{json.dumps(choice)[:60]} isn\'t offered here; send "auto", "none", "required" or a '
            "function by its name",
        )
    if not names:
        raise InvalidArgumentError("tool_choice", "there are no tools to choose from")
    if isinstance(name, str) and name not in names:
        raise InvalidArgumentError("tool_choice", f"there is no tool of the name {name[:64]!r}")
    return ToolChoice(required=True, name=name if isinstance(name, str) else None, strict=strict)


def constrained(
    model: ModelService,
    request: TextRequest,
    output: OutputTerms,
    wanted: Format | None,
    choice: ToolChoice,
    fields: Sequence[str],
) -> TextRequest:
    """The request with the grammar that its answer must follow, if there is any.

    ``fields`` names the parameters of the functions' schemas, in their order. Raises
    :class:`InvalidArgumentError` for two grammars, for a schema with parts that aren't offered, and
    for a grammar that can't be followed.
    """
    own = request.sampling.grammar
    field = _field(own, wanted, choice)
    if field is None:
        return request
    if own and (wanted is not None or choice.required or output.tools):
        raise InvalidArgumentError(
            "grammar", "it can't hold beside tools or a response_format; leave one out"
        )
    grammar = own or _grammar(model, output, wanted, choice, fields)
    try:
        sampling = replace(request.sampling, grammar=grammar)
        model.require_grammar(grammar)
    except InvalidArgumentError as error:
        if error.details.get("field") != "grammar" or field == "grammar":
            raise
        problem = error.message.removeprefix("grammar: ")
        raise InvalidArgumentError(field, f"its grammar can't be used: {problem}") from error
    return replace(request, sampling=sampling)


def _field(own: str, wanted: Format | None, choice: ToolChoice) -> str | None:
    """The parameter that asks for a grammar; None if none does."""
    if own:
        return "grammar"
    if choice.required:
        return "tool_choice"
    if wanted is not None:
        return wanted.field
    return "tools" if choice.strict else None


def _grammar(
    model: ModelService,
    output: OutputTerms,
    wanted: Format | None,
    choice: ToolChoice,
    fields: Sequence[str],
) -> str:
    writer = GrammarWriter()
    answer = AnswerWriter(writer, model.tokenizer, output.form)
    bodies = []
    if wanted is not None and not choice.required:
        bodies.append(SchemaRules(writer, wanted.schema, wanted.field).value())
    if output.tools:
        free = wanted is None and not choice.required
        offered = [
            OfferedCall(name, ANY_OBJECT if free and name not in choice.strict else schema, field)
            for (name, schema), field in zip(output.tools.items(), fields, strict=True)
            if choice.name in (None, name)
        ]
        calls = answer.calls(offered, single=output.single_call or choice.name is not None)
        bodies.append(answer.by_choice(calls) if free else calls)
    body = bodies[0] if len(bodies) == 1 else either([writer.rule(it) for it in bodies])
    return writer.text(answer.after_reasoning(body, begun=output.thinking))
