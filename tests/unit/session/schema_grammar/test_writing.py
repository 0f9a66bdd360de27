"""The pieces that grammars are made of, and the bounds of a grammar's text."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.sampling import MAX_GRAMMAR_BYTES, SamplingParams
from meshnet.engine.grammar_text import MAX_NESTED, numbered_tokens, require_bounded
from meshnet.session.schema_grammar.gbnf import MAX_COUNT, GrammarWriter, common_ranges, minus
from tests.support.schemas import schema_grammar

RANGES = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 40)).map(lambda it: (min(it), max(it))), max_size=4
)


def members(ranges: list[tuple[int, int]]) -> set[int]:
    return {code for low, high in ranges for code in range(low, high + 1)}


@given(RANGES, RANGES)
def test_ranges_are_sets(ranges, others):
    assert members(minus(ranges, others)) == members(ranges) - members(others)
    assert members(common_ranges(ranges, others)) == members(ranges) & members(others)


def test_equal_rules_have_one_name():
    writer = GrammarWriter()
    assert writer.rule('"a"') == writer.rule('"a"') != writer.rule('"b"')


@given(st.integers(0, MAX_COUNT), st.none() | st.integers(0, MAX_COUNT))
def test_repetitions_stay_within_what_libllama_counts(low, high):
    if high is not None and high < low:
        low, high = high, low
    writer = GrammarWriter()
    body = writer.repeated("r", low, high)
    require_bounded(writer.text(body or '""'))


@pytest.mark.parametrize("text", ['"(((("', "[((((]", "# ((((\n", '"\\"(((("'])
def test_parentheses_in_texts_classes_and_comments_don_t_nest(text):
    require_bounded(f"root ::= {text * MAX_NESTED}")


@pytest.mark.parametrize(
    "text", ["(" * (MAX_NESTED + 1), '"a"{2001}', '"a"{0, 2001 }', "[a]{ 3001 ,}", "\0"]
)
def test_what_is_out_of_bounds_is_refused(text):
    with pytest.raises(InvalidArgumentError, match="grammar"):
        require_bounded(f"root ::= {text}")


@pytest.mark.parametrize(
    "text",
    ['"', "[", '"[', '"\\', "[\\", '"' + '\\"' * 40_000, '"[' * 40_001, "{1," + " " * 80_000],
)
def test_the_bounds_are_checked_in_one_pass_and_what_isnt_closed_is_refused(text):
    started = time.thread_time()
    if text.startswith("{"):
        require_bounded(f"root ::= {text}")
    else:
        with pytest.raises(InvalidArgumentError, match="isn't closed"):
            require_bounded(f"root ::= {text}")
    assert time.thread_time() - started < 1


def test_numbered_tokens_are_found():
    assert numbered_tokens('root ::= <[7]> "a" !<[12]>') == {7, 12}


def test_a_grammar_has_a_largest_size_and_whole_characters():
    SamplingParams(grammar="a" * MAX_GRAMMAR_BYTES)
    for grammar in ("é" * (MAX_GRAMMAR_BYTES // 2 + 1), "\ud800"):
        with pytest.raises(InvalidArgumentError, match="grammar"):
            SamplingParams(grammar=grammar)


def test_a_large_schema_is_refused_by_name():
    properties = {f"property {n}": {"enum": [str(n) * 40]} for n in range(4000)}
    with pytest.raises(InvalidArgumentError, match="bytes"):
        schema_grammar({"type": "object", "properties": properties}, "response_format")


def test_a_deep_schema_is_refused_by_name():
    schema: object = {"type": "null"}
    for _ in range(300):
        schema = {"type": "array", "items": schema}
    with pytest.raises(InvalidArgumentError, match="nests") as refused:
        schema_grammar(schema, "response_format")
    assert refused.value.details["pointer"].endswith("/items")
