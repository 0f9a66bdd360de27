"""Which machines' logs somebody wants to see, and the lines that came. Pure, in memory, bounded."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.domain.ids import NodeId
from meshnet.tracker.logmessages import MAX_LINES, LogChunk, LogLine, LogsReply

WANTED_SECONDS: Final = 15.0
"""After the last question a machine sends no more, and what it sent is forgotten."""
MAX_MACHINES: Final = 16
"""Whose logs are looked at at a time."""
KEPT_LINES: Final = 5 * MAX_LINES
"""Of one machine."""


@dataclass(slots=True)
class _Wanted:
    until: float
    chunks: int = 0
    lines: deque[LogLine] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))

    @property
    def last(self) -> int:
        return self.lines[-1].at if self.lines else 0


class LogDesk:
    """The logs that are looked at now. Times are seconds of any clock."""

    def __init__(self) -> None:
        self._wanted: dict[NodeId, _Wanted] = {}

    def want(self, node_id: NodeId, after: int, now: float) -> LogsReply:
        """Somebody wants a machine's lines, now and for some seconds.

        Raises :class:`ResourceExhaustedError` if those of too many machines are wanted already.
        """
        self._forget(now)
        wanted = self._wanted.get(node_id)
        if wanted is None:
            if len(self._wanted) >= MAX_MACHINES:
                raise ResourceExhaustedError(f"{MAX_MACHINES} machines' logs are looked at already")
            wanted = self._wanted[node_id] = _Wanted(0.0)
        wanted.until = now + WANTED_SECONDS
        lines = [line for line in wanted.lines if line.at > after]
        return LogsReply(lines=tuple(lines[-MAX_LINES:]), chunks=wanted.chunks)

    def wanted_after(self, node_id: NodeId, now: float) -> int | None:
        """The time after which a machine is to send its lines; None: they aren't wanted."""
        self._forget(now)
        wanted = self._wanted.get(node_id)
        return None if wanted is None else wanted.last

    def take(self, node_id: NodeId, chunk: LogChunk) -> None:
        """Keep what a machine sends, if it is wanted still."""
        wanted = self._wanted.get(node_id)
        if wanted is None:
            return
        wanted.chunks += 1
        # Two processes of a machine may have written a line each at the same time.
        before = wanted.last
        wanted.lines.extend(line for line in chunk.lines if line.at > before)

    def _forget(self, now: float) -> None:
        for node_id in [node for node, it in self._wanted.items() if it.until < now]:
            del self._wanted[node_id]
