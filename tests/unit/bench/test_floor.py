"""What a bare chain loses, and against which limit."""

from __future__ import annotations

import pytest

from bench.contest import UNSPLIT
from bench.floor import table_of
from bench.setup import Run


def run_of(milliseconds: float) -> Run:
    """Ten tokens after the first, so long each."""
    return Run(1.0, milliseconds / 100, (7,) * 11)


def test_the_limit_is_the_unsplit_models_time_and_the_links() -> None:
    made = {UNSPLIT: [run_of(10), run_of(12)], "bare": [run_of(55), run_of(56)]}
    alone, bare = table_of(made, {UNSPLIT: 0.0, "bare": 40.0}).rows
    assert alone[2] == pytest.approx(1.0)
    assert bare[2] == pytest.approx((50 / 55 + 52 / 56) / 2)
    assert bare[-1] == pytest.approx(4.5)
