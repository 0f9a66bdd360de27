"""One look at the network a second, however many watch, and what each of them is sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Final

from meshnet.domain.errors import DeadlineExceededError, MeshnetError, ResourceExhaustedError
from meshnet.gateway.flights import Flights
from meshnet.gateway.machines import Machines, NetworkView
from meshnet.gateway.pagefeed import PageFeed, Reading
from meshnet.gateway.replies import sse
from meshnet.gateway.requestlog import log

MAX_VIEWERS: Final = 32
WATCHED_SECONDS: Final = 1.0
"""Between two looks while somebody watches."""
UNWATCHED_SECONDS: Final = 5.0
"""After the last viewer has left: the history goes on for whoever comes back."""
FORGOTTEN_SECONDS: Final = 600.0
"""After so long nobody comes back, and nodes that nobody watches are left alone."""
LOOK_SECONDS: Final = 8.0
"""How long one look may take."""
SILENCE_SECONDS: Final = 15.0
"""After so long without an event a viewer gets a comment, so that it knows the line is alive."""
_COMMENT: Final = b": nothing new\n\n"


class Viewers:
    """Looks at the network from the first viewer's coming on. Belongs to the event loop."""

    def __init__(self, machines: Machines, flights: Flights, stopping: asyncio.Event) -> None:
        self._machines = machines
        self._flights = flights
        self._stopping = stopping
        self._feed = PageFeed()
        self._count = 0
        self._left = 0.0
        """When the last viewer left, by the monotonic clock."""
        self._task: asyncio.Task[None] | None = None
        self._frame = b""
        self._news = asyncio.Event()
        """Set when there is a new frame, and then replaced."""
        self._came = asyncio.Event()
        """Set when somebody comes to watch."""

    async def frames(self) -> AsyncGenerator[bytes, None]:
        """Server-sent events for one viewer: first with the history, then one a look.

        A viewer that is slow misses events and gets the latest. Raises ``ResourceExhaustedError``
        before the first one if there are as many viewers as may be.
        """
        if self._count >= MAX_VIEWERS:
            raise ResourceExhaustedError(f"{self._count} viewers watch the dashboard already")
        self._count += 1
        try:
            self._came.set()
            self._ensure_looking()
            opening = self._feed.opening()
            if opening is None and not self._stopping.is_set():
                await self._next_frame()
                opening = self._feed.opening()
            if opening is not None:
                yield sse(opening)
            while not self._stopping.is_set():
                yield await self._next_frame() or _COMMENT
        finally:
            self._count -= 1
            self._left = time.monotonic()

    def _ensure_looking(self) -> None:
        """Raises the fault that ended the looking, if one did."""
        if self._task is not None and self._task.done():
            self._task.result()
            self._task = None
        if self._task is None and not self._stopping.is_set():
            self._task = asyncio.create_task(self._watch(), name="dashboard")

    async def _next_frame(self) -> bytes | None:
        """The next event; None if there was none for long."""
        self._ensure_looking()
        try:
            async with asyncio.timeout(SILENCE_SECONDS):
                await self._news.wait()
        except TimeoutError:
            return None
        return self._frame

    async def _watch(self) -> None:
        """Look until the gateway stops or is forgotten."""
        looking = asyncio.create_task(self._keep_looking())
        stopped = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((looking, stopped), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (looking, stopped):
                task.cancel()
            await asyncio.gather(looking, stopped, return_exceptions=True)
            self._tell_viewers()
        if not looking.cancelled():
            looking.result()

    async def _keep_looking(self) -> None:
        while self._count or time.monotonic() - self._left < FORGOTTEN_SECONDS:
            await self._look()
            await self._pause()

    async def _look(self) -> None:
        network: NetworkView | None = None
        problem = ""
        try:
            network = await self._network()
        except MeshnetError as error:
            log.info("the network can't be looked at: %s", error.message)
            problem = error.message
        reading = Reading(
            time.time(),
            network,
            self._flights.views(),
            self._flights.tokens,
            tuple(self._machines.operations),
            problem,
        )
        self._frame = sse(self._feed.take(reading))
        self._tell_viewers()

    async def _network(self) -> NetworkView:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                return await self._machines.look()
        except TimeoutError as error:
            raise DeadlineExceededError(
                f"looking at the network took more than {LOOK_SECONDS:g} s"
            ) from error

    def _tell_viewers(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    async def _pause(self) -> None:
        """Until it is time for the next look, or somebody comes whom nobody was before."""
        if self._count:
            await asyncio.sleep(WATCHED_SECONDS)
            return
        self._came.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(UNWATCHED_SECONDS):
                await self._came.wait()
