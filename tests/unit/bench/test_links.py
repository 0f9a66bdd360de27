"""The limit that a chain over links is held against."""

from __future__ import annotations

import pytest

from bench.links import limit_per_second
from bench.wan.network import Link


@pytest.mark.parametrize(
    ("link", "machines", "expected_ms"),
    [
        (Link(0.0), 2, 10.0),
        (Link(5.0), 2, 20.0),
        (Link(5.0), 3, 25.0),
        # 100,000 bits take 1 ms at 100 Mbit/s, over each seam.
        (Link(5.0, 100.0), 2, 21.0),
        (Link(5.0, 100.0), 3, 27.0),
    ],
)
def test_a_token_passes_every_machine_and_comes_back(
    link: Link, machines: int, expected_ms: float
) -> None:
    rate = limit_per_second(0.010, link, machines, 12_500)
    assert 1e3 / rate == pytest.approx(expected_ms)
