"""When a generation whose chain was lost is taken up on another one, and when that is given up.

Pure: errors and times come in, what to do comes out. Nobody waits for a generation that no chain
has let in yet: its error is told at once, as its sender can ask again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from meshnet.domain.errors import (
    CancelledError,
    DeadlineExceededError,
    FingerprintMismatchError,
    InvalidArgumentError,
    LayerRangeError,
    MeshnetError,
    SessionNotFoundError,
    StaleEpochError,
    UnauthenticatedError,
    error_from,
    status_of,
)

RECOVERY_SECONDS: Final = 30.0
"""Long enough for a lease to run out and others to fetch and load the layers."""
MOST_LOSSES: Final = 3
"""Chains that may be lost one after the other at the same token: what brings a node down each time
must not bring down all of them."""


@dataclass(frozen=True, slots=True)
class RecoveryPolicy:
    """How long a reader waits for another chain."""

    seconds: float = RECOVERY_SECONDS
    """From the loss until another chain has let the generation in; 0: it ends with the loss."""
    first_pause_seconds: float = 0.05
    """Between two attempts; the first one is made at once. Doubled each time."""
    most_pause_seconds: float = 0.5

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < float("inf"):
            raise InvalidArgumentError(
                "recovery", f"{self.seconds} s must be 0 or more, and finite"
            )
        if not 0 < self.first_pause_seconds <= self.most_pause_seconds:
            raise InvalidArgumentError(
                "first_pause_seconds",
                f"{self.first_pause_seconds} must be above 0 and at most {self.most_pause_seconds}",
            )

    def pause(self, attempts: int) -> float:
        """How long to wait after so many attempts in vain."""
        if attempts == 0:
            return 0.0
        doubled = self.first_pause_seconds * 2.0 ** min(attempts - 1, 30)
        return min(doubled, self.most_pause_seconds)


NO_RECOVERY: Final = RecoveryPolicy(0.0)
OF_AN_OLD_ROUTE: Final = (
    DeadlineExceededError,
    FingerprintMismatchError,
    LayerRangeError,
    UnauthenticatedError,
)
"""What an attempt may meet on a chain that is about to give way to another: no answer in time,
nodes of another recipe, with other layers, or removed."""


@dataclass(frozen=True, slots=True)
class Again:
    """Ask for a chain after a pause."""

    recovery: Recovery
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """End the generation."""

    error: MeshnetError


@dataclass(frozen=True, slots=True)
class Recovery:
    """One generation's losses. Times are seconds of any steady clock."""

    policy: RecoveryPolicy
    deadline: float
    """Of the generation as a whole."""
    lost: MeshnetError | None = None
    """What ended the last chain; None while no token is missing."""
    since: float = 0.0
    """When that was."""
    attempts: int = 0
    """To find another chain since then."""
    losses: int = 0
    """Chains lost since the last new token."""

    @property
    def until(self) -> float:
        """By when a chain must have let the generation in."""
        if self.lost is None:
            return self.deadline
        return min(self.since + self.policy.seconds, self.deadline)

    def went_on(self) -> Recovery:
        """A new token came."""
        return self if self.lost is None else Recovery(self.policy, self.deadline)

    def after(self, error: MeshnetError, now: float, *, let_in: bool) -> Again | GiveUp:
        """What to do after a chain failed, which had or hadn't ``let_in`` the generation."""
        if let_in:
            return self._after_loss(error, now)
        if self.lost is None or isinstance(error, CancelledError):
            return GiveUp(error)
        tried = replace(self, attempts=self.attempts + 1)
        pause = self.policy.pause(tried.attempts)
        if not _may_pass(error) or now + pause >= self.until:
            return GiveUp(tried._given_up(self.lost, error, now))
        return Again(tried, pause)

    def _after_loss(self, error: MeshnetError, now: float) -> Again | GiveUp:
        if self.lost is not None and isinstance(error, FingerprintMismatchError):
            # It computes other tokens, so it isn't a chain to go on with.
            return GiveUp(self._given_up(self.lost, error, now))
        losses = self.losses + 1
        began = replace(self, lost=error, since=now, attempts=0, losses=losses)
        if not helps(error) or losses > MOST_LOSSES or now >= began.until:
            return GiveUp(error)
        return Again(began, 0.0)

    def _given_up(self, lost: MeshnetError, last: MeshnetError, now: float) -> MeshnetError:
        """The loss, with what was tried since."""
        status = status_of(lost)
        times = "once" if self.attempts <= 1 else f"{self.attempts} times"
        told = (
            f"{status.message}; tried {times} within {now - self.since:.1f} s to go on with "
            f"another chain, last: {last.message}"
        )
        return error_from(replace(status, message=told))


def helps(error: MeshnetError) -> bool:
    """Whether a generation that ended with this error can go on with another chain, or with the
    same one built anew."""
    if isinstance(error, StaleEpochError | SessionNotFoundError):
        return True
    return error.retryable and not isinstance(error, DeadlineExceededError)


def _may_pass(error: MeshnetError) -> bool:
    """Whether an attempt that failed so may succeed later: routes, too, lag behind what happens."""
    return helps(error) or isinstance(error, OF_AN_OLD_ROUTE)
