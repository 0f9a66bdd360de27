import pytest

from meshnet.model.architectures import VERIFIED
from meshnet.model.rules import Architecture

EVERY = pytest.mark.parametrize("rules", VERIFIED.values(), ids=VERIFIED)


@EVERY
def test_names_of_tensors_are_unique(rules: Architecture) -> None:
    for tensors in (rules.layer, rules.outer):
        names = [(rule.name, rule.among) for rule in tensors]
        assert len(set(names)) == len(names)


@EVERY
def test_a_tensor_replaces_only_tensors_of_the_same_layer(rules: Architecture) -> None:
    known = {rule.name for rule in rules.layer}
    assert all(set(rule.instead_of) <= known for rule in rules.layer)


@EVERY
def test_an_output_matrix_is_optional_exactly_where_embeddings_stand_in(
    rules: Architecture,
) -> None:
    required = {rule.name: rule.required for rule in rules.outer}
    assert required["output.weight"] is not rules.ties_output
    assert required["token_embd.weight"]


@EVERY
def test_what_is_too_large_for_every_slice_is_the_heads_or_the_tails(rules: Architecture) -> None:
    for rule in rules.outer:
        if "vocabulary" in rule.shape:
            assert rule.name == "token_embd.weight" or rule.name.startswith("output.")
            assert rule.shape[-1] == "vocabulary"


def test_the_table_holds_the_architectures_that_people_run() -> None:
    assert {"llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gpt-oss", "phi3"} <= set(VERIFIED)
