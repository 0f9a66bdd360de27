"""What the measurement of placements predicts, and how it is held against what was measured."""

import pytest

from bench.placement import Layout, Prediction, line_of, predict
from bench.setup import Run
from meshnet.session.links import Link
from meshnet.tracker.placement import ModelShape
from meshnet.tracker.speeds import CHUNK_ROWS, Speed

SHAPE = ModelShape((10,) * 4, 0, 20, 0, 0, 100, (1, 2, 3))
SPEED = Speed(1000.0, 1000.0, 0.0, 0.5, 100.0)


def test_a_layout_gives_each_machine_its_layers():
    ranges = [(each.start, each.end) for each in Layout("m", (1, 3)).ranges]
    assert ranges == [(0, 1), (1, 4)]


def test_one_machine_has_no_hops_and_two_have_one_there_and_one_back():
    alone = predict(SHAPE, Layout("m", (4,)), SPEED, None, CHUNK_ROWS)
    assert 1 / alone.rate == pytest.approx(0.5 * 60 / 1000)
    assert alone.first == pytest.approx(0.4 + 0.02)
    two = predict(SHAPE, Layout("m", (2, 2)), SPEED, Link(1e5, 0.01), CHUNK_ROWS)
    assert 1 / two.rate == pytest.approx(60 / 1000 + 2 * 0.005 + 0.001)


def test_a_line_has_the_medians_and_their_ratio():
    made = [
        (Prediction(rate, first), Run(first * 2, 1.0, (0,) * tokens))
        for rate, first, tokens in ((10.0, 1.0, 11), (30.0, 3.0, 21), (20.0, 2.0, 31))
    ]
    line = line_of(Layout("m", (2, 2)), made)
    assert line[:3] == ("m", "2 + 2", "loopback")
    assert line[3:] == (20.0, 20.0, 1.0, 2.0, 4.0, 0.5)
