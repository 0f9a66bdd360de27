"""What goes to the process that follows grammars, and what comes back."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

LEARN: Final = 1
"""Compile the text under the number: yes, or refused."""
FORGET: Final = 2
"""Free what has the number: yes."""
ONE: Final = 3
"""Whether the last token may follow those before it: yes, no, or refused."""
ALL: Final = 4
"""Which tokens may follow: a mask, or refused."""
DROP: Final = 5
"""Free the states of the session: yes."""

READY: Final = b"r"
"""With the number of tokens, four bytes, the lowest first. It comes once the path was read."""
GONE: Final = b"g"
"""The question was the end of the process that was to answer it, with the signal's number in one
byte. Another one goes on, and knows no grammar."""
YES: Final = b"y"
NO: Final = b"n"
MASK: Final = b"m"
"""With a bit a token, the first in the highest bit of the first byte."""
REFUSED: Final = b"x"
"""With the reason as text."""

_LENGTH: Final = struct.Struct("<I")
_HEAD: Final = struct.Struct("<BII")
_ANSWER: Final = struct.Struct("<cI")


@dataclass(frozen=True, slots=True)
class Request:
    """A kind, a grammar's number, a session's, and the grammar's text or token ids."""

    kind: int
    number: int
    session: int = 0
    """0 is no session's."""
    text: bytes = b""
    tokens: Sequence[int] = ()

    def pack(self) -> bytes:
        """The request as bytes."""
        tokens = struct.pack(f"<{len(self.tokens)}i", *self.tokens)
        return _HEAD.pack(self.kind, self.number, self.session) + self.text + tokens

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The request that :meth:`pack` made the bytes of."""
        kind, number, session = _HEAD.unpack_from(data)
        rest = data[_HEAD.size :]
        if kind == LEARN:
            return cls(kind, number, session, text=rest)
        return cls(kind, number, session, tokens=struct.unpack(f"<{len(rest) // 4}i", rest))


@dataclass(frozen=True, slots=True)
class Answer:
    """A kind, the computing time in microseconds that the session pays for, and what it says."""

    kind: bytes
    micros: int = 0
    body: bytes = b""

    def pack(self) -> bytes:
        """The answer as bytes."""
        return _ANSWER.pack(self.kind, self.micros) + self.body

    @classmethod
    def unpack(cls, data: bytes) -> Self:
        """The answer that :meth:`pack` made the bytes of."""
        kind, micros = _ANSWER.unpack_from(data)
        return cls(kind, micros, data[_ANSWER.size :])


def send(link: socket.socket, data: bytes) -> None:
    """Send one frame; raises ``OSError`` if the other end is gone or takes too long."""
    link.sendall(_LENGTH.pack(len(data)) + data)


def receive(link: socket.socket) -> bytes | None:
    """One frame; None if the other end has closed. Raises ``OSError``, in time ``TimeoutError``."""
    head = _exactly(link, _LENGTH.size)
    return None if head is None else _exactly(link, _LENGTH.unpack(head)[0])


def _exactly(link: socket.socket, size: int) -> bytes | None:
    data = bytearray()
    while len(data) < size:
        more = link.recv(size - len(data))
        if not more:
            return None
        data += more
    return bytes(data)
