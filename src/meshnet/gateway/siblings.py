"""The generations of one answer, where the nodes may not have room for all of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeVar

from meshnet.domain.errors import ResourceExhaustedError

EventT = TypeVar("EventT")


class Siblings:
    """Lets a generation that is refused for want of room wait for one that runs.

    An answer of sixteen choices so needs no sixteen sessions. If none of its own generations
    runs, others use the nodes, and the refusal is the client's to hear.
    """

    def __init__(self) -> None:
        self._active = 0
        """Those that run or ask to be let in."""
        self._ended = asyncio.Event()
        """Set when the next of those that were let in ends."""

    async def admitted(
        self, generate: Callable[[], AsyncGenerator[EventT, None]]
    ) -> AsyncGenerator[EventT, None]:
        """The events of a generation, begun as soon as there is room for it.

        Raises ``ResourceExhaustedError`` if there is none for any, and whatever else the
        generation raises. The wait ends with the generations waited for, which have deadlines.
        """
        while True:
            ended = self._ended
            refused = False
            begun = False
            self._active += 1
            try:
                async with aclosing(generate()) as events:
                    async for event in events:
                        begun = True
                        yield event
            except ResourceExhaustedError:
                refused = not begun and self._active > 1
                if not refused:
                    raise
            finally:
                self._active -= 1
                if not refused:
                    self._ended.set()
                    self._ended = asyncio.Event()
            if not refused:
                return
            await ended.wait()
