"""Turns that are more than a text: calls of tools, and an answer that was begun."""

from __future__ import annotations

import json
from typing import Any

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.tokenizer import CHATML
from meshnet.session.template import ChatTemplate

USER = {"role": "user", "content": "Hi"}
ARGUMENTS = {"city": "Tromsø", "days": [1, None]}
CALL = {
    "id": "123456789",
    "type": "function",
    "function": {"name": "weather", "arguments": ARGUMENTS},
}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
LOOP = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% for c in m.tool_calls or [] %}"
END = "{% endfor %}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
THINKER = CHATML.replace("assistant\\n'", "assistant\\n<think>\\n'")


def prompt(source: str, *messages: dict[str, Any]) -> str:
    return ChatTemplate(source, "<s>", "</s>").prompt(messages)


@pytest.mark.parametrize(
    "written",
    [
        "{{ c.function.name }}={{ c.function.arguments | tojson }}",
        "{{ c.function.name + '=' + c.function.arguments }}",
        "{% set a = c.function.arguments %}{{ c.function.name }}="
        "{% if a is string %}{{ a }}{% else %}{{ a | tojson }}{% endif %}",
        "{% if m.content is none %}{{ c.function.name + '=' + c.function.arguments }}{% endif %}",
    ],
    ids=["as an object", "as text", "either", "as text beside no content"],
)
def test_a_call_reaches_a_template_in_the_form_it_writes(written: str) -> None:
    told = prompt(LOOP + written + END, USER, CALLING, {"role": "tool", "content": "sun"})
    name, _, rest = told.partition("weather=")
    assert name.startswith("user:Hi;assistant:")
    arguments, end = json.JSONDecoder().raw_decode(rest)
    assert arguments == ARGUMENTS
    assert rest[end:] == "tool:sun;assistant:"


def test_a_template_that_knows_no_calls_gets_the_usual_form() -> None:
    assert prompt(CHATML, USER, CALLING).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize(
    "content", ["Once upon", [{"type": "text", "text": "Once"}, {"type": "text", "text": "upon"}]]
)
def test_an_answer_that_was_begun_is_gone_on_with(content: object) -> None:
    begun = {"role": "assistant", "content": content}
    text = content if isinstance(content, str) else "Once\nupon"
    assert prompt(CHATML, USER, begun) == prompt(CHATML, USER) + text
    assert prompt(CHATML, USER, begun, USER).endswith("<|im_start|>assistant\n")


@pytest.mark.parametrize("content", ["", None, []])
def test_an_empty_beginning_begins_nothing(content: object) -> None:
    assert prompt(CHATML, USER, {"role": "assistant", "content": content}) == prompt(CHATML, USER)


def test_a_turn_with_calls_is_over() -> None:
    told = prompt(CHATML, USER, CALLING | {"content": "I look."})
    assert told.endswith("I look.<|im_end|>\n<|im_start|>assistant\n")


@pytest.mark.parametrize(("thought", "shown"), [(None, ""), ("Hm.", "Hm.")])
def test_an_answer_that_was_begun_ends_the_reasoning_before_it(
    thought: str | None, shown: str
) -> None:
    begun = {"role": "assistant", "content": "Once", "reasoning_content": thought}
    assert prompt(THINKER, USER, begun).endswith(
        f"<|im_start|>assistant\n<think>\n{shown}\n</think>\n\nOnce"
    )


def test_a_beginning_of_another_form_is_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError, match=r"messages\[1\].content"):
        prompt(CHATML, USER, {"role": "assistant", "content": 5})


@pytest.mark.parametrize("content", ["", None])
@pytest.mark.parametrize("role", ["system", "user", "assistant", "tool"])
def test_an_empty_turn_is_a_turn(role: str, content: object) -> None:
    told = prompt(CHATML, {"role": role, "content": content}, USER)
    assert told.startswith(f"<|im_start|>{role}\n<|im_end|>\n<|im_start|>user\nHi")
