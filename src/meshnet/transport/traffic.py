"""What went over a seam, as it was serialised; HTTP/2's own framing isn't in it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Traffic:
    """Messages and their bytes in both directions, since the process started."""

    sent_messages: int = 0
    sent_bytes: int = 0
    received_messages: int = 0
    received_bytes: int = 0

    def sent(self, size: int) -> None:
        """Count a message that was queued to leave."""
        self.sent_messages += 1
        self.sent_bytes += size

    def received(self, size: int) -> None:
        """Count a message that came in."""
        self.received_messages += 1
        self.received_bytes += size
