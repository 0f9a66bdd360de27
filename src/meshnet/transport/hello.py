"""Reads which server a TLS client means, out of its first message and without answering it.

The message is a ClientHello (RFC 8446, 4.1.2), the name its server_name extension (RFC 6066, 3).
"""

from __future__ import annotations

import asyncio
import socket
import ssl

from meshnet.domain.errors import MalformedFrameError

MAX_HELLO_BYTES = 16 * 1024
"""Longer ones aren't read: with every extension in use it takes about 2 KiB."""
LOOK_SECONDS = 0.02
"""How often an unfinished message is looked at; nearly all come in one piece."""


def named_server(hello: bytes) -> str | None:
    """The name that a ClientHello asks for; None while the message isn't whole.

    Raises :class:`MalformedFrameError` ("hello") for what is no TLS, and for one without a name.
    """
    names: list[str | None] = []

    def note(_connection: ssl.SSLObject, name: str | None, _context: ssl.SSLContext) -> int:
        names.append(name)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.sni_callback = note
    incoming, unsent = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(hello)
    try:
        context.wrap_bio(incoming, unsent, server_side=True).do_handshake()
    except ssl.SSLWantReadError:
        return None
    except ssl.SSLError as error:
        if names and names[0]:
            return names[0]
        reason = "it names no server" if names else f"it isn't TLS: {error.reason}"
        raise MalformedFrameError("hello", reason) from None
    raise MalformedFrameError("hello", "it isn't a client's first message")


async def peeked_name(connection: socket.socket) -> str:
    """The name that the client of an accepted, non-blocking socket asks for.

    All that it sent stays in the socket, to be read again by whoever the connection is for. Waits
    without a deadline of its own. Raises :class:`MalformedFrameError` ("hello") like
    :func:`named_server`, for a message that is too long and for a client that left.
    """
    seen = -1
    while True:
        try:
            # Leaves the bytes where they are, so readiness can't be waited for: it stays.
            hello = connection.recv(MAX_HELLO_BYTES, socket.MSG_PEEK)
        except BlockingIOError:
            hello, seen = b"", 0
        except OSError as error:
            raise MalformedFrameError("hello", f"the connection is gone: {error}") from error
        else:
            if not hello:
                raise MalformedFrameError("hello", "the client left without a word")
        if len(hello) > seen:
            name = named_server(hello)
            if name is not None:
                return name
            if len(hello) == MAX_HELLO_BYTES:
                raise MalformedFrameError("hello", f"it is over {MAX_HELLO_BYTES} bytes long")
            seen = len(hello)
        await asyncio.sleep(LOOK_SECONDS)
