"""What lies between a seam's users and its stream: frames that came in, and frames to go out."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from meshnet.domain.errors import MeshnetError, error_from, status_of
from meshnet.domain.status import StructuredStatus

FRAME_WEIGHT = 1024
"""Bytes of memory a frame counts for in an inbox besides its tensors."""
SERIALISED_WEIGHT = 128
"""Bytes of memory a frame counts for in an outbox besides its own."""

T = TypeVar("T")


class Inbox(Generic[T]):
    """Frames that one task puts and another takes, in order.

    It ends once, behind what was put before: :meth:`get` then gives None or raises the error it
    ended with, each time it is called. Cancelling :meth:`get` loses nothing.
    """

    def __init__(self, bound: int = 0) -> None:
        """``bound``: how much may wait before :meth:`room` makes the putter wait; 0: no bound."""
        self._items: deque[tuple[T, int]] = deque()
        self._bound = bound
        self._weight = 0
        self._sink: Callable[[T], None] | None = None
        self._sink_failure: Exception | None = None
        self._taker: asyncio.Future[None] | None = None
        self._putter: asyncio.Future[None] | None = None
        self._ended = False
        self._fault: StructuredStatus | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more will come behind what is waiting."""
        return self._ended

    def put(self, item: T, weight: int = 0) -> None:
        """Append an item; does nothing once the inbox has ended."""
        if self._ended:
            return
        if self._sink is None:
            self._items.append((item, weight))
            self._weight += weight
            _wake(self._taker)
            return
        try:
            self._sink(item)
        except Exception as error:  # noqa: BLE001 - raised where the sink came from
            self._sink, self._sink_failure = None, error
            _wake(self._taker)

    def end(self, error: MeshnetError | None = None) -> None:
        """Say that nothing more will come, and why; the first call counts."""
        if not self._ended:
            self._ended = True
            self._fault = None if error is None else status_of(error)
            _wake(self._taker)
            _wake(self._putter)

    def discard(self) -> None:
        """Drop what is waiting."""
        self._items.clear()
        self._weight = 0

    async def room(self) -> None:
        """Wait until less than the bound is waiting, or the inbox has ended."""
        while self._bound and self._weight >= self._bound and not self._ended:
            self._putter = asyncio.get_running_loop().create_future()
            await self._putter

    async def get(self) -> T | None:
        """The next item; see the class for the end. For one taker at a time."""
        while not self._items:
            if self._ended:
                self._raise_fault()
                return None
            self._taker = asyncio.get_running_loop().create_future()
            await self._taker
        item, weight = self._items.popleft()
        self._weight -= weight
        _wake(self._putter)
        return item

    async def drain(self, take: Callable[[T], None]) -> None:
        """Bring each item to ``take`` until the end, which is raised or returned as by :meth:`get`.

        Items that come meanwhile go there within :meth:`put`. What ``take`` raises is raised here.
        """
        while self._items:
            take(self._items.popleft()[0])
        self._weight = 0
        _wake(self._putter)
        self._sink = take
        try:
            while not self._ended and self._sink_failure is None:
                self._taker = asyncio.get_running_loop().create_future()
                await self._taker
        finally:
            self._sink = None
        failure, self._sink_failure = self._sink_failure, None
        if failure is not None:
            raise failure
        self._raise_fault()

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise error_from(self._fault)


class Outbox:
    """Serialised frames that wait for the stream's one writer, :meth:`run`.

    Frames of one mergeable kind that queued up while a write was in flight leave as one, which
    saves the cost of a message each; a frame never waits for others to join it.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]], max_bytes: int) -> None:
        """``max_bytes`` bounds what is merged; a single frame may be of any size."""
        self._write = write
        self._max_bytes = max_bytes
        self._frames: deque[tuple[bytes, type | None]] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._closed = False
        self._weight = 0

    @property
    def weight(self) -> int:
        """Bytes of memory of what is queued, but for what is being written."""
        return self._weight

    def put(self, frame: bytes, mergeable: type | None) -> None:
        """Queue a frame, with its kind if it may be merged with others of that kind."""
        self._frames.append((frame, mergeable))
        self._weight += len(frame) + SERIALISED_WEIGHT
        _wake(self._waiter)

    def discard(self) -> None:
        """Drop what is queued."""
        self._frames.clear()
        self._weight = 0

    def close(self) -> None:
        """Let :meth:`run` return once everything queued is written."""
        self._closed = True
        _wake(self._waiter)

    async def run(self) -> None:
        """Write frames in order until closed; whatever a write raises ends it."""
        while True:
            while self._frames:
                await self._write(self._next())
            if self._closed:
                return
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    def _next(self) -> bytes:
        frame, kind = self._taken()
        if kind is None or not self._frames or self._frames[0][1] is not kind:
            return frame
        parts, size = [frame], len(frame)
        while self._frames:
            following, other = self._frames[0]
            size += len(following)
            if other is not kind or size > self._max_bytes:
                break
            parts.append(following)
            self._taken()
        return b"".join(parts)

    def _taken(self) -> tuple[bytes, type | None]:
        frame, kind = self._frames.popleft()
        self._weight -= len(frame) + SERIALISED_WEIGHT
        return frame, kind


def _wake(waiter: asyncio.Future[None] | None) -> None:
    if waiter is not None and not waiter.done():
        waiter.set_result(None)
