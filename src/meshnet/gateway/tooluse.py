"""Tools in a request: what is offered to the model, and what it called before."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.formats import ToolChoice
from meshnet.gateway.schema import EarlierCall, OfferedFunction
from meshnet.session.service import ModelService
from meshnet.session.tools.families import OutputFormat, output_format
from meshnet.session.tools.parser import OutputTerms

NO_SCHEMA: dict[str, object] = {"type": "object", "properties": {}}
"""The parameters of a function that has none."""
PROMPT_END = 8
"""Tokens of a prompt's end that may hold the marker of reasoning."""

TemplateTool = dict[str, object]


def offered(
    functions: Sequence[OfferedFunction], choice: ToolChoice, where: str = "tools[{}].function."
) -> list[TemplateTool]:
    """The tools as chat templates know them; none if the model is not to use any.

    ``where`` names a function in complaints. Raises :class:`InvalidArgumentError` for a function
    that is there twice.
    """
    names: set[str] = set()
    for index, function in enumerate(functions):
        if function.name in names:
            raise InvalidArgumentError(
                f"{where.format(index)}name", f"{function.name!r} is there twice"
            )
        names.add(function.name)
    return [] if choice.hidden else [_template_tool(function) for function in functions]


def output_terms(
    model: ModelService, tools: Sequence[TemplateTool], *, single_call: bool
) -> OutputTerms:
    """What to look for in an answer of the model.

    Raises :class:`InvalidArgumentError` if there are tools, and how the model calls them isn't
    known.
    """
    form = output_format(model.tokenizer.chat_template)
    if tools and form.calls is None:
        raise InvalidArgumentError(
            "tools",
            f"the chat template of {model.name} has no form of tool calls that is known here; "
            "leave them out",
        )
    functions = [tool["function"] for tool in tools]
    schemas = {it["name"]: it["parameters"] for it in functions if isinstance(it, dict)}
    return OutputTerms(form, schemas if tools else None, single_call=single_call)


def thinking(model: ModelService, prompt: Sequence[int], form: OutputFormat) -> bool:
    """Whether the prompt ends within reasoning, which the answer goes on with."""
    if form.thoughts is None:
        return False
    end = b"".join(model.tokenizer.piece(it, special=True) for it in prompt[-PROMPT_END:])
    return end.rstrip().endswith(form.thoughts[0].encode())


def shown_tokens(model: ModelService, terms: OutputTerms) -> frozenset[int]:
    """The control tokens among the markers that are looked for."""
    shown = set()
    for marker in terms.markers:
        ids = model.tokenizer.tokenize(marker, add_special=False, parse_special=True)
        if len(ids) == 1:
            shown.add(ids[0])
    return frozenset(shown)


def earlier_calls(calls: Sequence[EarlierCall], where: str) -> list[TemplateTool]:
    """Calls of an assistant's turn as chat templates know them, their arguments as objects."""
    return [
        earlier_call(
            call.id,
            call.function.name,
            arguments_of(call.function.arguments, f"{where}[{index}].function."),
        )
        for index, call in enumerate(calls)
    ]


def earlier_call(name: str, function: str, arguments: dict[str, object]) -> TemplateTool:
    """One call, whose id is ``name``, as chat templates know it."""
    called = {"name": function, "arguments": arguments}
    return {"id": name, "type": "function", "function": called}


def arguments_of(text: str, where: str) -> dict[str, object]:
    """The object that the arguments' text stands for; empty text is no arguments."""

    def finite(number: str) -> float:
        value = float(number)
        if not math.isfinite(value):
            raise ValueError
        return value

    try:
        # What stands for no finite number: NaN and Infinity, and 1e999 too.
        value = json.loads(text or "{}", parse_constant=finite, parse_float=finite)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidArgumentError(f"{where}arguments", "it must be the text of a JSON object")
    return value


def _template_tool(function: OfferedFunction) -> TemplateTool:
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.description or "",
            "parameters": NO_SCHEMA if function.parameters is None else function.parameters,
        },
    }
