"""What a grammar of calls allows is what the family's reader finds: a call, and nothing else."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.session.schema_grammar.gbnf import GrammarWriter
from meshnet.session.tools.constrained import AnswerWriter, OfferedCall
from meshnet.session.tools.families import output_format
from meshnet.session.tools.parser import OutputTerms
from meshnet.session.tools.parts import Reasoning, Text, ToolCall
from tests.support.random_texts import random_text
from tests.support.scripted_model import Templated
from tests.support.tiny_gguf import build
from tests.support.tool_outputs import TEMPLATES

SCHEMAS: dict[str, dict[str, Any]] = {
    "weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 14},
            "where": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2},
            "unit": {"type": "string", "enum": ["celsius", "kelvin"]},
            "note": {"type": ["string", "null"]},
        },
        "required": ["city", "days", "unit"],
        "additionalProperties": False,
    },
    "now": {"type": "object", "properties": {}},
}
FORMS = TEMPLATES | {
    "mistral with names": "{{ tools }}[TOOL_CALLS]name[ARGS]",
    "deepseek with fences": "{{ tools }}<｜tool▁call▁begin｜>```json",  # noqa: RUF001
}
WORDS = ("</think>", "\n</parameter>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def vocabulary(model: Path) -> Iterator[Vocabulary]:
    with Vocabulary.load(model) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def grammars(model: Path) -> Iterator[LlamaGrammars]:
    made = LlamaGrammars(model)
    # Its process is there before the first test, which is not to leave one behind.
    made.check('root ::= "a"')
    yield made
    made.close()


def grammar_of(
    template: str,
    names: tuple[str, ...],
    *,
    single: bool = False,
    begun: bool = False,
    free: bool = False,
) -> str:
    writer = GrammarWriter()
    answer = AnswerWriter(writer, Templated(template), output_format(template))
    calls = answer.calls([OfferedCall(it, SCHEMAS[it], it) for it in names], single=single)
    body = answer.by_choice(calls) if free else calls
    return writer.text(answer.after_reasoning(body, begun=begun))


def temptations(template: str) -> tuple[str, ...]:
    """What would be read as calls whose arguments don't follow their schemas, and markers."""
    family = output_format(template).calls
    assert family is not None
    wrong = ('{"name": "weather", "arguments": {}}', '{"name": "now", "parameters": {"a": 1}}')
    xml = ("<function=weather>\n</function>", "<function=weather>\n<parameter=days>\nx")
    marked = [opener + it for opener in family.openers for it in (*wrong, *xml, "\n", "")]
    return (*WORDS, *wrong, *marked, " \n" + wrong[0], '{ "name')


@pytest.mark.parametrize("form", FORMS)
def test_every_family_reads_what_its_grammar_allows(form, grammars, vocabulary):
    template = FORMS[form]
    thoughts = output_format(template).thoughts is not None
    seen: set[str] = set()
    reasoned = False
    for single, begun, seed in itertools.product((True, False), {False, thoughts}, range(3)):
        names = (("weather",), ("now",), ("weather", "now"))[seed]
        grammar = grammar_of(template, names, single=single, begun=begun)
        text = random_text(grammars, vocabulary, grammar, seed, WORDS)
        terms = OutputTerms(output_format(template), SCHEMAS, thinking=begun)
        parser = terms.parser()
        parts = [*parser.feed(text), *parser.finish()]
        calls = [part for part in parts if isinstance(part, ToolCall)]
        others = [part for part in parts if not isinstance(part, ToolCall | Reasoning)]
        reasoned = reasoned or len(parts) > len(calls)
        assert not others, f"{text!r} has more than calls: {others}"
        assert len(calls) == 1 if single else 1 <= len(calls) <= 16, text
        for call in calls:
            seen.add(call.name)
            jsonschema.validate(json.loads(call.arguments), SCHEMAS[call.name])
    assert seen == set(SCHEMAS)
    assert reasoned or not thoughts


@pytest.mark.parametrize("form", FORMS)
def test_a_named_function_is_the_only_one_that_is_called(form, grammars, vocabulary):
    grammar = grammar_of(FORMS[form], ("now",), single=True, begun=False)
    for seed in range(3):
        text = random_text(grammars, vocabulary, grammar, seed, WORDS)
        parser = OutputTerms(output_format(FORMS[form]), SCHEMAS).parser()
        calls = [it for it in (*parser.feed(text), *parser.finish()) if isinstance(it, ToolCall)]
        assert calls == [ToolCall("now", "{}")]


@pytest.mark.parametrize("form", FORMS)
def test_where_a_model_may_call_no_reader_finds_a_call_that_breaks_its_schema(
    form, grammars, vocabulary
):
    template = FORMS[form]
    tempting = temptations(template)
    grammar = grammar_of(template, tuple(SCHEMAS), free=True)
    texts = 0
    for seed in range(15):
        text = random_text(grammars, vocabulary, grammar, seed, tempting)
        parser = OutputTerms(output_format(template), SCHEMAS).parser()
        parts = [*parser.feed(text), *parser.finish()]
        texts += any(isinstance(part, Text) for part in parts)
        for part in parts:
            if isinstance(part, ToolCall):
                jsonschema.validate(json.loads(part.arguments), SCHEMAS[part.name])
    assert texts


@pytest.mark.parametrize("form", FORMS)
def test_where_a_model_may_call_it_may_also_say_something_first_or_nothing_else(
    form, grammars, vocabulary
):
    template = FORMS[form]
    calls = grammar_of(template, tuple(SCHEMAS), single=True)
    free = grammar_of(template, tuple(SCHEMAS), single=True, free=True)
    call = random_text(grammars, vocabulary, calls, 1)
    family = output_format(template).calls
    assert family is not None
    for text in (call, "Grüße <|\n", "" if family.bare else f"I look < [.\n{call}"):
        tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
        for place, token in enumerate(tokens):
            assert grammars.one(free, tokens[:place], token), text[:place]
        ending = next(iter(vocabulary.end_of_generation))
        assert grammars.one(free, tokens, ending), text


@pytest.mark.parametrize(
    ("text", "is_text"),
    [
        ('{"name": "weather", "arguments": {}}', False),
        (' \n{ "parameters": {}}', False),
        ('{"na\\u006de": "weather"}', False),
        ('{"names": ["weather"]}', True),
        ("{}", True),
        ('A {"name": "weather", "arguments": {}}', True),
    ],
)
def test_only_what_no_reader_takes_for_a_call_without_a_marker_is_text(
    text, is_text, grammars, vocabulary
):
    form = next(it for it in FORMS if (family := output_format(FORMS[it]).calls) and family.bare)
    parser = OutputTerms(output_format(FORMS[form]), {"weather": {}}).parser()
    parts = [*parser.feed(text), *parser.finish()]
    assert not is_text or not any(isinstance(part, ToolCall) for part in parts)
    free = grammar_of(FORMS[form], tuple(SCHEMAS), free=True)
    tokens = vocabulary.tokenize(text, add_special=False, parse_special=True)
    whole = (*tokens, next(iter(vocabulary.end_of_generation)))
    allowed = all(grammars.one(free, whole[:place], it) for place, it in enumerate(whole))
    assert allowed is is_text


def test_arguments_that_nobody_described_may_be_any():
    template = FORMS["qwen-xml"]
    writer = GrammarWriter()
    answer = AnswerWriter(writer, Templated(template), output_format(template))
    body = answer.calls([OfferedCall("f", {"type": "object"}, "tools[0]")], single=True)
    assert "<parameter=" in writer.text(body)


def test_what_a_form_cant_say_is_refused_by_name():
    writer = GrammarWriter()
    template = FORMS["qwen-xml"]
    answer = AnswerWriter(writer, Templated(template), output_format(template))
    for schema, word in (
        ({"properties": {"a": {"type": "string", "pattern": "^a$"}}}, "pattern"),
        ({"properties": {"a>b": {"type": "null"}}}, "a>b"),
        ({"properties": {"a": {"not": {}}}}, "not"),
        ({"type": "array"}, "type object"),
    ):
        with pytest.raises(InvalidArgumentError, match=word) as refused:
            answer.calls([OfferedCall("f", schema, "tools[0]")], single=True)
        assert refused.value.details["field"] == "tools[0]"
