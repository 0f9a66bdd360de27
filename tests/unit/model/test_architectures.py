import dataclasses

import pytest

from meshnet.model.architectures import REFUSED, VERIFIED
from meshnet.model.rules import Architecture

EVERY = pytest.mark.parametrize("rules", VERIFIED.values(), ids=VERIFIED)


def test_the_table_holds_the_architectures_that_people_run() -> None:
    assert {"llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "gpt-oss", "phi3"} <= set(VERIFIED)
    assert len(VERIFIED) >= 100


def test_no_architecture_is_both_proven_and_refused() -> None:
    assert not set(VERIFIED) & set(REFUSED)
    assert all(REFUSED.values())


@EVERY
def test_what_a_window_is_has_a_need_for_sliding_layers(rules: Architecture) -> None:
    explicit = rules.window is None or rules.window.attention_layers
    assert explicit or "sliding" in rules.needs


@EVERY
def test_recurrent_layers_are_needed_where_a_model_says_which_are(rules: Architecture) -> None:
    assert bool(rules.recurrence) == ("recurrent" in rules.needs)


@EVERY
def test_taps_name_a_layer_of_the_slice_and_nothing_else(rules: Architecture) -> None:
    assert rules.tap.format(last=3, next=4) in {
        rules.tap.replace("{last}", "3"),
        rules.tap.replace("{next}", "4"),
    }
    assert "{" in rules.tap


@EVERY
def test_what_stands_in_is_never_itself_replaced(rules: Architecture) -> None:
    assert not set(rules.stands_in) & set(rules.stands_in.values())


def test_an_entry_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        VERIFIED["llama"].tap = "other"  # type: ignore[misc]
