"""Chat templates: what they render, what they say when they fail, and what they can't use up."""

from __future__ import annotations

import time
import tracemalloc
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, TemplateError
from meshnet.engine.tokenizer import CHATML
from meshnet.session.meter import RenderLimits
from meshnet.session.template import ChatTemplate

USER = [{"role": "user", "content": "Hi"}]
SMALL = RenderLimits(
    output_characters=10_000, value_bytes=100_000, work_bytes=1_000_000, seconds=0.5
)


def render(source: str, messages: object = USER, **variables: object) -> str:
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: datetime(2026, 2, 3))
    return template.render(messages, **variables)  # type: ignore[arg-type]


def test_a_conversation_becomes_a_prompt() -> None:
    messages = [*USER, {"role": "assistant", "content": "Hello"}, *USER]
    turns = "<|im_start|>user\nHi<|im_end|>\n"
    answer = "<|im_start|>assistant\nHello<|im_end|>\n"
    assert render(CHATML, messages) == f"{turns}{answer}{turns}<|im_start|>assistant\n"
    assert render(CHATML, messages, add_generation_prompt=False) == turns + answer + turns


@pytest.mark.parametrize(
    ("source", "prompt"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>Hi</s>"),
        # Blocks take the blanks before them and the line break behind them.
        ("a\n  {% if true %}\nb\n  {% endif %}\nc", "a\nb\nc"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}{{ x }}", "1"),
        ("{{ tools | tojson }}", '[{"name": "<a> & \'é\'"}]'),
        ("{{ tools | tojson(indent=2) }}", '[\n  {\n    "name": "<a> & \'é\'"\n  }\n]'),
        ("{{ {'b': 1, 'a': 2} | tojson(separators=(',', ':')) }}", '{"b":1,"a":2}'),
        ("{{ strftime_now('%Y-%m-%d') }}", "2026-02-03"),
        ("{{ documents is none and tools is not none and missing is not defined }}", "True"),
        ("{{ enable_thinking }}", "False"),
        ("{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(1) ~ m('a') }}", "<1><a>"),
        ("{% set n = namespace(x=[]) %}{% for i in [3, 1] %}{% set n.x = n.x + [i] %}{% endfor %}"
         "{{ n.x | sort | join('+') }} {{ n.x[::-1] }}", "1+3 [1, 3]"),
        ("{% for k, v in {'a': 1}.items() %}{{ loop.index }}{{ loop.last }}{{ k }}{{ v }}"
         "{% endfor %}", "1Truea1"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}",
         "['Hi']"),
        ("{{ ' a<b '.strip().split('<')[-1] | upper }}{{ '%02d' % 7 }}{{ '{:>3}'.format(1) }}",
         "B07  1"),
        ("{% filter upper %}{% set b %}b{% endset %}a{{ b }}{% endfilter %}", "AB"),
        ("{% for x in [1, [2, [3]]] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}"
         "{{ x }}{% endif %}{% endfor %}", "123"),
    ],
)  # fmt: skip
def test_templates_render_as_hugging_face_renders_them(source: str, prompt: str) -> None:
    tools = [{"name": "<a> & 'é'"}]
    assert render(source, tools=tools, enable_thinking=False) == prompt


TEXT_ONLY = "{{ messages[-1].content.strip() }}"
EITHER = (
    "{% set c = messages[-1].content %}{% if c is string %}{{ c }}{% else %}"
    "{% for part in c %}[{{ part.text }}]{% endfor %}{% endif %}"
)
PARTS_ONLY = "{% for part in messages[-1].content %}[{{ part['text'] }}]{% endfor %}"
PRINTS = "{{ messages[-1].content }}"
PARTS = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]


@pytest.mark.parametrize(
    ("source", "content", "prompt"),
    [
        (TEXT_ONLY, "Hi", "Hi"),
        (TEXT_ONLY, PARTS, "one\ntwo"),
        (PRINTS, PARTS, "one\ntwo"),
        ("{{ messages[-1].content | tojson }}", PARTS, '"one\\ntwo"'),
        (EITHER, "Hi", "Hi"),
        (EITHER, PARTS, "[one][two]"),
        (PARTS_ONLY, "Hi", "[Hi]"),
        (PARTS_ONLY, PARTS, "[one][two]"),
        (PRINTS, None, ""),
        (PRINTS, "", ""),
    ],
)
def test_content_reaches_a_template_in_the_form_it_reads(
    source: str, content: object, prompt: str
) -> None:
    assert render(source, [{"role": "user", "content": content}]) == prompt


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        ({"content": "x"}, r"messages\[0\].role: a message needs a role"),
        ({"role": "user", "content": 3}, r"messages\[0\].content: it must be a text"),
        ({"role": "user", "content": [{"type": "image_url"}]}, r"every part must have the type"),
        ({"role": "user", "content": [{"type": "text"}]}, "a text part needs a text"),
    ],
)
def test_a_message_of_another_form_is_refused(message: object, complaint: str) -> None:
    with pytest.raises(InvalidArgumentError, match=complaint):
        render(CHATML, [message])


def test_the_templates_own_refusal_is_passed_on_with_its_line() -> None:
    source = "{% if messages %}\n{{ raise_exception('Roles must alternate!') }}\n{% endif %}"
    with pytest.raises(TemplateError, match="refuses this conversation: Roles must altern") as got:
        render(source)
    assert "(line 2 of the template)" in got.value.message
    assert got.value.details["line"] == "2"


@pytest.mark.parametrize(
    ("source", "complaint", "line"),
    [
        ("\n{% if %}", "isn't valid", "2"),
        ("\n\n{{ 'a' | center(9) }}", "isn't valid: No filter named 'center'", "3"),
        ("\n{{ messages.role.x }}", "failed: .* has no attribute 'role'", "2"),
        ("{% macro m() %}\n{{ 1 // 0 }}{% endmacro %}\n\n{{ m() }}", "failed: .*zero", "2"),
        ("{{ messages + 1 }}", "failed: can only concatenate list", "1"),
        ("{% include 'a' %}", "failed: no loader", "1"),
        ("{{ ''.__class__.__mro__ }}", "failed: .*unsafe", "1"),
        ("{{ messages.append(1) }}", "failed: .*unsafe", "1"),
        ("{{ {}['a'].b }}", "failed: .*no attribute 'a'", "1"),
    ],
)
def test_a_fault_in_a_template_is_told_with_its_line(
    source: str, complaint: str, line: str
) -> None:
    with pytest.raises(TemplateError, match=complaint) as got:
        render(source)
    assert got.value.details["line"] == line


@pytest.mark.parametrize("source", [None, "", " \n"])
def test_a_model_without_a_template_says_what_to_do(source: str | None) -> None:
    template = ChatTemplate(source, "", "")
    with pytest.raises(TemplateError, match=r"no chat template.*plain prompt to /v1/completions"):
        template.render(USER)


NESTED = (
    "{% set n = namespace(x=('a',), y=('a' * 9,)) %}{% for i in range(60) %}"
    "{% set n.x = (n.x, n.x) %}{% set n.y = (n.y, n.y) %}{% endfor %}"
)
"""Two values of 2**60 items each, that take 60 tuples each in memory."""

GREEDY = {
    "endless loops": "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
    "endless output": "{% for a in range(99999) %}xxxxxxxx{% endfor %}",
    "endless recursion": "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
    "bushy recursion": "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}"
    "{% endmacro %}{{ m(60) }}",
    "repeated text": "{{ 'x' * 10**12 }}",
    "repeated list": "{{ ([1] * 10**12) | length }}",
    "doubling": "{% set n = namespace(x='x') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}"
    "{% endfor %}",
    "doubling by plus": "{% set n = namespace(x=[1]) %}{% for i in range(60) %}"
    "{% set n.x = n.x + n.x %}{% endfor %}",
    "powers": "{{ 10 ** 10000000 }}",
    "products": "{% set n = namespace(x=3) %}{% for i in range(60) %}{% set n.x = n.x * n.x %}"
    "{% endfor %}",
    "printed tree": NESTED + "{{ n.x }}",
    "joined tree": NESTED + "{{ n.x ~ '' }}",
    "tree as text": NESTED + "{{ (n.x | string) | length }}",
    "tree as json": NESTED + "{{ n.x | tojson }}",
    "tree formatted": NESTED + "{{ '%s' % (n.x,) }}",
    "tree raised": NESTED + "{{ raise_exception(n.x) }}",
    "compared trees": NESTED + "{{ n.x == n.y }}",
    "tested trees": NESTED + "{{ n.x is eq(n.y) }}",
    "searched tree": NESTED + "{{ [n.x].index(n.y) }}",
    "sorted trees": NESTED + "{{ [n.x, n.y] | sort }}",
    "changed trees": NESTED + "{% for i in range(2) %}{{ loop.changed(n.x if i else n.y) }}"
    "{% endfor %}",
    "tree as key": NESTED + "{{ {n.x: 1} }}",
    "tree as index": NESTED + "{{ {}[n.x] }}",
    "tree as keys of dict": NESTED + "{{ dict([(n.x, 1)]) }}",
    "tree as name of a filter": NESTED + "{{ [1] | map(n.x) | list }}",
    "tree as attribute": NESTED + "{{ 'a' | attr(n.x) }}",
    "tree of views": "{% set n = namespace(x=['a']) %}{% for i in range(60) %}"
    "{% set n.x = {1: n.x, 2: n.x}.values() %}{% endfor %}{{ n.x }}",
    "namespace in itself": "{% set n = namespace() %}{% set n.a = [n, n] %}{{ n }}",
    "percent width": "{{ '%1000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (1000000000, 1) }}",
    "percent often": "{% set a = 'x' * 9999 %}{{ '" + "%(a)s" * 999 + "' % {'a': a} }}",
    "format width": "{{ '{:1000000000}'.format(1) }}",
    "format star": "{{ '{:{}}'.format(1, 1000000000) }}",
    "format found otherwise": "{{ ('{:1000000000}' | attr('format'))(1) }}",
    "format often": "{% set a = 'x' * 9999 %}{{ '" + "{0}" * 999 + "'.format(a) }}",
    "padding": "{{ 'a'.zfill(1000000000) }}",
    "padding found otherwise": "{{ ('a' | attr('center'))(1000000000) }}",
    "padding marked text": "{{ ('a' | safe).ljust(1000000000) }}",
    "bytes of a number": "{{ (1).to_bytes(1000000000, 'big') }}",
    "keys from a list": "{{ {}.fromkeys(range(99999)) }}",
    "replacing nothing": "{{ ('x' * 99999).replace('', 'y' * 99999) }}",
    "filter replacing": "{{ ('x' * 99999) | replace('', 'y' * 99999) }}",
    "joining": "{{ ('y' * 9999).join(range(9999) | map('string')) }}",
    "filter joining": "{{ range(9999) | join('y' * 9999) }}",
    "splitting": "{{ ('x' * 99999).split('x') | length }}",
    "listing letters": "{{ ('x' * 99999) | list | length }}",
    "indenting": "{{ ('\n' * 9999) | indent('y' * 9999) }}",
    "indenting json": "{{ [1] | tojson(indent=1000000000) }}",
    "parting json": "{{ [1, 2] | tojson(separators=('x' * 9999, ':')) }}",
    "copies by slicing": "{% set a = 'x' * 90000 %}{% set b = [" + "a[1:]," * 999 + "] %}",
    "copies by joining": "{% set a = ['x' * 90000] %}{% set b = " + "~".join(["a"] * 999) + " %}",
    "copies in a block": "{% set a = ['x' * 90000] %}{% set b %}" + "{{ a }}" * 999
    + "{% endset %}",
    "text in a block": "{% set b %}{% for i in range(9999) %}" + "y" * 999
    + "{% endfor %}{% endset %}",
    "growing literals": "{% set n = namespace(x=[]) %}{% for i in range(9999) %}"
    "{% set n.x = [n.x, [" + "1," * 999 + "]] %}{% endfor %}",
    "escaping": "{% set a = '<' * 90000 %}{{ ('x' | safe) + a }}",
    "long chain of comparisons": "{% set a = 'x' * 90000 %}{% set b = 'x' * 90000 %}"
    "{% for i in range(9999) %}{% if a" + " == b == a" * 99 + " %}{% endif %}{% endfor %}",
    "chain of generators": "{{ range(99999)" + " | map('string')" * 40 + " | list | length }}",
    "long time format": "{{ strftime_now('%c' * 9999) }}",
    "deep source": "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
    "deep operators": "{{ " + "not " * 5000 + "1 }}",
    "deep loops": "{% for a in x %}" * 30 + "{% endfor %}" * 30,
    "long number": "{{ " + "9" * 5000 + " }}",
    "long source": "x" * 200_000,
}  # fmt: skip


@pytest.mark.parametrize("source", GREEDY.values(), ids=GREEDY)
def test_a_greedy_template_is_stopped_early_and_small(source: str) -> None:
    template = ChatTemplate(source, "", "", limits=SMALL)
    # The first time includes the compilation. A fault of the template itself wouldn't be a limit.
    with pytest.raises(TemplateError, match=r"^the chat template (?!failed)"):
        template.render(USER)
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(TemplateError):
            template.render(USER)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # Tracing makes everything several times as slow.
    assert time.perf_counter() - started < 8 * SMALL.seconds
    assert peak < 8 * SMALL.work_bytes


def test_a_stopped_template_says_what_it_did_too_much_of() -> None:
    def complaint(source: str) -> str:
        with pytest.raises(TemplateError) as got:
            ChatTemplate(source, "", "", limits=SMALL).render(USER)
        return got.value.message

    assert "stopped: it uses a value of more than 100000 bytes" in complaint("{{ 'x' * 10**9 }}")
    assert "output has more than 10000 characters" in complaint("{{ 'x' * 20000 }}")
    assert "nests too deeply" in complaint("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}")
    assert "has 200000 characters, more than" in complaint("x" * 200_000)
    assert len(complaint("{{ raise_exception('x' * 90000) }}")) < 700


def test_the_time_limit_holds_where_nothing_is_made() -> None:
    source = "{% for a in range(99999) %}{% if a == b %}{% endif %}{% endfor %}"
    limits = RenderLimits(seconds=0.02)
    with pytest.raises(TemplateError, match=r"ran for more than 0.02 s \(line 1"):
        ChatTemplate(source, "", "", limits=limits).render(USER)


def test_what_one_rendering_used_is_not_charged_to_the_next() -> None:
    template = ChatTemplate("{{ ('x' * 60000) | length }}", "", "", limits=SMALL)
    assert {template.render(USER) for _ in range(50)} == {"60000"}


def test_a_long_conversation_stays_within_the_default_limits() -> None:
    text = "wörter " * 50_000
    messages = [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}] * 5
    source = (
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1] | trim %}"
        "{{ '[' ~ m['role'] ~ ']' + c.replace('x', 'y') }}{% endfor %}"
    )
    assert len(render(source, messages)) > 5 * len(text) - 10


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_conversations_text_is_never_read_as_template(first: str, second: str) -> None:
    messages = [{"role": "user", "content": first + "{{ 1 }}"}, {"role": "a", "content": second}]
    prompt = render("{% for m in messages %}{{ m.content }}|{% endfor %}", messages)
    assert prompt == f"{first}{{{{ 1 }}}}|{second}|"
