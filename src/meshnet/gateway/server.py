"""uvicorn, started and stopped by the program that owns the event loop."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.face_ready import PunctualProtocol, ReadyServer

log = logging.getLogger("meshnet.gateway")

# Together, with what uvicorn's own polling adds, less than a second.
GRACE_SECONDS = 0.3
"""After the stop is asked for: how long answers may still end by themselves."""
CANCEL_SECONDS = 0.4
"""After that: how long cancelled generations may take to end. Then connections are cut."""
CUT_SECONDS = 0.2
"""After that: how long the server may take to notice."""


class _Protocol(PunctualProtocol):
    """One client's connection."""

    first_request_seconds = 30.0
    # Longer than what clients and proxies keep an idle connection for, which is 5 to 60 s: one that
    # is closed while the next request comes would break that.
    next_request_seconds = 75.0


def open_listener(host: str, port: int) -> socket.socket:
    """Bind a socket to listen on; port 0 takes a free one.

    Raises :class:`InvalidArgumentError` for the field ``port`` if it can't be had, for ``host``
    if this machine has no such name or address. Call it before anything that takes long.
    """
    if not 0 <= port <= 65535:
        raise InvalidArgumentError("port", f"{port} must be 0 to 65535")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise InvalidArgumentError("host", f"{host!r} can't be resolved: {error}") from error
    # Of a name with both kinds of address, such as localhost, every client tries the IPv4 one.
    family, kind, protocol, _, address = min(found, key=lambda it: it[0] != socket.AF_INET)
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen()
    except OSError as error:
        listener.close()
        field = "host" if error.errno == errno.EADDRNOTAVAIL else "port"
        raise InvalidArgumentError(
            field, f"can't listen on {host}:{port}: {error.strerror}; choose another"
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """The URL under which a listening socket is reached, without a path."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def serve(
    app: FastAPI,
    host: str,
    port: int,
    *,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Listen and serve until ``stop`` is set; :func:`open_listener` says what can be wrong."""
    await serve_on(app, open_listener(host, port), on_ready=on_ready, stop=stop)


async def serve_on(
    app: FastAPI,
    listener: socket.socket,
    *,
    on_ready: Callable[[str], None],
    stop: asyncio.Event,
) -> None:
    """Serve ``app``, made by ``create_app``, on a socket of :func:`open_listener`, and close it.

    ``on_ready`` gets the URL once connections are answered. Returns within a second of ``stop``:
    answers that don't end by themselves in that time end with an error.
    """
    config = uvicorn.Config(
        app,
        http=_Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=int(_Protocol.next_request_seconds),
    )
    url = url_of(listener)
    server = ReadyServer(config)
    running = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        if await _set_before_end(server.ready, running):
            on_ready(url)
            await _set_before_end(stop, running)
    finally:
        await _shut_down(server, running, app.state.stopping)
        listener.close()


async def _set_before_end(event: asyncio.Event, running: asyncio.Task[None]) -> bool:
    """Wait for the event or the end of the task, whichever comes first; True for the event."""
    waiting = asyncio.create_task(event.wait())
    try:
        await asyncio.wait((running, waiting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
    return event.is_set()


async def _shut_down(
    server: uvicorn.Server, running: asyncio.Task[None], stopping: asyncio.Event
) -> None:
    server.should_exit = True
    await asyncio.wait((running,), timeout=GRACE_SECONDS)
    stopping.set()
    await asyncio.wait((running,), timeout=CANCEL_SECONDS)
    if server.server_state.tasks:
        # Said here, for a request that is cut off while it ends says nothing itself.
        cut = len(server.server_state.tasks)
        log.warning("the gateway is stopping: %d requests are cut off", cut)
    for task in server.server_state.tasks:
        task.cancel()
    for connection in list(server.server_state.connections):
        connection.transport.abort()
    await asyncio.wait((running,), timeout=CUT_SECONDS)
    if server.server_state.tasks:
        log.warning("%d requests didn't end in time", len(server.server_state.tasks))
    running.cancel()
    await asyncio.wait((running,))
    if not running.cancelled():
        running.result()
