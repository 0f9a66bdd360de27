"""Who gets a cache: a machine that does at random what sessions do, and rules that always hold."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.node.seats import LACKING, ROOM, Bounds, Seats


def key(name: object) -> SessionKey:
    return SessionKey(RouteSessionId(str(name)), 0)


class Node(RuleBasedStateMachine):
    """``held`` are the caches that the engine would hold."""

    @initialize(sessions=st.integers(1, 4), spare=st.integers(0, 2), positions=st.integers(10, 60))
    def begin(self, sessions: int, spare: int, positions: int) -> None:
        self.bounds = Bounds(sessions, sessions + spare, positions)
        self.seats = Seats(self.bounds)
        self.held: set[SessionKey] = set()
        self.forking: dict[SessionKey, SessionKey] = {}
        self.count = 0

    def _gone(self, evicted: list[SessionKey]) -> None:
        for each in evicted:
            assert each not in self.forking.values(), "a fork's source was dropped before the fork"
            self.held.discard(each)

    @rule(positions=st.integers(1, 20), data=st.data())
    def admit(self, positions: int, data: st.DataObject) -> None:
        self.count += 1
        new = key(self.count)
        source = data.draw(st.none() | st.sampled_from([*self.seats.kept, key("unknown")]))
        reserved = sum(self.seats.running.values())
        full = len(self.seats.running) >= self.bounds.sessions
        if full or reserved + positions > self.bounds.positions:
            with pytest.raises(ResourceExhaustedError):
                self.seats.admit(new, positions, source)
            return
        evicted = self.seats.admit(new, positions, source)
        self._gone(evicted)
        if self.seats.will_fork(new):
            assert source is not None
            assert source in self.seats.kept
            assert self.seats.seated(new), "a fork that must wait for others could wait for ever"
            self.forking[new] = source

    @precondition(lambda self: self.seats.running)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        each = data.draw(st.sampled_from(list(self.seats.running)))
        if self.seats.seated(each):
            assert self.forking.get(each) in (None, *self.held)
            self.held.add(each)
            self.forking.pop(each, None)
            self._gone(self.seats.forked(each))

    @precondition(lambda self: self.seats.running)
    @rule(data=st.data(), keep=st.booleans())
    def end(self, data: st.DataObject, keep: bool) -> None:
        each = data.draw(st.sampled_from(list(self.seats.running)))
        self.forking.pop(each, None)
        if keep and each in self.held:
            self._gone(self.seats.keep(each))
        else:
            self.held.discard(each)
            self._gone(self.seats.leave(each))

    @precondition(lambda self: self.seats.kept)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        self._gone(self.seats.drop(data.draw(st.sampled_from(list(self.seats.kept)))))

    @invariant()
    def the_engine_has_room_for_all_that_may_step(self) -> None:
        seated = {each for each in self.seats.running if self.seats.seated(each)}
        assert len(seated | set(self.seats.kept)) <= self.bounds.places
        assert self.held == (self.held & seated) | set(self.seats.kept)

    @invariant()
    def somebody_stands_only_while_a_fork_is_due(self) -> None:
        assert not self.seats.standing or self.forking

    @invariant()
    def kept_prefixes_take_only_room_that_is_left(self) -> None:
        positions = sum(self.seats.running.values()) + sum(self.seats.kept.values())
        assert self.forking or positions <= self.bounds.positions


TestNode = Node.TestCase
TestNode.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)


def test_the_prefix_unused_for_the_longest_goes_first():
    seats = Seats(Bounds(3, 3, 100))
    for name in "abc":
        seats.admit(key(name), 5)
        seats.keep(key(name))
    assert seats.admit(key("d"), 5, key("a")) == [key("b")]
    assert seats.will_fork(key("d"))
    assert seats.forked(key("d")) == []
    assert seats.admit(key("e"), 5) == [key("c")]


def test_a_prefix_that_is_dropped_while_a_fork_is_due_goes_after_the_fork():
    seats = Seats(Bounds(2, 3, 100))
    seats.admit(key("old"), 5)
    seats.keep(key("old"))
    seats.admit(key("fork"), 5, key("old"))
    assert seats.drop(key("old")) == []
    assert not seats.will_fork(key("old"))
    seats.admit(key("late"), 5, key("old"))
    assert not seats.will_fork(key("late")), "nobody else begins with it"
    assert seats.forked(key("fork")) == [key("old")]


def test_the_reason_for_a_refusal_names_the_bound():
    seats = Seats(Bounds(1, 1, 10))
    with pytest.raises(ResourceExhaustedError, match=r"0 of 10 positions.* 11") as long:
        seats.admit(key("long"), 11)
    seats.admit(key("a"), 10)
    with pytest.raises(ResourceExhaustedError, match="serves 1 sessions") as full:
        seats.admit(key("b"), 1)
    assert long.value.details == full.value.details == {LACKING: ROOM}


@given(st.lists(st.integers(1, 10), max_size=10))
def test_positions_come_back_when_a_session_ends(sizes):
    seats = Seats(Bounds(10, 10, 100))
    for name, size in enumerate(sizes):
        seats.admit(key(name), size)
    for name in range(len(sizes)):
        seats.leave(key(name))
    assert not seats.running
    assert seats.admit(key("all"), 100) == []
