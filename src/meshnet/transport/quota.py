"""How many bytes may pass: a token bucket that lets traffic wait rather than drop it. Pure."""

from __future__ import annotations

from meshnet.domain.errors import InvalidArgumentError


class Pace:
    """Holds traffic to a mean rate. Times are seconds of any one clock that never goes back.

    After a quiet time, ``burst`` bytes pass at once. What passes is counted when it comes and may
    overdraw the bucket: whoever brought it waits until the debt is paid.
    """

    def __init__(self, bytes_per_second: float, burst: float, now: float) -> None:
        """Raises ``InvalidArgumentError`` naming the rate or burst that isn't positive."""
        for name, value in (("bytes_per_second", bytes_per_second), ("burst", burst)):
            if not 0 < value < float("inf"):
                raise InvalidArgumentError(name, f"{value} isn't a positive number of bytes")
        self._rate = bytes_per_second
        self._burst = burst
        self._left = burst
        self._at = now

    def take(self, count: int, now: float) -> float:
        """Count ``count`` bytes; gives the seconds to wait before more may be brought."""
        self._left = min(self._left + max(now - self._at, 0.0) * self._rate, self._burst) - count
        self._at = max(now, self._at)
        return max(-self._left / self._rate, 0.0)
