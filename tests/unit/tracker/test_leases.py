import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.leases import Hours, Policy, parse_hours

minutes = st.integers(0, 24 * 60 - 1)


@given(minutes, minutes)
def test_hours_are_read_as_they_are_shown(begin: int, end: int):
    assert parse_hours(str(Hours(begin, end))) == Hours(begin, end)


@given(minutes, minutes, minutes)
def test_hours_hold_the_minutes_from_their_beginning_to_their_end(begin: int, end: int, at: int):
    within = {(begin + passed) % 1440 for passed in range((end - begin - 1) % 1440 + 1)}
    assert Hours(begin, end).holds(86400.0 * 20000 + at * 60 + 30) is (at in within)


@pytest.mark.parametrize("text", ["", "9-17", "24:00-01:00", "08:60-09:00", "08:00-09:00-10:00"])
def test_hours_that_no_day_has_are_refused(text: str):
    with pytest.raises(InvalidArgumentError, match="hours"):
        parse_hours(text)


def test_a_node_that_errs_again_is_avoided_for_longer_up_to_a_limit():
    policy = Policy(first_avoid_seconds=2.0, most_avoid_seconds=10.0)
    assert [policy.avoid_seconds(errors) for errors in (1, 2, 3, 4, 5000)] == [2, 4, 8, 10, 10]


def test_a_lease_shorter_than_the_time_between_heartbeats_is_refused():
    with pytest.raises(InvalidArgumentError, match="lease_seconds"):
        Policy(heartbeat_seconds=5.0, lease_seconds=5.0)
