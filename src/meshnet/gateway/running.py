"""Answers that are being made, by the ids under which a client can end them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Running:
    """The answers of one gateway. Belongs to its event loop."""

    def __init__(self) -> None:
        self._answers: dict[str, list[tuple[str, asyncio.Event]]] = {}
        """By name: whose answers they are, and the events that end them."""

    @contextmanager
    def entered(self, owner: str, *names: str) -> Iterator[asyncio.Event]:
        """Keep an owner's answer under each of its names; the event is set when it is to end."""
        event = asyncio.Event()
        for name in names:
            self._answers.setdefault(name, []).append((owner, event))
        try:
            yield event
        finally:
            for name in names:
                self._answers[name].remove((owner, event))
                if not self._answers[name]:
                    del self._answers[name]

    def cancel(self, name: str, owner: str | None = None) -> int:
        """End the answers of that name, several if a client used an id of its own twice.

        With an ``owner``, only that one's: others may have chosen the same name.
        """
        events = [event for whose, event in self._answers.get(name, ()) if owner in (None, whose)]
        for event in events:
            event.set()
        return len(events)
