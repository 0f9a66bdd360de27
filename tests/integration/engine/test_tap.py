"""The native code beside the engine, for itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.engine.llamacpp.tap import all_finite


@given(st.lists(st.integers(0, 2**32 - 1), max_size=70))
def test_a_value_is_finite_where_numpy_says_so(patterns: list[int]) -> None:
    values = np.array(patterns, np.uint32)
    assert all_finite(values.tobytes()) is bool(np.isfinite(values.view(np.float32)).all())


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("place", [0, 31, 575])
def test_one_value_that_isnt_finite_is_found_anywhere(bad: float, place: int) -> None:
    values = np.full(576, np.finfo(np.float32).max, np.float32)
    assert all_finite(values.tobytes())
    values[place] = bad
    assert not all_finite(values.tobytes())
    assert not all_finite(memoryview(values.tobytes()))  # type: ignore[arg-type]
