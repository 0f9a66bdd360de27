"""Into how many groups a head divides its sessions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.node.groups import MOST_AWAY, Away, most_decode_rows
from meshnet.node.schedule import StepCosts

SHARED = StepCosts({1: 0.010, 2: 0.020, 4: 0.028, 8: 0.050})
"""Two rows take twice as long as one, but four much less than two steps of two."""
ROW_BY_ROW = StepCosts({rows: 0.010 * rows for rows in range(1, 17)})
FREE = StepCosts(dict.fromkeys(range(1, 17), 0.010))
UNKNOWN = Away()


def group_rows(bound: int, talkers: int, stages: int, costs: StepCosts, away: Away) -> int:
    """Without a prompt."""
    return most_decode_rows(bound, talkers, stages, costs, away, prompt=False)


@pytest.mark.parametrize("prompt", [False, True])
def test_a_lone_node_takes_all_sessions_in_one_step(prompt):
    assert most_decode_rows(16, 8, 1, SHARED, Away(0.1), prompt=prompt) == 16


@pytest.mark.parametrize(
    ("costs", "away"), [(SHARED, UNKNOWN), (StepCosts(), Away(9.0)), (FREE, Away(9.0))]
)
def test_a_chains_sessions_make_a_group_for_each_node_where_more_are_not_known_to_pay(costs, away):
    made = [group_rows(16, talkers, 2, costs, away) for talkers in (0, 1, 2, 5, 8)]
    assert made == [1, 1, 1, 3, 4]
    assert group_rows(3, 8, 2, costs, away) == 3


def test_the_longer_sessions_are_away_the_more_groups_there_are():
    made = [group_rows(16, 12, 2, ROW_BY_ROW, Away(away)) for away in (0.0, 1.0, 2.0, 3.0, 9.0)]
    assert made == [6, 6, 4, 3, 1]


def test_a_group_isnt_divided_where_sharing_a_step_saves_more():
    # Two groups of four: 56 ms, and 62 ms with the wait. Three: 68 ms.
    assert group_rows(16, 8, 2, SHARED, Away(1.2)) == 4
    # 112 ms with the wait; four groups of two: 80 ms.
    assert group_rows(16, 8, 2, SHARED, Away(3.0)) == 2


def test_beside_a_prompt_the_groups_share_a_step_where_that_saves_something():
    assert most_decode_rows(16, 2, 2, SHARED, UNKNOWN, prompt=True) == 1
    assert most_decode_rows(16, 4, 2, SHARED, Away(9.0), prompt=True) == 16
    assert most_decode_rows(4, 8, 2, SHARED, UNKNOWN, prompt=True) == 4
    assert most_decode_rows(16, 4, 2, StepCosts(), UNKNOWN, prompt=True) == 2


def test_how_long_sessions_are_away_is_learned_from_short_times_sooner():
    away = UNKNOWN.seen(20_000_000, 10_000_000)
    assert away == Away(2.0)
    assert away.seen(10_000_000, 10_000_000).steps == pytest.approx(1.75)
    assert away.seen(30_000_000, 10_000_000).steps == pytest.approx(2.05)


def test_a_session_that_waited_for_its_reader_counts_for_little():
    assert Away(2.0).seen(10**12, 10_000_000).steps == pytest.approx(2.15)
    assert UNKNOWN.seen(10**12, 1).steps == MOST_AWAY


def test_a_token_that_was_asked_for_before_the_last_came_was_not_away():
    assert UNKNOWN.seen(-5, 10).steps == 0.0


@given(
    st.integers(1, 16),
    st.integers(0, 40),
    st.integers(2, 6),
    st.floats(0, MOST_AWAY),
    st.booleans(),
)
def test_every_session_has_a_group(bound, talkers, stages, away, shared):
    rows = group_rows(bound, talkers, stages, SHARED if shared else ROW_BY_ROW, Away(away))
    assert 1 <= rows <= bound
    if talkers >= stages:
        # At least as many groups as nodes.
        assert rows <= max(1, -(-talkers // stages))
