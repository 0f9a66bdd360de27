"""Life of a node and of a session, and what a step expects of the cache. No I/O, no clock."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from meshnet.domain.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    SessionNotFoundError,
)
from meshnet.domain.ids import SessionKey


class LifecycleState(Enum):
    """State of a node or an engine; READY means an engine step succeeded recently."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


class CacheMode(Enum):
    """What a step wants of the session's cache."""

    FRESH = "fresh"
    """The session is new here: an empty cache is made."""
    EXACT = "exact"
    """The cache must hold exactly ``expected_past_len`` positions."""
    TRUNCATE = "truncate"
    """The cache holds at least ``expected_past_len`` positions; those past them are dropped."""
    FORK = "fork"
    """The session is new here: its cache begins as the first ``expected_past_len`` positions of
    another session's, which stays as it is."""


@dataclass(frozen=True, slots=True)
class CacheExpectation:
    """The cache a step was computed for. A mismatch is a miss, never a silent recomputation."""

    mode: CacheMode
    expected_past_len: int = 0
    source: SessionKey | None = None
    """Whose cache a ``FORK`` begins with; None for every other mode."""

    def __post_init__(self) -> None:
        if (self.source is not None) is not (self.mode is CacheMode.FORK):
            raise InvalidArgumentError("source", "a fork names its source, and nothing else does")
        if self.source is not None and self.expected_past_len < 1:
            raise InvalidArgumentError(
                "expected_past_len", "a fork takes at least one position; open a fresh session"
            )

    def met_by(self, past_len: int) -> bool:
        """Whether a cache of ``past_len`` positions, a fork's source, is what the step expects."""
        if self.mode in (CacheMode.TRUNCATE, CacheMode.FORK):
            return past_len >= self.expected_past_len
        return past_len == self.expected_past_len


@dataclass(frozen=True, slots=True)
class CacheResult:
    """Whether the cache was as expected, and how many positions it holds after the step."""

    hit: bool
    past_len: int


class SessionState(Enum):
    """Where a session stands on one node."""

    OPEN = "open"
    ACTIVE = "active"
    CANCELLED = "cancelled"
    FAILED = "failed"
    RELEASED = "released"


_MOVES: dict[SessionState, frozenset[SessionState]] = {
    SessionState.OPEN: frozenset(
        {SessionState.ACTIVE, SessionState.CANCELLED, SessionState.FAILED, SessionState.RELEASED}
    ),
    SessionState.ACTIVE: frozenset(
        {SessionState.ACTIVE, SessionState.CANCELLED, SessionState.FAILED, SessionState.RELEASED}
    ),
    SessionState.CANCELLED: frozenset({SessionState.CANCELLED, SessionState.RELEASED}),
    SessionState.FAILED: frozenset({SessionState.FAILED, SessionState.RELEASED}),
    SessionState.RELEASED: frozenset({SessionState.RELEASED}),
}


@dataclass(slots=True)
class SessionLifecycle:
    """A session's state and how it came there.

    ``cancel`` and ``release`` may be said twice; an illegal move raises with the whole story, since
    it means that two parts of a node disagree about the session.
    """

    session: str
    state: SessionState = SessionState.OPEN
    story: list[str] = field(default_factory=lambda: ["open"])

    def move(self, to: SessionState, why: str = "") -> None:
        """Go to ``to``; raises :class:`InternalError` with the story if that can't be."""
        if to not in _MOVES[self.state]:
            told = " -> ".join(self.story)
            raise InternalError(
                f"session {self.session} can't go from {self.state.value} to {to.value}: {told}"
            )
        if to is not self.state:
            self.story.append(f"{to.value} ({why})" if why else to.value)
            self.state = to

    def require_live(self) -> None:
        """Raise unless a step may run now."""
        if self.state is SessionState.CANCELLED:
            raise CancelledError(f"session {self.session} was cancelled")
        if self.state in (SessionState.RELEASED, SessionState.FAILED):
            raise SessionNotFoundError(f"session {self.session} is {self.state.value}")
