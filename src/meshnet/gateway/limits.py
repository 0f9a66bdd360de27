"""What each key has used of its limits; pure, with the time passed in.

Times are Unix seconds. A clock that is set back refills nothing until it has caught up.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from enum import Enum

from meshnet.tracker.apikeys import ApiKey

DAY = 86_400.0
SLOT = 900.0
"""Tokens are forgotten a quarter of an hour's worth at a time, never before a day has passed."""
MINUTE = 60.0


class Limit(Enum):
    """Which of its limits a key has reached."""

    REQUESTS = "requests"
    CONCURRENT = "concurrent"
    TOKENS = "tokens"


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request may not come in, and how many seconds later one may."""

    limit: Limit
    message: str
    retry_after_seconds: float


@dataclass(slots=True)
class Bucket:
    """``per_minute`` requests a minute, up to as many at once."""

    per_minute: int
    at: float
    level: float = 0.0

    def __post_init__(self) -> None:
        self.level = float(self.per_minute)

    def refilled(self, now: float) -> float:
        """Requests that may come in now."""
        passed = max(now - self.at, 0.0)
        return min(self.level + passed * self.per_minute / MINUTE, float(self.per_minute))

    def take(self, now: float) -> None:
        """Count one request."""
        self.level = self.refilled(now) - 1.0
        self.at = max(now, self.at)

    def resized(self, per_minute: int, now: float) -> None:
        """Another limit from now on; what was used stays used."""
        used = self.per_minute - self.refilled(now)
        self.per_minute = per_minute
        self.level = max(per_minute - used, 0.0)
        self.at = max(now, self.at)

    def seconds_until(self, level: float, now: float) -> float:
        """How long until so many may come in; 0 if they may now."""
        return max(level - self.refilled(now), 0.0) * MINUTE / self.per_minute


@dataclass(slots=True)
class Day:
    """Tokens of the last 24 hours."""

    slots: deque[tuple[float, int]] = field(default_factory=deque)
    """Beginnings of quarters of an hour, ascending, with the tokens used in each."""

    def add(self, tokens: int, now: float) -> None:
        """Count tokens."""
        start = now - now % SLOT
        if self.slots and self.slots[-1][0] >= start:
            start, used = self.slots.pop()
            tokens += used
        self.slots.append((start, tokens))
        self._forget(now)

    def used(self, now: float) -> int:
        """Tokens that count now."""
        self._forget(now)
        return sum(tokens for _, tokens in self.slots)

    def seconds_until_below(self, limit: int, now: float) -> float:
        """How long until fewer than ``limit`` count; 0 if that is so now."""
        used = self.used(now)
        wait = 0.0
        for start, tokens in self.slots:
            if used < limit:
                break
            used -= tokens
            wait = start + SLOT + DAY - now
        return wait

    def _forget(self, now: float) -> None:
        while self.slots and self.slots[0][0] + SLOT + DAY <= now:
            self.slots.popleft()


@dataclass(slots=True)
class _Use:
    day: Day = field(default_factory=Day)
    bucket: Bucket | None = None
    inside: int = 0


class Limiter:
    """The use that all keys make of one gateway."""

    def __init__(self) -> None:
        self._uses: dict[str, _Use] = {}

    def enter(self, key: ApiKey, now: float) -> Refusal | None:
        """Let a request in and count it, or say why not; :meth:`leave` follows if it was let in."""
        use = self._use(key.key_id)
        refusal = self._refusal(key, use, now)
        if refusal is None:
            use.inside += 1
            if use.bucket is not None:
                use.bucket.take(now)
        return refusal

    def leave(self, key_id: str) -> None:
        """A request that was let in is over."""
        self._use(key_id).inside -= 1

    def spend(self, key_id: str, tokens: int, now: float) -> None:
        """Count tokens of a prompt and its answer; times of one key must not go back."""
        self._use(key_id).day.add(tokens, now)

    def headers(self, key: ApiKey, now: float) -> dict[str, str]:
        """OpenAI's headers about what is left; none where the key has no limit."""
        use, limits = self._use(key.key_id), key.limits
        told: dict[str, str] = {}
        bucket = self._bucket(key, use, now)
        if bucket is not None:
            left = math.floor(bucket.refilled(now))
            reset = bucket.seconds_until(bucket.per_minute, now)
            told |= _header("requests", bucket.per_minute, left, reset)
        if limits.tokens_per_day is not None:
            left = max(limits.tokens_per_day - use.day.used(now), 0)
            reset = use.day.seconds_until_below(1, now)
            told |= _header("tokens", limits.tokens_per_day, left, reset)
        return told

    def _refusal(self, key: ApiKey, use: _Use, now: float) -> Refusal | None:
        limits = key.limits
        most = limits.tokens_per_day
        if most is not None and use.day.used(now) >= most:
            return Refusal(
                Limit.TOKENS,
                f"the key {key.name!r} has used its {most} tokens of the last 24 hours",
                use.day.seconds_until_below(most, now),
            )
        most = limits.concurrent_requests
        if most is not None and use.inside >= most:
            return Refusal(
                Limit.CONCURRENT,
                f"the key {key.name!r} has {use.inside} requests under way, as many as it may",
                1.0,
            )
        bucket = self._bucket(key, use, now)
        if bucket is not None and bucket.refilled(now) < 1.0:
            return Refusal(
                Limit.REQUESTS,
                f"the key {key.name!r} may send {bucket.per_minute} requests a minute",
                bucket.seconds_until(1.0, now),
            )
        return None

    def _bucket(self, key: ApiKey, use: _Use, now: float) -> Bucket | None:
        rate = key.limits.requests_per_minute
        if rate is None:
            use.bucket = None
        elif use.bucket is None:
            use.bucket = Bucket(rate, now)
        elif use.bucket.per_minute != rate:
            use.bucket.resized(rate, now)
        return use.bucket

    def _use(self, key_id: str) -> _Use:
        return self._uses.setdefault(key_id, _Use())


def _header(what: str, limit: int, left: int, reset_seconds: float) -> dict[str, str]:
    return {
        f"x-ratelimit-limit-{what}": str(limit),
        f"x-ratelimit-remaining-{what}": str(left),
        f"x-ratelimit-reset-{what}": duration(reset_seconds),
    }


def duration(seconds: float) -> str:
    """Seconds as OpenAI's headers have them: ``120ms``, ``1.5s``, ``6m0s``, ``2h0m1s``."""
    if seconds < 1.0:
        return f"{math.ceil(seconds * 1e3)}ms"
    if seconds < MINUTE:
        return f"{math.ceil(seconds * 10) / 10:g}s"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h{minutes}m{rest}s" if hours else f"{minutes}m{rest}s"
