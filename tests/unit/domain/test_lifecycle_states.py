"""A session's life in any order of events, against the list of what may follow what."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from meshnet.domain.errors import CancelledError, InternalError, SessionNotFoundError
from meshnet.domain.lifecycle import SessionLifecycle, SessionState

LIVE = (SessionState.OPEN, SessionState.ACTIVE)
REASONS = st.sampled_from(["", "the client left", "a node was lost"])


class AnyLife(RuleBasedStateMachine):
    """Live sessions go anywhere but back to open; ended ones can only be released."""

    def __init__(self) -> None:
        super().__init__()
        self.life = SessionLifecycle("gen-1@0")
        self.told = ["open"]
        self.state = SessionState.OPEN

    def may(self, to: SessionState) -> bool:
        if self.state in LIVE:
            return to is not SessionState.OPEN
        return to in (self.state, SessionState.RELEASED)

    @rule(to=st.sampled_from(SessionState), why=REASONS)
    def move(self, to: SessionState, why: str) -> None:
        if not self.may(to):
            with pytest.raises(InternalError) as caught:
                self.life.move(to, why)
            assert caught.value.message.endswith(" -> ".join(self.told))
            assert "gen-1@0" in caught.value.message
            return
        self.life.move(to, why)
        if to is not self.state:
            self.told.append(f"{to.value} ({why})" if why else to.value)
        self.state = to

    @rule()
    def step(self) -> None:
        if self.state in LIVE:
            self.life.require_live()
            return
        cancelled = self.state is SessionState.CANCELLED
        with pytest.raises(CancelledError if cancelled else SessionNotFoundError):
            self.life.require_live()

    @invariant()
    def it_is_where_it_was_moved_to(self) -> None:
        assert self.life.state is self.state
        assert self.life.story == self.told


AnyLife.TestCase.settings = settings(max_examples=60, stateful_step_count=12)
TestAnyLife = AnyLife.TestCase
