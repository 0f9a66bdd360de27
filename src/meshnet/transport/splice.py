"""Carries bytes between two connections as they come, whatever they are."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Callable
from typing import NamedTuple

PIECE_BYTES = 64 * 1024
"""Read at once; a connection whose other end doesn't read holds a few of these and no more."""
CLOSING_SECONDS = 2.0
"""How long an ended connection may take to send what it still has."""

Meter = Callable[[int], float]
"""Told of bytes that came; gives the seconds to wait before more are read."""


class Streams(NamedTuple):
    """Both directions of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def end(self) -> None:
        """Begin to close, unless that has begun: asyncio's TLS can't be aborted after two."""
        if not self.writer.is_closing():
            self.writer.close()

    async def close(self) -> None:
        """Send what is still to be sent, for a moment, and end the connection."""
        self.end()
        # Whatever went wrong, the connection is over.
        try:
            with contextlib.suppress(OSError):
                async with asyncio.timeout(CLOSING_SECONDS):
                    await self.writer.wait_closed()
        finally:
            self.writer.transport.abort()

    def keep_alive(self) -> None:
        """Have the system notice a host that died without a word."""
        connection = self.writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)


async def streams_of(
    connection: socket.socket, tls: ssl.SSLContext | None = None, timeout_seconds: float = 10.0
) -> Streams:
    """An accepted socket, which belongs to the streams from now on, as a server's end.

    Raises ``OSError`` if the handshake fails or takes longer than ``timeout_seconds``.
    """
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(PIECE_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        transport, _ = await loop.connect_accepted_socket(
            lambda: protocol,
            connection,
            ssl=tls,
            ssl_handshake_timeout=None if tls is None else timeout_seconds,
            ssl_shutdown_timeout=None if tls is None else CLOSING_SECONDS,
        )
    except BaseException:
        # Whoever was cancelled, asyncio takes leave of the other end first, which may take long.
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        raise
    return Streams(reader, asyncio.StreamWriter(transport, protocol, reader, loop))


def unmetered(_count: int) -> float:
    """A :data:`Meter` that lets everything pass."""
    return 0.0


async def splice(
    one: Streams, other: Streams, idle_seconds: float, meter: Meter = unmetered
) -> None:
    """Carry bytes both ways until either connection ends, or both were quiet for so long.

    What came before the end is sent on; then both are closed. There is no half of an end: TLS,
    which is what runs inside, says by itself that it is over, and takes no half-closed connection.
    """
    carried = _Carried(idle_seconds)
    tasks = [
        asyncio.create_task(carried.pump(one.reader, other.writer, meter)),
        asyncio.create_task(carried.pump(other.reader, one.writer, meter)),
        asyncio.create_task(carried.until_idle()),
    ]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        # At once, whatever interrupts the wait below.
        one.end()
        other.end()
        await asyncio.gather(one.close(), other.close(), *tasks, return_exceptions=True)
    for task in tasks:
        if not task.cancelled():
            task.result()


class _Carried:
    """When something last passed."""

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._clock = asyncio.get_running_loop().time
        self._last = self._clock()

    async def pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: Meter
    ) -> None:
        """One direction, to its end."""
        # A connection that breaks has ended.
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE_BYTES):
                writer.write(data)
                pause = meter(len(data))
                # Held back by us isn't idle.
                self._last = self._clock() + pause
                await writer.drain()
                if pause:
                    await asyncio.sleep(pause)

    async def until_idle(self) -> None:
        """Return once nothing has passed for long."""
        while True:
            left = self._last + self._idle_seconds - self._clock()
            if left <= 0:
                return
            await asyncio.sleep(left)
