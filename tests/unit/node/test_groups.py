"""Into how many groups a head divides its sessions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.node.groups import Away, most_decode_rows
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
    ("costs", "away"),
    [(SHARED, UNKNOWN), (StepCosts(), Away(0.1)), (FREE, Away(0.1)), (SHARED, Away(0.0))],
)
def test_a_chains_sessions_make_a_group_for_each_node_where_more_are_not_known_to_pay(costs, away):
    made = [group_rows(16, talkers, 2, costs, away) for talkers in (0, 1, 2, 5, 8)]
    assert made == [1, 1, 1, 3, 4]
    assert group_rows(3, 8, 2, costs, away) == 3


def test_the_longer_sessions_are_away_the_more_groups_there_are():
    aways = (0.0, 0.05, 0.1, 0.2)
    made = [group_rows(16, 12, 2, ROW_BY_ROW, Away(away)) for away in aways]
    assert made == [6, 6, 3, 2]


def test_a_group_isnt_divided_where_sharing_a_step_saves_more():
    # Two groups of four: 56 ms, and 63 ms with the wait. Three: 68 ms.
    assert group_rows(16, 8, 2, SHARED, Away(0.035)) == 4
    # 128 ms with the wait; with groups of two 120 ms, with single rows 110 ms.
    assert group_rows(16, 8, 2, SHARED, Away(0.1)) == 1


def test_a_turn_that_gets_hardly_shorter_is_no_reason_to_divide():
    # 428 ms with the wait, 410 ms with single rows.
    assert group_rows(16, 8, 2, SHARED, Away(0.4)) == 4


def test_beside_a_prompt_the_groups_share_a_step_where_that_saves_something():
    assert most_decode_rows(16, 2, 2, SHARED, UNKNOWN, prompt=True) == 1
    assert most_decode_rows(16, 4, 2, SHARED, Away(0.1), prompt=True) == 16
    assert most_decode_rows(4, 8, 2, SHARED, UNKNOWN, prompt=True) == 4
    assert most_decode_rows(16, 4, 2, StepCosts(), UNKNOWN, prompt=True) == 2


def test_how_long_sessions_are_away_is_learned_from_short_times_sooner():
    away = UNKNOWN.seen(0.02)
    assert away == Away(0.02)
    assert away.seen(0.01).seconds == pytest.approx(0.0175)
    assert away.seen(0.03).seconds == pytest.approx(0.0205)


def test_a_session_that_waited_for_its_reader_counts_for_little():
    assert Away(0.02).seen(60.0).seconds == pytest.approx(0.02105)


def test_a_token_that_was_asked_for_before_the_last_came_was_not_away():
    assert Away(0.02).seen(-0.5).seconds == pytest.approx(0.015)
    assert UNKNOWN.seen(-0.5) == Away(0.0)


@given(st.integers(1, 16), st.integers(0, 40), st.integers(2, 6), st.floats(0, 100), st.booleans())
def test_every_session_has_a_group(bound, talkers, stages, away, shared):
    rows = group_rows(bound, talkers, stages, SHARED if shared else ROW_BY_ROW, Away(away))
    assert 1 <= rows <= bound
    # At least as many groups as nodes, where there are so many sessions.
    assert rows <= max(1, -(-talkers // stages))
