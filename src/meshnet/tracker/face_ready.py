"""uvicorn's server and connections, as everything here that speaks HTTP runs them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Generator
from contextlib import contextmanager

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol


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


class PunctualProtocol(H11Protocol):
    """Ends a connection on which no request's head comes in time; uvicorn waits for ever.

    A peer that asks for nothing holds a connection that another could have.
    """

    first_request_seconds = 10.0
    """How long a peer may take to ask for something, to the end of the request's head."""
    next_request_seconds = 30.0
    """From an answer on, the same for the next request on the connection."""
    _head_due: asyncio.TimerHandle | None = None
    """Ends the connection; set while a request's head is waited for."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head(self.first_request_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._head_came()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        """Serve what has come; a request that began to be served has a whole head."""
        super().handle_events()
        if self.cycle and not self.cycle.response_complete:
            self._head_came()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        # uvicorn's own timer for this is off from the next request's first byte on.
        self._await_head(self.next_request_seconds)
        super().on_response_complete()

    def _await_head(self, seconds: float) -> None:
        self._head_came()
        self._head_due = self.loop.call_later(seconds, self.transport.close)

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
