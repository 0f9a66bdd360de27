"""Credits of a receiver: how much more a sender may send."""

from __future__ import annotations

import asyncio


class Credits:
    """A count that one task waits for; unlike a semaphore's, it grows by any number at once."""

    def __init__(self, count: int = 0) -> None:
        self._count = count
        self._waiter: asyncio.Future[None] | None = None

    @property
    def count(self) -> int:
        """How many there are now."""
        return self._count

    def add(self, count: int) -> None:
        """Allow ``count`` more."""
        self._count += count
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> None:
        """Take one, waiting until there is one; the session's deadline bounds the wait."""
        while self._count < 1:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        self._count -= 1
