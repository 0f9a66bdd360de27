"""What this machine's processes did, in files of bounded size in the state folder.

Each process has files of its own, ``logs/NAME.log`` and the older ``NAME.log.1`` to ``.3``, for the
owner alone; a line is a JSON object (:class:`LogLine`). Prompts and answers are in none of them.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import re
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final, cast

from pydantic import ValidationError

from meshnet.domain.printable import printable
from meshnet.tracker.logmessages import MAX_CHUNK_BYTES, MAX_LINES, MAX_TEXT, Level, LogLine

FILE_BYTES: Final = 1 << 20
OLDER_FILES: Final = 3
ROOT: Final = "meshnet"
"""The logger of all that Meshnet itself says."""
_PARTS: Final = (
    ("meshnet.gateway", "gateway"),
    ("meshnet.session", "gateway"),
    ("meshnet.node.supervisor", "worker"),
    ("meshnet.node.keeper", "worker"),
    ("meshnet.transport.relay", "relay"),
    ("meshnet.cli.relaying", "relay"),
)
"""Parts of one process that people think of as several, by their loggers' names."""
_SECRETS: Final = re.compile(r"mesh1_\S+|sk-mesh-\S+")


def folder_of(state: Path) -> Path:
    """Where a machine's logs are."""
    return state / "logs"


def log_to_files(state: Path, process: str) -> None:
    """From now on, write down what this process does, from level INFO on.

    Where that can't be done, nothing is written down, and the process goes on.
    """
    logger = logging.getLogger(ROOT)
    try:
        logger.addHandler(_Files(folder_of(state), process))
    except OSError as error:
        logger.warning("no log is kept in %s: %s", folder_of(state), error.strerror)
        return
    logger.setLevel(min(logging.INFO, logger.getEffectiveLevel()))


class _Files(logging.handlers.RotatingFileHandler):
    """Files of bounded size and number; each line as JSON, readable by their owner alone."""

    def __init__(self, folder: Path, process: str) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._process = process
        self._last = 0
        super().__init__(
            folder / f"{process}.log", maxBytes=FILE_BYTES, backupCount=OLDER_FILES, delay=False
        )
        self.setLevel(logging.INFO)

    def _open(self):  # type: ignore[no-untyped-def]
        handle = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        return os.fdopen(handle, "a", encoding="utf-8", errors="replace")

    def format(self, record: logging.LogRecord) -> str:
        """The line for a record; a fault is told by its kind and place, not by what it holds."""
        text = record.getMessage()
        if record.exc_info and record.exc_info[0] is not None:
            place = traceback.extract_tb(record.exc_info[2])[-1:]
            where = "".join(f" at {Path(it.filename).name}:{it.lineno}" for it in place)
            text = f"{text} ({record.exc_info[0].__name__}{where})"
        # Also if the clock is set back, so that no two are the same.
        self._last = max(int(record.created * 1e6), self._last + 1)
        line = LogLine(
            at=self._last,
            level=cast("Level", _level(record.levelno)),
            process=_part_of(record.name, self._process),
            text=printable(_SECRETS.sub("(secret)", text), MAX_TEXT),
        )
        return line.model_dump_json()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - logging's name
        """A full disk loses lines of the log, and nothing else."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handleError(record)


def _level(number: int) -> str:
    for level in ("CRITICAL", "ERROR", "WARNING", "INFO"):
        if number >= logging.getLevelNamesMapping()[level]:
            return level
    return "DEBUG"


def _part_of(name: str, process: str) -> str:
    return next((part for start, part in _PARTS if name.startswith(start)), process)


def newest(state: Path, after: int, most: int) -> list[LogLine]:
    """The newest ``most`` lines after a time, of all processes, in order. Blocks.

    Lines that are written while it reads are left for the next time: it may have read the file of
    another process before that wrote an earlier one.
    """
    began = time.time() * 1e6
    lines = [line for line in _lines(folder_of(state), after) if line.at > after]
    ended = time.time() * 1e6
    lines = [line for line in lines if not began < line.at <= ended]
    lines.sort(key=lambda line: line.at)
    return lines[-most:] if most else []


def chunk(state: Path, after: int) -> tuple[LogLine, ...]:
    """The same, no more than one message may hold; says so if there are more."""
    lines = newest(state, after, 10 * MAX_LINES)
    kept: list[LogLine] = []
    size = 0
    for line in reversed(lines):
        size += len(line.model_dump_json().encode())
        if size > MAX_CHUNK_BYTES or len(kept) == MAX_LINES - 1:
            break
        kept.append(line)
    kept.reverse()
    left = len(lines) - len(kept)
    if left and after:
        told = f"{left} lines are left out; they are in the log on the machine"
        first = kept[0].at - 1 if kept else after + 1
        kept.insert(0, LogLine(at=first, level="WARNING", process="agent", text=told))
    return tuple(kept)


def _lines(folder: Path, after: int) -> Iterator[LogLine]:
    for path in sorted(folder.glob("*.log*")):
        try:
            if path.stat().st_mtime * 1e6 + 1e6 < after:
                continue
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError:
            # Renamed just now: its lines are in another one.
            continue
        for line in text.splitlines():
            try:
                yield LogLine.model_validate_json(line)
            except ValidationError:
                # Cut off when the machine lost its power.
                continue


def shown(line: LogLine) -> str:
    """A line for people, in local time."""
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(line.at / 1e6))
    text = printable(line.text, MAX_TEXT)
    process = printable(line.process, 32)
    return f"{at}.{line.at // 1000 % 1000:03d} {line.level:<7} {process}: {text}"
