"""Counting by size, and samples that fit their metric."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.metrics import Distribution, Histogram, Metric, MetricKind, Sample

BOUNDS = (0.5, 1.0, 8.0)


@given(values=st.lists(st.floats(0, 100, allow_nan=False), max_size=30))
def test_a_bound_counts_all_that_is_not_above_it(values):
    histogram = Histogram(BOUNDS)
    for value in values:
        histogram.observe(value)
    read = histogram.read()
    below = [sum(value <= bound for value in values) for bound in BOUNDS]
    assert read.cumulative() == (*below, len(values))
    assert read.count == len(values)
    assert read.total == pytest.approx(sum(values))


def test_what_was_read_does_not_change_afterwards():
    histogram = Histogram(BOUNDS)
    read = histogram.read()
    histogram.observe(1.0)
    assert read.count == 0


@pytest.mark.parametrize("bounds", [(), (2.0, 1.0), (1.0, 1.0)])
def test_bounds_must_ascend(bounds):
    with pytest.raises(InvalidArgumentError, match="ascend"):
        Histogram(bounds)


@pytest.mark.parametrize(
    ("name", "kind"), [("sent_bytes", MetricKind.COUNTER), ("open_total", MetricKind.GAUGE)]
)
def test_counters_alone_end_in_total(name, kind):
    with pytest.raises(InvalidArgumentError, match="_total"):
        Metric(name, kind, (), "What it means.")


def test_a_sample_has_its_metric_s_labels_and_kind_of_value():
    counter = Metric("sent_bytes_total", MetricKind.COUNTER, ("seam",), "Bytes sent.")
    with pytest.raises(InvalidArgumentError, match="labels"):
        Sample(counter, (), 1)
    with pytest.raises(InvalidArgumentError, match="counter"):
        Sample(counter, ("upstream",), Distribution((1.0,), (0, 0), 0.0))
