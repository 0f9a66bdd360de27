"""What a narrower boundary costs in exactness, on the real models; the whole table is in bench."""

import numpy as np
import pytest

from bench.boundary import Distance, compare
from meshnet.domain.tensors import DType

TOKENS = 160

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


def mean(distance: Distance) -> float:
    return float(np.mean(distance.divergences))


def agreement(distance: Distance) -> float:
    return float(np.mean(distance.same_choice))


def require_exact_or_close(found: dict[DType, Distance]) -> None:
    assert found[DType.FLOAT32].identical
    assert max(found[DType.FLOAT32].divergences) == 0.0
    assert 0 < mean(found[DType.BFLOAT16]) < 2e-2
    assert 0 < mean(found[DType.Q8_0]) < 1e-1
    assert agreement(found[DType.BFLOAT16]) > 0.9
    assert agreement(found[DType.Q8_0]) > 0.8


def test_smollm2_is_exact_over_float32_and_close_over_narrower_types(smollm2_path, cache_root):
    found = compare(smollm2_path, cache_root, TOKENS)
    require_exact_or_close(found)
    assert 0 < mean(found[DType.FLOAT16]) < 2e-2


def test_gemma3_likewise_but_leaves_the_range_of_float16(gemma3_path, cache_root):
    found = compare(gemma3_path, cache_root, TOKENS)
    require_exact_or_close(found)
    assert "too large for float16" in found[DType.FLOAT16].refused
