"""The one thread that an engine runs on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue

LOGGER = logging.getLogger(__name__)


class EngineThread:
    """Runs what it is handed, in order. An executor of one thread would do, but costs a step more.

    Made for the moment between two tokens: no future, no count of idle threads.
    """

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, work: Callable[[], None]) -> None:
        """Run ``work`` behind what was handed over before; what it raises is logged."""
        self._work.put(work)

    def close(self) -> None:
        """Let the thread end once all that was handed over has run, without waiting for it."""
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                LOGGER.exception("an engine operation failed")
