import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    SessionNotFoundError,
)
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import (
    CacheExpectation,
    CacheMode,
    SessionLifecycle,
    SessionState,
)


def test_an_illegal_move_tells_the_sessions_story():
    life = SessionLifecycle("gen-1")
    life.move(SessionState.ACTIVE)
    life.move(SessionState.CANCELLED, "the client left")
    with pytest.raises(InternalError, match=r"open -> active -> cancelled \(the client left\)"):
        life.move(SessionState.ACTIVE)


@given(st.lists(st.sampled_from(SessionState)))
def test_a_released_session_never_comes_back(moves):
    life = SessionLifecycle("gen-1")
    released = False
    for state in moves:
        try:
            life.move(state)
        except InternalError:
            continue
        assert not released or state is SessionState.RELEASED
        released = released or state is SessionState.RELEASED


def test_ended_sessions_refuse_steps_by_their_kind_of_end():
    life = SessionLifecycle("gen-1")
    life.require_live()
    life.move(SessionState.CANCELLED)
    with pytest.raises(CancelledError):
        life.require_live()
    life.move(SessionState.RELEASED)
    with pytest.raises(SessionNotFoundError):
        life.require_live()


@given(st.integers(0, 100), st.integers(0, 100))
def test_exact_needs_the_length_and_truncate_at_least_it(expected, held):
    exact = CacheExpectation(CacheMode.EXACT, expected)
    truncate = CacheExpectation(CacheMode.TRUNCATE, expected)
    assert exact.met_by(held) == (held == expected)
    assert truncate.met_by(held) == (held >= expected)


@given(st.sampled_from(CacheMode), st.booleans(), st.integers(1, 100))
def test_a_fork_names_its_source_and_nothing_else_does(mode, named, expected):
    source = SessionKey(RouteSessionId("a"), 0) if named else None
    if named is (mode is CacheMode.FORK):
        assert CacheExpectation(mode, expected, source).source == source
    else:
        with pytest.raises(InvalidArgumentError, match="source"):
            CacheExpectation(mode, expected, source)


def test_a_fork_of_nothing_is_refused():
    with pytest.raises(InvalidArgumentError, match="expected_past_len"):
        CacheExpectation(CacheMode.FORK, 0, SessionKey(RouteSessionId("a"), 0))


@given(st.integers(1, 100), st.integers(0, 100))
def test_a_fork_needs_a_source_of_at_least_its_length(expected, held):
    fork = CacheExpectation(CacheMode.FORK, expected, SessionKey(RouteSessionId("a"), 0))
    assert fork.met_by(held) == (held >= expected)
