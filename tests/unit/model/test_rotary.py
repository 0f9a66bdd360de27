from dataclasses import replace

import pytest
from gguf import GGMLQuantizationType

from meshnet.model.gguf import GgufIndex, TensorInfo
from meshnet.model.rotary import uses_long_factors
from tests.support.tiny_gguf import TinyModel, index_of

BORDER = 512


def with_two_sets(**keys: int) -> GgufIndex:
    """A model with factors for long contexts, as Phi-3 has them."""
    index = index_of(TinyModel(keys={key.replace("__", "."): keys[key] for key in keys}))
    name = "rope_factors_long.weight"
    factors = TensorInfo(name, GGMLQuantizationType.F32, (8,), 0, 32)
    return replace(index, tensors={**index.tensors, name: factors})


PHI3 = with_two_sets(rope__scaling__original_context_length=BORDER)


@pytest.mark.parametrize(
    ("context_length", "sessions", "long"),
    [
        (1, 1, False),
        (BORDER, 1, False),
        (BORDER + 1, 1, True),
        (BORDER, 3, False),
        (BORDER - 10, 8, False),
        (BORDER + 100, 8, True),
    ],
)
def test_the_room_of_a_session_as_libllama_rounds_it_decides(context_length, sessions, long):
    assert uses_long_factors(PHI3, context_length, sessions) is long


def test_without_a_stated_border_it_is_the_context_trained_on():
    index = with_two_sets(context_length=1024)
    assert not uses_long_factors(index, 1024, 1)
    assert uses_long_factors(index, 1025, 1)


def test_a_model_with_one_set_of_factors_has_no_border():
    assert not uses_long_factors(index_of(TinyModel()), 10**6, 1)
