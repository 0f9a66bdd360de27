"""How long silence, failures and an owner's hours are borne. Pure; time is handed in.

Leases and silence are seconds of a steady clock, which never jumps and counts from anywhere. An
owner's hours are Unix seconds, which jump when the system's clock is set right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError

_DAY_MINUTES = 24 * 60
_HOURS = re.compile(r"(\d\d):(\d\d)-(\d\d):(\d\d)")


@dataclass(frozen=True, slots=True)
class Policy:
    """Time-outs of the control plane, in seconds."""

    heartbeat_seconds: float = 2.0
    """How often a node says how it is."""
    lease_seconds: float = 8.0
    """A node that was silent for longer is taken for gone."""
    forget_seconds: float = 24 * 3600.0
    """A node that was silent for longer isn't listed any more."""
    failing_seconds: float = 60.0
    """A node that fails to load its layers for longer is passed over, where another can."""
    blocked_seconds: float = 600.0
    """How long it is passed over then."""
    first_avoid_seconds: float = 2.0
    """How long a node isn't chosen after a first error; doubled with each further one in a row."""
    most_avoid_seconds: float = 60.0
    leave_ahead_seconds: float = 600.0
    """How long before an owner's hours end others are made ready."""

    def __post_init__(self) -> None:
        if not 0 < self.heartbeat_seconds < self.lease_seconds:
            raise InvalidArgumentError(
                "lease_seconds",
                f"{self.lease_seconds} must be more than the {self.heartbeat_seconds} s between "
                f"heartbeats",
            )

    def avoid_seconds(self, errors: int) -> float:
        """How long a node that erred ``errors`` times in a row isn't chosen."""
        doubled = self.first_avoid_seconds * 2.0 ** min(errors - 1, 30)
        return min(doubled, self.most_avoid_seconds)


@dataclass(frozen=True, slots=True)
class Hours:
    """A span of every day, in minutes of the UTC day.

    One that ends before it begins spans midnight; an equal beginning and end mean the whole day.
    """

    begin: int
    end: int

    def __post_init__(self) -> None:
        for minute in (self.begin, self.end):
            if not 0 <= minute < _DAY_MINUTES:
                raise InvalidArgumentError("hours", f"minute {minute} isn't one of a day's")

    def __str__(self) -> str:
        return f"{self.begin // 60:02}:{self.begin % 60:02}-{self.end // 60:02}:{self.end % 60:02}"

    def holds(self, unix: float) -> bool:
        """Whether a moment lies within."""
        minute = unix / 60 % _DAY_MINUTES
        if self.begin < self.end:
            return self.begin <= minute < self.end
        return self.begin == self.end or not self.end <= minute < self.begin


def parse_hours(text: str) -> Hours:
    """Read ``HH:MM-HH:MM`` (UTC); raises ``InvalidArgumentError`` for anything else."""
    match = _HOURS.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError("hours", f"{text!r} isn't of the form HH:MM-HH:MM")
    begin, begin_minute, end, end_minute = map(int, match.groups())
    if max(begin_minute, end_minute) > 59 or max(begin, end) > 23:
        raise InvalidArgumentError("hours", f"{text!r} names a time that no day has")
    return Hours(begin * 60 + begin_minute, end * 60 + end_minute)
