"""Answers that are being made, by the ids under which a client can end them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Running:
    """The answers of one gateway. Belongs to its event loop."""

    def __init__(self) -> None:
        self._answers: dict[str, list[asyncio.Event]] = {}

    @contextmanager
    def entered(self, *names: str) -> Iterator[asyncio.Event]:
        """Keep an answer under each of its names; the event is set when it is to end."""
        event = asyncio.Event()
        for name in names:
            self._answers.setdefault(name, []).append(event)
        try:
            yield event
        finally:
            for name in names:
                self._answers[name].remove(event)
                if not self._answers[name]:
                    del self._answers[name]

    def cancel(self, name: str) -> int:
        """End the answers of that name, several if a client used an id of its own twice."""
        events = self._answers.get(name, ())
        for event in events:
            event.set()
        return len(events)
