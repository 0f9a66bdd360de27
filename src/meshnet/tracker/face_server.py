"""Serves the face over TLS, and tells it whose certificate a connection came with."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.flow_control import CLOSE_HEADER

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.face import PEER
from meshnet.tracker.face_ready import PunctualProtocol, ReadyServer
from meshnet.transport.certificates import peer_of

START_SECONDS = 10.0
STOP_SECONDS = 1.0
MOST_CONNECTIONS = 1000
MOST_STRANGERS = 200
"""Of these, connections of peers without a certificate."""


class _CertifiedProtocol(PunctualProtocol):
    """Puts the peer's identity, if its certificate was verified, into each request's state.

    A peer without one asks once for each connection, and is one of a few at a time.
    """

    certified = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        secured: Any = transport.get_extra_info("ssl_object")
        # None without a certificate; one that the authority didn't sign ends the handshake.
        certificate = None if secured is None else secured.getpeercert(binary_form=True)
        if certificate:
            # A certificate of the authority that names no machine stands for none.
            with contextlib.suppress(InvalidArgumentError):
                self.app_state = {**self.app_state, PEER: peer_of(certificate)}
                self.certified = True
        if not self.certified and self._strangers() > MOST_STRANGERS:
            transport.abort()

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle and not self.cycle.response_complete and not self.certified:
            # The request begins to be answered later; the answer names this too.
            self.cycle.scope["headers"] = [*self.cycle.scope["headers"], CLOSE_HEADER]

    def _strangers(self) -> int:
        # The set holds protocols of this class alone, which made them.
        return sum(not getattr(each, "certified", False) for each in self.connections)


@asynccontextmanager
async def face_served(
    app: ASGIApp,
    listener: socket.socket,
    context: ssl.SSLContext,
    connections: int = MOST_CONNECTIONS,
) -> AsyncIterator[None]:
    """Serve ``app`` on a bound socket from now until the block ends.

    ``context`` asks peers for a certificate, with or without demanding one.
    """
    config = uvicorn.Config(
        app,
        http=_CertifiedProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(PunctualProtocol.next_request_seconds),
        limit_concurrency=connections,
    )
    config.load()
    config.ssl = context
    server = ReadyServer(config)
    running = asyncio.create_task(server.serve(sockets=[listener]), name="tracker's face")
    try:
        async with asyncio.timeout(START_SECONDS):
            await server.ready.wait()
        yield
    finally:
        server.should_exit = True
        await asyncio.wait((running,), timeout=STOP_SECONDS)
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        running.cancel()
        await asyncio.wait((running,))
        listener.close()
