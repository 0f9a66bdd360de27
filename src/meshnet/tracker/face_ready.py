"""uvicorn's server, as everything here that speaks HTTP runs it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn


class ReadyServer(uvicorn.Server):
    """uvicorn that says when it is ready, and leaves signals to its caller."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; :attr:`ready` is set then."""
        await super().startup(sockets)
        self.ready.set()

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Capture none."""
        yield
