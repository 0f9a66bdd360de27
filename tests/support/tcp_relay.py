"""A TCP relay between a client and a server, which can break or fall silent like a network."""

from __future__ import annotations

import asyncio
import contextlib


class TcpRelay:
    """Listens on a port of its own and forwards to ``host:port``."""

    def __init__(self, target: str, delay_seconds: float = 0.0) -> None:
        """``delay_seconds``: how long everything takes in either direction, however much it is."""
        host, port = target.rsplit(":", 1)
        self._target = host, int(port)
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._delay = delay_seconds
        self._open = asyncio.Event()
        self._open.set()
        self.connections = 0
        """How many have been accepted."""

    async def start(self) -> str:
        """Listen; gives the address to connect to."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        return f"{host}:{port}"

    def fall_silent(self) -> None:
        """Forward nothing more, but keep the connections: a host that lost its power."""
        self._open.clear()

    async def cut(self) -> None:
        """Break every connection and listen no more: a process that was killed."""
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        upstream_reader, upstream_writer = await asyncio.open_connection(*self._target)
        self._writers |= {writer, upstream_writer}
        for source, sink in ((reader, upstream_writer), (upstream_reader, writer)):
            pump = asyncio.create_task(self._pump(source, sink))
            self._pumps.add(pump)

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(ConnectionError):
            while data := await source.read(65536):
                await self._open.wait()
                if self._delay:
                    loop.call_later(self._delay, sink.write, data)
                    continue
                sink.write(data)
                await sink.drain()
        loop.call_later(self._delay, sink.close)
