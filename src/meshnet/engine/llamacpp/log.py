"""Keeps libllama's last error lines, so that an error can say what the library said."""

from __future__ import annotations

import logging
from collections import deque

from meshnet.engine.llamacpp.library import LOGGER

KEPT_LINES = 8


class RecentErrors(logging.Handler):
    """Holds the last few error lines since :meth:`clear`."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the line."""
        self._lines.append(record.getMessage().strip())

    def clear(self) -> None:
        """Forget what was kept."""
        self._lines.clear()

    def text(self) -> str:
        """The kept lines in one."""
        return "; ".join(line for line in self._lines if line) or "it gave no reason"


recent_errors = RecentErrors()
LOGGER.addHandler(recent_errors)
