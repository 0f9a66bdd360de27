"""When a generation goes on with another chain, and when its loss is told."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meshnet.domain.errors import (
    CacheMissError,
    CancelledError,
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
    FingerprintMismatchError,
    InternalError,
    InvalidArgumentError,
    LayerRangeError,
    MalformedFrameError,
    MeshnetError,
    NodeLostError,
    NodeNotReadyError,
    NodeUnreachableError,
    ResourceExhaustedError,
    SessionNotFoundError,
    StaleEpochError,
    UnauthenticatedError,
)
from meshnet.session.recovery import (
    MOST_LOSSES,
    NO_RECOVERY,
    Again,
    GiveUp,
    Recovery,
    RecoveryPolicy,
    helps,
)

HELPED = (
    NodeLostError("lost node b", node="b"),
    NodeUnreachableError("can't reach node b", node="b"),
    NodeNotReadyError("no node is ready with layers [2, 4)"),
    CacheMissError("it holds nothing"),
    StaleEpochError("epoch 0 is over"),
    SessionNotFoundError("no such session"),
    ResourceExhaustedError("all places are taken"),
)
FINAL = (
    CancelledError("somebody cancelled it"),
    EngineError("it failed"),
    InternalError("a fault"),
    MalformedFrameError("frame", "it lies"),
    InvalidArgumentError("grammar", "leave it out"),
    ContextLengthError("too long"),
)
OLD_ROUTE = (
    DeadlineExceededError("it is late"),
    FingerprintMismatchError("other numbers"),
    LayerRangeError("it holds other layers"),
    UnauthenticatedError("it was removed"),
)
OLD_ROUTE_TYPES = tuple(type(error) for error in OLD_ROUTE)
LOST = HELPED[0]
POLICY = RecoveryPolicy(30.0, 0.05, 0.5)
NEW = Recovery(POLICY, deadline=600.0)


def again(verdict: Again | GiveUp) -> Again:
    assert isinstance(verdict, Again), verdict
    return verdict


def given_up(verdict: Again | GiveUp) -> MeshnetError:
    assert isinstance(verdict, GiveUp), verdict
    return verdict.error


def lost_at(now: float, recovery: Recovery = NEW) -> Recovery:
    return again(recovery.after(LOST, now, let_in=True)).recovery


@pytest.mark.parametrize("error", HELPED, ids=lambda error: type(error).__name__)
def test_what_another_chain_helps_against_is_tried_at_once(error):
    assert helps(error)
    verdict = again(NEW.after(error, 5.0, let_in=True))
    assert (verdict.pause_seconds, verdict.recovery.lost) == (0.0, error)
    assert verdict.recovery.until == 35.0


@pytest.mark.parametrize("error", [*FINAL, *OLD_ROUTE], ids=lambda error: type(error).__name__)
def test_what_no_chain_helps_against_is_told_as_it_is(error):
    assert not helps(error)
    assert given_up(NEW.after(error, 5.0, let_in=True)) is error


@pytest.mark.parametrize("error", [*HELPED, *FINAL], ids=lambda error: type(error).__name__)
def test_nobody_waits_for_a_generation_that_was_never_let_in(error):
    assert given_up(NEW.after(error, 5.0, let_in=False)) is error


def test_no_time_for_it_means_no_recovery():
    off = Recovery(NO_RECOVERY, 600.0)
    assert given_up(off.after(LOST, 5.0, let_in=True)) is LOST
    late = replace(NEW, deadline=5.0)
    assert given_up(late.after(LOST, 5.0, let_in=True)) is LOST


def test_attempts_come_at_once_and_then_with_pauses_that_double_up_to_a_bound():
    recovery, pauses = lost_at(0.0), []
    for _ in range(7):
        verdict = again(recovery.after(NodeNotReadyError("not yet"), 1.0, let_in=False))
        recovery = verdict.recovery
        pauses.append(verdict.pause_seconds)
    assert pauses == [0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("error", OLD_ROUTE, ids=lambda error: type(error).__name__)
def test_a_route_that_lags_behind_is_asked_for_again(error):
    assert again(lost_at(0.0).after(error, 1.0, let_in=False)).pause_seconds > 0


@pytest.mark.parametrize("error", FINAL[1:], ids=lambda error: type(error).__name__)
def test_an_attempt_that_cant_succeed_later_ends_it_with_the_loss(error):
    told = given_up(lost_at(0.0).after(error, 2.0, let_in=False))
    assert type(told) is NodeLostError
    assert told.details == LOST.details
    assert LOST.message in told.message and error.message in told.message
    assert "once within 2.0 s" in told.message


def test_a_cancel_is_told_as_one():
    cancelled = CancelledError("somebody cancelled it")
    assert given_up(lost_at(0.0).after(cancelled, 2.0, let_in=False)) is cancelled
    assert given_up(lost_at(0.0).after(cancelled, 2.0, let_in=True)) is cancelled


def test_another_recipe_is_waited_out_and_never_used():
    other = FingerprintMismatchError("other numbers")
    recovery = again(lost_at(0.0).after(other, 1.0, let_in=False)).recovery
    told = given_up(recovery.after(other, 30.0, let_in=False))
    assert type(told) is NodeLostError
    assert "2 times within 30.0 s" in told.message
    # One that let the generation in and then gave another token is no chain to go on with.
    told = given_up(lost_at(0.0).after(other, 1.0, let_in=True))
    assert type(told) is NodeLostError
    assert "other numbers" in told.message


def test_what_brings_down_every_chain_at_one_token_ends():
    recovery = NEW
    for second in range(MOST_LOSSES):
        recovery = lost_at(float(second), recovery)
    assert given_up(recovery.after(LOST, 9.0, let_in=True)) is LOST
    assert again(recovery.went_on().after(LOST, 9.0, let_in=True))


@pytest.mark.parametrize("seconds", [-1.0, float("inf"), float("nan")])
def test_a_time_to_wait_is_a_number_of_seconds(seconds):
    with pytest.raises(InvalidArgumentError, match="recovery"):
        RecoveryPolicy(seconds)


def test_pauses_are_positive_and_bounded():
    with pytest.raises(InvalidArgumentError, match="first_pause_seconds"):
        RecoveryPolicy(1.0, 2.0, 1.0)
    with pytest.raises(InvalidArgumentError, match="first_pause_seconds"):
        RecoveryPolicy(1.0, 0.0, 1.0)


class Losses(RuleBasedStateMachine):
    """A generation that is let in, tokened, lost and refused in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.now = 0.0
        self.recovery = NEW
        self.let_in = False
        self.begun = False
        self.over: MeshnetError | None = None
        self.lost_since_token: list[MeshnetError] = []
        self.lost_at = 0.0
        self.attempts = 0

    @precondition(lambda self: self.over is not None)
    @rule()
    def another_one_begins(self):
        self.begin()

    @precondition(lambda self: self.over is None)
    @rule(seconds=st.floats(0.0, 20.0))
    def time_passes(self, seconds):
        self.now += seconds

    @precondition(lambda self: self.over is None and not self.let_in)
    @rule()
    def a_chain_lets_it_in(self):
        self.let_in = self.begun = True

    @precondition(lambda self: self.over is None and self.let_in)
    @rule()
    def a_token_comes(self):
        self.recovery = self.recovery.went_on()
        self.lost_since_token = []

    @precondition(lambda self: self.over is None)
    @rule(error=st.sampled_from((*HELPED, *FINAL, *OLD_ROUTE)))
    def it_fails(self, error):
        was_in, self.let_in = self.let_in, False
        waited_for = bool(self.lost_since_token)
        if was_in:
            self.lost_at, self.attempts = self.now, 0
            self.lost_since_token.append(error)
        else:
            self.attempts += 1
        verdict = self.recovery.after(error, self.now, let_in=was_in)
        if isinstance(verdict, GiveUp):
            self.over = verdict.error
            mismatch = waited_for and isinstance(error, FingerprintMismatchError)
            if (waited_for and not was_in and not isinstance(error, CancelledError)) or mismatch:
                # The error as it would have been without any attempt, and what was tried.
                loss = self.lost_since_token[-2 if was_in else -1]
                assert verdict.error.code is loss.code
                assert error.message in verdict.error.message
            else:
                assert verdict.error is error
            return
        assert self.begun
        assert len(self.lost_since_token) <= MOST_LOSSES
        assert self.now + verdict.pause_seconds < min(self.lost_at + POLICY.seconds, NEW.deadline)
        assert (verdict.pause_seconds > 0) is not was_in
        assert verdict.recovery.attempts == self.attempts
        assert helps(error) or (isinstance(error, OLD_ROUTE_TYPES) and not was_in)
        self.recovery = verdict.recovery

    @invariant()
    def a_loss_is_remembered_until_a_token_comes(self):
        if self.over is None:
            assert (self.recovery.lost is not None) is bool(self.lost_since_token)
            if self.lost_since_token:
                assert self.recovery.lost is self.lost_since_token[-1]


TestLosses = Losses.TestCase
TestLosses.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
