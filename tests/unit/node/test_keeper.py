"""When a worker that died is started again."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.node.keeper import FIRST_PAUSE_SECONDS, MAX_DEATHS, WINDOW_SECONDS, RestartPolicy


def pauses(times: list[float]) -> list[float | None]:
    policy, made = RestartPolicy(), []
    for now in times:
        policy, pause = policy.after_death(now)
        made.append(pause)
    return made


def test_pauses_double_until_it_is_given_up():
    first = FIRST_PAUSE_SECONDS
    assert pauses([0, 1, 2, 3, 4]) == [first, 2 * first, 4 * first, 8 * first, None]


def test_deaths_long_ago_are_forgotten():
    assert pauses([0, 1, 2, 3, 2 + WINDOW_SECONDS]) == [0.25, 0.5, 1.0, 2.0, 0.5]


@given(st.lists(st.floats(0, 1000), max_size=30).map(sorted))
def test_it_is_given_up_exactly_when_a_window_holds_too_many(times):
    for count, pause in enumerate(pauses(times), start=1):
        now = times[count - 1]
        in_window = sum(now - death < WINDOW_SECONDS for death in times[:count])
        assert (pause is None) == (in_window >= MAX_DEATHS)
        if pause is not None:
            assert 0 < pause <= FIRST_PAUSE_SECONDS * 2 ** (MAX_DEATHS - 2)
