"""What a machine gives other machines of its cluster over HTTPS: bytes of slices, and of headers.

| request | what it gives |
|---|---|
| ``GET /slices/{model}/{start}-{end}`` | bytes of a slice's file |
| ``GET /models/{digest}/files/{name}`` | bytes of the header of one of a model's files |

Each request names a range. ``model`` is equal for models whose slices are byte for byte the same.
Nothing is written, listed or described. Refusals have the form of the tracker's.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Container, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from meshnet.domain.errors import (
    InvalidArgumentError,
    MeshnetError,
    ModelNotFoundError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.face import PEER, status_of_error
from meshnet.tracker.messages import Failure
from meshnet.transport.certificates import PeerIdentity, Role
from meshnet.transport.quota import Pace

LOGGER: Final = logging.getLogger(__name__)
MOST_BYTES: Final = 16 << 20
"""Of one answer."""
AT_ONCE: Final = 8
"""Answers to all machines together."""
AT_ONCE_FOR_ONE: Final = 4
WAIT_SECONDS: Final = 3.0
"""For one of these places."""
CHUNK: Final = 256 << 10
STALL_SECONDS: Final = 20.0
SLOWEST_BYTES: Final = 32 << 10
"""A second, below which, and a stall beyond that, an answer is broken off."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_SLICE: Final = re.compile(r"/slices/([0-9a-f]{64})/(\d{1,6})-(\d{1,6})")
_HEADER: Final = re.compile(r"/models/(sha256:[0-9a-f]{64})/files/([^/]{1,255})")
_RANGE: Final = re.compile(r"bytes=(\d{1,18})-(\d{1,18})")


@dataclass(frozen=True, slots=True)
class Given:
    """A file of this machine, of which others may read up to a byte."""

    path: Path
    size: int
    end: int
    """The first byte that isn't given any more."""
    tag: str
    """Another one for other contents."""


class Shelf(Protocol):
    """What there is to give. Both raise :class:`ModelNotFoundError`, and are asked often."""

    def slice(self, model: str, layers: LayerRange) -> Given:
        """The file of a slice."""

    def header(self, digest: Digest, name: str) -> Given:
        """One of a model's files, as far as its header reaches."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Bytes ``[start, stop)`` of a file."""

    file: Given
    start: int
    stop: int

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        told = {
            "content-type": "application/octet-stream",
            "content-length": str(self.stop - self.start),
            "content-range": f"bytes {self.start}-{self.stop - 1}/{self.file.size}",
            "etag": f'"{self.file.tag}"',
        }
        return [(name.encode(), value.encode()) for name, value in told.items()]


class SlicesFace:
    """The ASGI application; ``face_server`` runs it, and says who the peer is."""

    def __init__(self, shelf: Shelf, removed: Container[str], bytes_per_second: int) -> None:
        """``removed``: the nodes that aren't answered any more."""
        self._shelf, self._removed = shelf, removed
        self._pace = Pace(bytes_per_second, CHUNK, time.monotonic())
        self._places = asyncio.Semaphore(AT_ONCE)
        self._busy: Counter[NodeId] = Counter()
        self.given_bytes = 0
        """In all."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            peer = self._peer(scope)
            part = self._asked(scope)
            async with self._place(peer.node_id):
                file = _opened(part.file)
                try:
                    await self._give(part, file, receive, send)
                finally:
                    os.close(file)
        except MeshnetError as error:
            await _refuse(send, error)

    def _peer(self, scope: Scope) -> PeerIdentity:
        peer = scope.get("state", {}).get(PEER)
        if not isinstance(peer, PeerIdentity) or peer.role is not Role.NODE:
            raise UnauthenticatedError("slices are given to machines of the cluster alone")
        if peer.node_id in self._removed:
            raise UnauthenticatedError("this machine was removed from the cluster", field="node")
        return peer

    def _asked(self, scope: Scope) -> _Part:
        """Which bytes of which file a request is about."""
        path, headers = scope["path"], dict(scope["headers"])
        if scope["method"] != "GET":
            raise InvalidArgumentError("method", "there is nothing but GET here")
        if match := _SLICE.fullmatch(path):
            file = self._shelf.slice(match[1], _layers(int(match[2]), int(match[3])))
        elif match := _HEADER.fullmatch(path):
            file = self._shelf.header(Digest(match[1]), match[2])
        else:
            raise ModelNotFoundError(f"{path[:200]} isn't offered here")
        if headers.get(b"if-range", f'"{file.tag}"'.encode()) != f'"{file.tag}"'.encode():
            raise ModelNotFoundError("what was here before isn't any more")
        asked = _RANGE.fullmatch(headers.get(b"range", b"").decode("latin-1"))
        if asked is None:
            raise InvalidArgumentError("range", "ask for a range, as in bytes=0-4095")
        start, stop = int(asked[1]), min(int(asked[2]) + 1, file.size)
        if not start < stop <= file.end:
            raise InvalidArgumentError("range", f"bytes 0 to {file.end - 1} are given")
        if stop - start > MOST_BYTES:
            raise InvalidArgumentError("range", f"ask for {MOST_BYTES} bytes at most")
        return _Part(file, start, stop)

    @asynccontextmanager
    async def _place(self, node_id: NodeId) -> AsyncIterator[None]:
        """One of the few answers at once; raises :class:`ResourceExhaustedError` without one."""
        if self._busy[node_id] >= AT_ONCE_FOR_ONE:
            raise ResourceExhaustedError(f"{AT_ONCE_FOR_ONE} answers at once are given to one")
        self._busy[node_id] += 1
        try:
            try:
                async with asyncio.timeout(WAIT_SECONDS):
                    await self._places.acquire()
            except TimeoutError:
                raise ResourceExhaustedError("others are given slices now; ask later") from None
            try:
                yield
            finally:
                self._places.release()
        finally:
            self._busy[node_id] -= 1
            # One that doesn't ask any more takes no room.
            if not self._busy[node_id]:
                del self._busy[node_id]

    async def _give(self, part: _Part, file: int, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 206, "headers": part.headers})
        gone = asyncio.create_task(_disconnected(receive))
        length = part.stop - part.start
        try:
            async with asyncio.timeout(STALL_SECONDS + length / SLOWEST_BYTES):
                for offset in range(part.start, part.stop, CHUNK):
                    count = min(CHUNK, part.stop - offset)
                    await asyncio.sleep(self._pace.take(count, time.monotonic()))
                    chunk = await asyncio.to_thread(_read, file, count, offset)
                    if gone.done():
                        return
                    more = offset + count < part.stop
                    await send({"type": "http.response.body", "body": chunk, "more_body": more})
                    self.given_bytes += count
        except (OSError, TimeoutError) as error:
            # The connection ends with what was sent of the answer.
            LOGGER.warning("%s isn't given on: %s", part.file.path, error or "too slow")
        finally:
            gone.cancel()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _opened(file: Given) -> int:
    """The file, which stays readable though it may be removed meanwhile."""
    try:
        return os.open(file.path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise ModelNotFoundError(f"it can't be read any more: {error.strerror}") from error


def _read(file: int, count: int, offset: int) -> bytes:
    chunk = os.pread(file, count, offset)
    if len(chunk) < count:
        raise OSError("it became shorter")
    return chunk


def _layers(start: int, end: int) -> LayerRange:
    if start >= end:
        raise InvalidArgumentError("layers", f"{start}-{end} is no range of layers")
    return LayerRange(start, end)


async def _refuse(send: Send, error: MeshnetError) -> None:
    status = status_of_error(error)
    failure = Failure(
        code=error.code.value, message=error.message, field=error.details.get("field")
    )
    body = failure.model_dump_json().encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *([(b"retry-after", b"1")] if error.retryable else []),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
