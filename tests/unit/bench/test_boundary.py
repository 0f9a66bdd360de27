import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from bench.boundary import NO_DISTANCE, distance

logits = arrays(
    np.float32, st.tuples(st.integers(1, 40), st.just(5)), elements=st.floats(-30, 30, width=32)
)


def test_the_divergence_is_that_of_two_distributions_worked_out_by_hand():
    even, odd = np.zeros((1, 2), np.float32), np.array([[math.log(3), 0.0]], np.float32)
    found = distance(even, odd)
    expected = 0.5 * math.log(2 / 3) + 0.5 * math.log(2)
    assert math.isclose(found.divergences[0], expected, rel_tol=1e-6)
    assert found.same_choice == (True,)
    assert not found.identical


@given(logits)
def test_equal_bits_are_no_distance(rows):
    found = distance(rows, rows.copy())
    assert found.identical
    assert set(found.divergences) == {0.0}
    assert len(found.divergences) == len(rows)


@given(logits, st.floats(-1, 1, width=32))
def test_every_position_has_its_own_and_none_is_negative(rows, shift):
    moved = rows.copy()
    moved[-1, 0] += np.float32(shift)
    found = distance(rows, moved)
    assert len(found.divergences) == len(found.same_choice) == len(rows)
    assert min(found.divergences) >= -1e-12
    assert max(found.divergences[:-1], default=0.0) <= 1e-12


@given(logits, logits)
def test_distances_of_parts_add_up_to_that_of_the_whole(one, two):
    parts = NO_DISTANCE + distance(one, one) + distance(two, two + np.float32(1))
    assert len(parts.divergences) == len(one) + len(two)
    assert parts.identical == distance(two, two + np.float32(1)).identical
