"""Digits of numbers within bounds: all of them, and no others."""

import itertools
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.session.schema_grammar.numbers import Bounds, digits, integers, numbers

SMALL = st.integers(0, 3000)


@given(SMALL, SMALL, st.integers(0, 2))
def test_digits_are_those_of_exactly_the_numbers_between(one, other, decimals):
    low, high = sorted((one, other))
    written = [
        "".join(map(str, each))
        for places in digits(low, high, decimals)
        for each in itertools.product(*(range(a, b + 1) for a, b in places))
    ]
    assert len(written) == len(set(written))
    assert sorted(map(int, written)) == list(range(low, high + 1))
    for text in written:
        assert len(text) > decimals
        assert text[0] != "0" or len(text) == decimals + 1


@given(st.decimals(-50, 50, places=2), st.decimals(-50, 50, places=2), st.booleans(), st.booleans())
def test_bounds_in_units_are_the_outermost_numbers_inside(one, other, low_open, high_open):
    low, high = sorted((one, other))
    first, last = Bounds(low, high, low_open, high_open).scaled(2)
    inside = [
        number
        for number in range(-5001, 5002)
        if low <= (value := Decimal(number) / 100) <= high
        and not (low_open and value == low)
        and not (high_open and value == high)
    ]
    assert list(range(first, last + 1)) == inside


def test_no_number_is_none():
    assert integers(Bounds(Decimal("0.2"), Decimal("0.8"))) is None
    assert numbers(Bounds(Decimal(3), Decimal(2))) is None
    with pytest.raises(ValueError, match="decimals"):
        numbers(Bounds(Decimal("1e-12")))
