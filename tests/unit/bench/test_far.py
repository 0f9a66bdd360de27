"""The table of readers on far machines."""

from __future__ import annotations

import pytest

from bench.far import BEFORE, MESHNET, RPC, table_of
from bench.load import Load

GAPS = (10.0, 20.0, 30.0)


def test_each_system_is_compared_with_meshnet_on_the_same_link_with_as_many_readers() -> None:
    made = {
        (20.0, 4, BEFORE): [Load(40.0, GAPS), Load(50.0, GAPS)],
        (20.0, 4, MESHNET): [Load(60.0, GAPS), Load(60.0, GAPS)],
        (20.0, 4, RPC): [Load(20.0, GAPS), Load(30.0, GAPS)],
        (5.0, 4, MESHNET): [Load(90.0, GAPS)],
    }
    rows = table_of(made).rows
    assert [row[:3] for row in rows] == [
        ("5 ms", 4, MESHNET),
        ("20 ms", 4, BEFORE),
        ("20 ms", 4, MESHNET),
        ("20 ms", 4, RPC),
    ]
    assert [row[-1] for row in rows] == pytest.approx([1.0, 1.35, 1.0, 2.5])
    assert rows[1][3:5] == pytest.approx((45.0, 20.0))
