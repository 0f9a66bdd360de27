"""Calls, reasoning and text are found wherever an output was cut into pieces."""

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.session.tools.families import output_format
from meshnet.session.tools.parser import OutputTerms
from meshnet.session.tools.parts import Part, Reasoning, Text, ToolCall
from tests.support.tool_outputs import (
    OSLO,
    OUTPUTS,
    TEMPLATES,
    TOOLS,
    TRICKY,
    XML_OSLO,
    Output,
    hermes,
    weather,
)

MARKUP = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<function=",
            "weather",
            ">",
            "<parameter=",
            "</function>",
        ),
        *(
            "</parameter>",
            "<think>",
            "</think>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "[",
            "]",
            "<|python_tag|>",
        ),
        *("{", "}", '"', '"name": ', '"arguments": ', ",", " ", "\n", "\\", "5", "NaN", "a", "é"),
        *(OSLO, XML_OSLO, TRICKY, "<tool", "<", ";", "x"),
    ]
)


def terms_of(family: str, *, thinking: bool = False, single: bool = False) -> OutputTerms:
    return OutputTerms(output_format(TEMPLATES[family]), TOOLS, thinking, single)


def parsed(terms: OutputTerms, pieces: Iterable[str]) -> list[Part]:
    parser = terms.parser()
    parts = [part for piece in pieces for part in parser.feed(piece)]
    return merged([*parts, *parser.finish()])


def merged(parts: list[Part]) -> list[Part]:
    """Neighbours of one kind as one."""
    whole: list[Part] = []
    for part in parts:
        last = whole[-1] if whole else None
        if isinstance(part, Text) and isinstance(last, Text):
            whole[-1] = Text(last.text + part.text)
        elif isinstance(part, Reasoning) and isinstance(last, Reasoning):
            whole[-1] = Reasoning(last.text + part.text)
        else:
            whole.append(part)
    return whole


def read(output: Output, pieces: Iterable[str]) -> Output:
    """What was found, in the form of the expectation."""
    parts = parsed(terms_of(output.family, thinking=output.thinking), pieces)
    return Output(
        output.family,
        output.written,
        "".join(part.text for part in parts if isinstance(part, Text)),
        tuple(part for part in parts if isinstance(part, ToolCall)),
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        output.thinking,
    )


@pytest.mark.parametrize("output", OUTPUTS, ids=lambda it: f"{it.family}-{it.written[:40]!r}")
def test_every_split_in_two_and_into_characters_finds_the_same(output: Output) -> None:
    assert read(output, [output.written]) == output
    assert read(output, output.written) == output
    for border in range(len(output.written)):
        pieces = (output.written[:border], output.written[border:])
        assert read(output, pieces) == output, border


@given(output=st.sampled_from(OUTPUTS), data=st.data())
def test_every_random_split_finds_the_same(output: Output, data: st.DataObject) -> None:
    size = len(output.written)
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=12)))
    borders = [0, *cuts, size]
    pieces = [output.written[a:b] for a, b in itertools.pairwise(borders)]
    assert read(output, pieces) == output


@given(family=st.sampled_from(sorted(TEMPLATES)), words=st.lists(MARKUP, max_size=30))
def test_whatever_is_written_is_told_alike_in_any_pieces_and_valid(
    family: str, words: list[str]
) -> None:
    text = "".join(words)
    parts = parsed(terms_of(family), [text])
    assert parts == parsed(terms_of(family), words) == parsed(terms_of(family), text)
    for part in parts:
        if isinstance(part, ToolCall):
            assert isinstance(json.loads(part.arguments), dict)
            assert part.name
    if not any(isinstance(part, ToolCall | Reasoning) for part in parts) and "<think>" not in text:
        assert "".join(part.text for part in parts if isinstance(part, Text)) == text


@given(output=st.sampled_from(OUTPUTS), data=st.data())
def test_an_output_cut_off_anywhere_has_the_calls_that_were_complete(
    output: Output, data: st.DataObject
) -> None:
    end = data.draw(st.integers(0, len(output.written)))
    found = read(output, [output.written[:end]])
    assert found.calls == output.calls[: len(found.calls)]


def test_a_call_is_told_with_its_last_character() -> None:
    parser = terms_of("hermes").parser()
    written = f"<tool_call>\n{OSLO}"
    assert [part for character in written[:-1] for part in parser.feed(character)] == []
    assert parser.feed(written[-1]) == [weather()]


def test_text_flows_without_waiting_for_the_end() -> None:
    parser = terms_of("qwen3").parser()
    assert parser.feed("One <t") == [Text("One")]
    assert parser.feed("wo") == [Text(" <two")]
    assert parser.feed(" " * 65) == [Text(" " * 65)]


def test_without_tools_calls_are_text_and_reasoning_still_comes_apart() -> None:
    terms = OutputTerms(output_format(TEMPLATES["qwen3"]))
    assert parsed(terms, ["<think>a</think>", hermes(OSLO)]) == [Reasoning("a"), Text(hermes(OSLO))]


def test_a_single_call_is_the_first() -> None:
    parts = parsed(terms_of("hermes", single=True), [hermes(OSLO) * 3])
    assert parts == [weather()]


def test_a_model_without_markers_is_passed_through_piece_by_piece() -> None:
    parser = OutputTerms(output_format("plain")).parser()
    assert [parser.feed(piece) for piece in ("", " a ", "<think>")] == [
        [],
        [Text(" a ")],
        [Text("<think>")],
    ]
    assert parser.finish() == []


@pytest.mark.parametrize("family", sorted(TEMPLATES))
def test_repeated_beginnings_take_time_in_proportion_to_their_length(family: str) -> None:
    """Nothing here is quadratic: 60 000 characters of openers would take minutes."""
    opener = "<tool_call>{" if family != "mistral" else "[TOOL_CALLS]a"
    parts = parsed(terms_of(family), [opener * 5000])
    assert parts == [Text(opener * 5000)]


@pytest.mark.parametrize(
    ("template", "family"),
    [
        *((TEMPLATES[name], name) for name in TEMPLATES if name != "qwen3"),
        (None, None),
        ("{{ messages }}", None),
        ("<tool_call> of one who is never told of any", None),
        ("{{ tools }}<tool_call>f<arg_key>k</arg_key></tool_call>", None),
        ("{{ tools }}<|python_tag|><function=f>{}</function>", None),
        ('{{ tools }}<tool_call><tool_calls>[{"name": f, "arguments": {}}]</tool_calls>', None),
        (
            '<|start_header_id|>{{ tools }}{"name": f, "parameters": dictionary of argument name',
            "llama",
        ),
    ],
)
def test_the_family_is_told_by_the_template(template: str | None, family: str | None) -> None:
    calls = output_format(template).calls
    assert (calls and calls.name) == family
