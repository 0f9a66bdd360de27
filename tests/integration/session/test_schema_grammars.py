"""What libllama allows under a schema's grammar is valid by another implementation of schemas."""

import json
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from tests.support.random_texts import random_text
from tests.support.schemas import REFUSED, SCHEMAS, json_object, schema_grammar
from tests.support.tiny_gguf import build


@pytest.fixture
def vocabulary(tmp_path: Path) -> Iterator[Vocabulary]:
    with Vocabulary.load(build(tmp_path / "tiny.gguf")) as loaded:
        yield loaded


@pytest.fixture
def grammars(tmp_path: Path, vocabulary: Vocabulary) -> Iterator[LlamaGrammars]:
    made = LlamaGrammars(tmp_path / "tiny.gguf")
    yield made
    made.close()


def test_texts_are_valid_under_all_kinds_of_schemas(grammars, vocabulary):
    assert len(SCHEMAS) >= 50
    checked = jsonschema.Draft202012Validator
    for name, schema in SCHEMAS.items():
        grammar = schema_grammar(schema, "schema")
        for seed in range(3):
            text = random_text(grammars, vocabulary, grammar, seed)
            value = json.loads(text, parse_constant=pytest.fail)
            validator = checked(schema, format_checker=checked.FORMAT_CHECKER)
            problems = [error.message for error in validator.iter_errors(value)]
            assert not problems, f"{name}: {text} isn't valid: {problems}"


def test_a_json_object_is_one(grammars, vocabulary):
    for seed in range(10):
        assert isinstance(json.loads(random_text(grammars, vocabulary, json_object(), seed)), dict)


@pytest.mark.parametrize("name", REFUSED)
def test_what_isnt_offered_is_refused_by_place_and_name(name):
    schema, place, word = REFUSED[name]
    with pytest.raises(InvalidArgumentError, match=word) as refused:
        schema_grammar(schema, "response_format.json_schema.schema")
    assert refused.value.details["field"] == "response_format.json_schema.schema"
    assert refused.value.details["pointer"].startswith(place)
