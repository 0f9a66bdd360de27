"""A schema from anybody: it becomes a grammar, or is refused by name, and soon."""

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.grammar_text import require_bounded
from meshnet.session.schema_grammar.keywords import OFFERED
from tests.support.schemas import schema_grammar

SECONDS = 3.0
"""Of computing, on a machine with other work; what isn't bounded takes much longer."""


def computed(schema: object) -> str:
    """The grammar, or why there is none."""
    started = time.thread_time()
    try:
        return schema_grammar(schema, "schema")
    except InvalidArgumentError as error:
        assert error.details["field"] == "schema"
        return error.message
    finally:
        assert time.thread_time() - started < SECONDS


def chain(count: int, link: Any) -> dict[str, Any]:
    named = {f"d{n}": link({"$ref": f"#/$defs/d{n + 1}"}) for n in range(count)}
    return {"$defs": {**named, f"d{count}": {"type": "null"}}, "$ref": "#/$defs/d0"}


def test_what_all_must_hold_twice_is_looked_at_once():
    assert "null" in computed(chain(25, lambda it: {"allOf": [it, it]}))


def test_alternatives_that_double_are_refused():
    assert "steps" in computed(chain(60, lambda it: {"anyOf": [it, it], "type": "null"}))


def test_references_to_references_aren_t_followed_again_and_again():
    schema = chain(3000, lambda it: it)
    schema["anyOf"] = [{"$ref": f"#/$defs/d{n}", "type": "null"} for n in range(3000)]
    assert "nests" in computed({"$defs": schema["$defs"], "anyOf": schema["anyOf"]})


def test_thousands_of_constants_are_told_apart():
    assert '"1999"' in computed({"oneOf": [{"const": n} for n in range(2000)]})
    tagged = [
        {"type": "object", "properties": {"k": {"const": n}}, "required": ["k"]} for n in range(400)
    ]
    assert '"399"' in computed({"oneOf": tagged})
    assert "oneOf" in computed({"oneOf": [*tagged[:50], tagged[0]]})


def test_large_classes_large_lists_and_large_names():
    many = "".join(chr(0x4E00 + 2 * n) for n in range(9000))
    assert "\\u4E01" in computed({"type": "string", "pattern": f"^[^{many}]$"})
    enum = {"$defs": {"e": {"enum": [str(n) for n in range(3000)]}}}
    again = [{"$ref": "#/$defs/e", "type": "string"}] * 2000
    assert "steps" in computed({**enum, "anyOf": again})


def test_many_expressions_and_many_bounds():
    each = [{"type": "string", "pattern": f"^{'a?' * 300}{n}"} for n in range(1500)]
    assert "steps" in computed({"anyOf": each})
    number = {"type": "number", "minimum": 0.123456789, "maximum": 987654321.123}
    assert "steps" in computed({"properties": {f"p{n}": number for n in range(3000)}})


def test_a_long_name_beside_others():
    schema = {"properties": {"x" * 1200: True}, "additionalProperties": {"type": "null"}}
    require_bounded(computed(schema))
    assert "steps" in computed({"properties": {"x" * 90_000: True}, "additionalProperties": True})


def test_values_within_one_another_are_refused():
    deep: list[Any] = []
    for _ in range(700):
        deep = [deep]
    assert "nests" in computed({"const": deep})
    assert "number" in computed({"enum": [json.loads("1e999")]})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(sorted(OFFERED)) | st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(sorted(OFFERED)), JSON, max_size=4), st.booleans())
def test_any_json_is_a_schema_or_is_refused(schema, within):
    computed({"type": "object", "properties": {"a": schema}} if within else schema)


@pytest.mark.parametrize("key", sorted(OFFERED))
@settings(max_examples=25)
@given(value=JSON)
def test_any_value_of_a_keyword_is_taken_or_refused(key, value):
    computed({key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("$ref", {}), ("format", {}), ("pattern", 3), ("required", [{}]), ("minLength", True)],
)
def test_a_keyword_of_a_wrong_type_is_named(key, value):
    assert f"{key} must be" in computed({key: value})
