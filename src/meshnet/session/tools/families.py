"""Which format a model writes calls and reasoning in, told by its chat template's text."""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshnet.session.tools.grammars import (
    DEEPSEEK_CALL,
    DEEPSEEK_SEPARATOR,
    Grammar,
    deepseek,
    llama,
    mistral,
    tagged,
)


@dataclass(frozen=True, slots=True)
class Family:
    """One format of calls."""

    name: str
    signs: tuple[str, ...]
    """Texts that a template of this family has, all of them."""
    openers: tuple[str, ...]
    """What a call begins with."""
    grammar: Grammar
    closers: tuple[str, ...] = ()
    """What may follow a call and is no text."""
    inner: tuple[str, ...] = ()
    """Further markers that may be control tokens."""
    bare: str = ""
    """What begins a call too, where the answer begins with it."""
    foreign: tuple[str, ...] = ()
    """Texts that only templates of another format have."""

    def writes(self, template: str) -> bool:
        """Whether models with this template write calls so, of tools that it tells them."""
        if not re.search(r"\btools\b", template) or any(it in template for it in self.foreign):
            return False
        return all(sign in template for sign in self.signs)


FAMILIES = (
    Family(
        "deepseek",
        (DEEPSEEK_CALL,),
        ("<｜tool▁calls▁begin｜>", DEEPSEEK_CALL),  # noqa: RUF001 - the model's own markers
        deepseek,
        closers=("```", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"),  # noqa: RUF001
        inner=(DEEPSEEK_SEPARATOR,),
    ),
    Family(
        "mistral",
        ("[TOOL_CALLS]",),
        ("[TOOL_CALLS]",),
        mistral,
        closers=("]",),
        inner=("[ARGS]", "[CALL_ID]"),
    ),
    Family(
        "qwen-xml",
        ("<tool_call>", "<function=", "<parameter="),
        ("<tool_call>", "<function="),
        tagged,
        closers=("</tool_call>",),
    ),
    Family(
        "hermes",
        ("<tool_call>", '"arguments"'),
        ("<tool_call>",),
        tagged,
        closers=("</tool_call>",),
        foreign=("<arg_key>", "<tool_calls>", "<|tool_call>"),
    ),
    Family(
        "llama",
        ("<|python_tag|>",),
        ("<|python_tag|>",),
        llama,
        bare="{",
        foreign=("<function=",),
    ),
    Family(
        "llama",
        ("<|start_header_id|>", '"parameters": dictionary of argument name'),
        ("<|python_tag|>",),
        llama,
        bare="{",
    ),
)
"""Looked through in this order."""

THOUGHTS = (("<think>", "</think>"), ("[THINK]", "[/THINK]"))
"""What reasoning begins and ends with."""


@dataclass(frozen=True, slots=True)
class OutputFormat:
    """What is to be looked for in a model's output."""

    calls: Family | None = None
    thoughts: tuple[str, str] | None = None


def output_format(template: str | None) -> OutputFormat:
    """The format of the models that have this chat template."""
    text = template or ""
    return OutputFormat(
        next((family for family in FAMILIES if family.writes(text)), None),
        next((pair for pair in THOUGHTS if all(marker in text for marker in pair)), None),
    )
