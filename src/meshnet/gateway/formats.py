"""What an answer must look like: ``response_format``, ``tool_choice`` and ``grammar``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.schema import ResponseFormat, TextOptions, refuse
from meshnet.session.schema_grammar.convert import SchemaRules
from meshnet.session.schema_grammar.gbnf import GrammarWriter, either
from meshnet.session.service import ModelService, TextRequest
from meshnet.session.tools.constrained import AnswerWriter, OfferedCall
from meshnet.session.tools.parser import OutputTerms


@dataclass(frozen=True, slots=True)
class Format:
    """JSON that follows a schema; ``{"type": "object"}`` is any object."""

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


def chat_format(asked: ResponseFormat | None) -> Format | None:
    """The format of a chat's answer; None for text."""
    if asked is None or asked.type == "text":
        return None
    if asked.type == "json_object":
        return Format({"type": "object"}, "response_format")
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
        return Format({"type": "object"}, "text.format")
    if asked.format.schema_ is None:
        raise InvalidArgumentError("text.format.schema", "it is required")
    return Format(asked.format.schema_, "text.format.schema")


def tool_choice(choice: object, names: Sequence[str]) -> ToolChoice:
    """What ``tool_choice`` says, in the form of either endpoint; ``names`` are those on offer.

    Raises :class:`InvalidArgumentError` for anything else, and for what can't be chosen.
    """
    if choice in (None, "auto"):
        return ToolChoice()
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
    return ToolChoice(required=True, name=name if isinstance(name, str) else None)


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
    field = "grammar" if own else "tool_choice" if choice.required else wanted and wanted.field
    if not field:
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
        offered = [
            OfferedCall(name, schema, field)
            for (name, schema), field in zip(output.tools.items(), fields, strict=True)
            if choice.name in (None, name)
        ]
        bodies.append(answer.calls(offered, single=output.single_call or choice.name is not None))
    body = bodies[0] if len(bodies) == 1 else either([writer.rule(it) for it in bodies])
    return writer.text(answer.after_reasoning(body, begun=output.thinking))
