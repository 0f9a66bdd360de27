"""Traffic held to a rate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.transport.quota import Pace

RATE, BURST = 1000.0, 500.0


@given(st.lists(st.tuples(st.integers(0, 5000), st.floats(0, 3)), max_size=50))
def test_whoever_waits_as_told_never_gets_more_than_the_rate_and_one_burst(steps):
    now, passed, pace = 0.0, 0, Pace(RATE, BURST, 0.0)
    for count, quiet in steps:
        passed += count
        now += pace.take(count, now)
        assert passed <= RATE * now + BURST + 1e-6 * (1 + passed)
        now += quiet


@given(st.lists(st.integers(1, 400), min_size=1, max_size=50))
def test_traffic_below_the_rate_never_waits(counts):
    now, pace = 0.0, Pace(RATE, BURST, 0.0)
    for count in counts:
        now += count / RATE
        assert pace.take(count, now) < 1e-9


def test_quiet_time_saves_no_more_than_a_burst():
    pace = Pace(RATE, BURST, 0.0)
    assert pace.take(500, 3600.0) == 0
    assert pace.take(250, 3600.0) == pytest.approx(0.25)


def test_a_clock_that_goes_back_gives_nothing():
    pace = Pace(RATE, BURST, 10.0)
    pace.take(500, 10.0)
    pace.take(0, 5.0)
    assert pace.take(100, 10.0) == pytest.approx(0.1)


@pytest.mark.parametrize(("rate", "burst", "field"), [(0, 1, "bytes_per"), (1, -1, "burst")])
def test_a_rate_is_positive(rate, burst, field):
    with pytest.raises(InvalidArgumentError, match=field):
        Pace(rate, burst, 0.0)
