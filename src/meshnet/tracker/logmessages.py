"""How lines of a machine's log get to somebody who looks after the cluster.

Machines behind NAT can't be asked. So who wants lines says so to the tracker, which passes it on
with the answer to the machine's next heartbeat, and the machine sends them.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from meshnet.tracker.fields import Count, Message

PATH_LOGS: Final = "/logs"
MAX_LINES: Final = 200
"""In one message."""
MAX_TEXT: Final = 1000
"""Characters of one line; longer ones are cut."""
MAX_CHUNK_BYTES: Final = 48 * 1024
"""Of the lines' JSON in what a machine sends at a time."""

Level = Literal["DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"]


class LogLine(Message):
    """One line of a log."""

    at: Count
    """Microseconds since 1970; no two lines of a process have the same."""
    level: Level
    process: Annotated[str, StringConstraints(max_length=32)]
    """Which of the machine's processes: ``tracker``, ``gateway``, ``agent``, ``worker``, ..."""
    text: Annotated[str, StringConstraints(max_length=MAX_TEXT)]


Lines = Annotated[tuple[LogLine, ...], Field(max_length=MAX_LINES)]


class LogChunk(Message):
    """A machine's newest lines after those that were sent before, in order."""

    lines: Lines = ()


class LogsRequest(Message):
    """An admin wants to see a machine's log."""

    after: Count = 0
    """Only lines after this time; 0: all that are there."""


class LogsReply(Message):
    """The newest lines that the tracker has got from the machine, in order."""

    lines: Lines = ()
    chunks: Count
    """How often the machine has sent lines since somebody wants them, without any included."""
