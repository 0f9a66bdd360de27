"""Counts what a session passes over one seam: the same at both ends, for frames keep their order.

Plain numbers, a few additions a frame.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Final

from meshnet.domain.frames import (
    DecodeStep,
    GenerationDone,
    PrefillChunk,
    SeamReply,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.generation import FinishReason
from meshnet.domain.receipts import SeamWork

TOKEN_BYTES: Final = 4
"""What a token's id counts for."""


class SeamCounts(ABC):
    """One seam's counts of one session."""

    __slots__ = ("bytes_up",)

    def __init__(self) -> None:
        self.bytes_up = 0

    @property
    @abstractmethod
    def empty(self) -> bool:
        """Whether nothing passed that anybody had to compute."""

    @abstractmethod
    def reply(self, reply: SeamReply) -> None:
        """A reply comes up."""

    @abstractmethod
    def read(self, engine_nanos: int, began_unix_nanos: int, ended_unix_nanos: int) -> SeamWork:
        """The numbers so far, with times that somebody else took."""


class NodeSeamCounts(SeamCounts):
    """Between two nodes: boundaries go down, tokens may come up."""

    __slots__ = ("_bytes_down", "_decode_rows", "_end", "_first", "_prefill_rows")

    def __init__(self) -> None:
        super().__init__()
        self._prefill_rows = 0
        self._decode_rows = 0
        self._first = -1
        self._end = 0
        self._bytes_down = 0

    @property
    def empty(self) -> bool:
        """See the base class."""
        return self._first < 0

    def request(self, frame: PrefillChunk | DecodeStep) -> None:
        """A step goes down."""
        if isinstance(frame, DecodeStep):
            rows = 1 + len(frame.proposed)
            self._decode_rows += rows
            self._bytes_down += len(frame.tensor.data)
        else:
            rows = frame.chunk.token_count
            self._prefill_rows += rows
            self._bytes_down += frame.boundary.byte_length
        if self._first < 0 or frame.position < self._first:
            self._first = frame.position
        self._end = max(self._end, frame.position + rows)

    def reply(self, reply: SeamReply) -> None:
        """See the base class."""
        if isinstance(reply, TokenReply):
            self.bytes_up += TOKEN_BYTES

    def read(self, engine_nanos: int, began_unix_nanos: int, ended_unix_nanos: int) -> SeamWork:
        """See the base class."""
        return SeamWork(
            self._prefill_rows,
            self._decode_rows,
            max(self._first, 0),
            self._end,
            self._bytes_down,
            self.bytes_up,
            engine_nanos,
            began_unix_nanos,
            ended_unix_nanos,
        )


class GatewaySeamCounts(SeamCounts):
    """Between a gateway and the head: a prompt goes down, the answer's tokens come up.

    An answer's last token is chosen, but its own position isn't computed, unless the model ended
    the answer: then what wasn't told is the ending token.
    """

    __slots__ = ("_cached", "_ended", "_opened", "_prompt")

    def __init__(self, prompt_tokens: int) -> None:
        super().__init__()
        self._prompt = prompt_tokens
        self._cached = 0
        self._opened = False
        self._ended = False

    @property
    def empty(self) -> bool:
        """See the base class: no node has let the generation in."""
        return not self._opened

    def reply(self, reply: SeamReply) -> None:
        """See the base class."""
        if isinstance(reply, TokenReply):
            self.bytes_up += TOKEN_BYTES
        elif isinstance(reply, SessionOpened):
            self._opened = True
            self._cached = min(reply.cached_tokens, self._prompt)
        elif isinstance(reply, GenerationDone):
            self._ended = reply.finish_reason is FinishReason.STOP

    def read(self, engine_nanos: int, began_unix_nanos: int, ended_unix_nanos: int) -> SeamWork:
        """See the base class."""
        rows = decode_rows(self.bytes_up // TOKEN_BYTES, ended=self._ended)
        return SeamWork(
            self._prompt - self._cached,
            rows,
            self._cached,
            self._prompt + rows,
            self._prompt * TOKEN_BYTES,
            self.bytes_up,
            engine_nanos,
            began_unix_nanos,
            ended_unix_nanos,
        )


def decode_rows(tokens: int, *, ended: bool) -> int:
    """Positions computed for an answer of so many tokens, behind the prompt's.

    ``ended``: whether the model ended it, by a token that isn't one of them.
    """
    return max(tokens - 1 + ended, 0)
