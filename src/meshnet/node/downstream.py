"""A session's way to the next node: a handle on a channel, and credits for chunks."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Protocol, TypeVar

from meshnet.domain.errors import MeshnetError, NodeError, NodeLostError, error_from
from meshnet.domain.frames import (
    Cancel,
    OpenSession,
    PrefillChunk,
    Release,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    StepAck,
    TokenReply,
)
from meshnet.domain.nodes import Hop, HopTimings
from meshnet.node.credits import Credits
from meshnet.transport.channel import SeamChannel

HOP_TIMEOUT_SECONDS = 10.0
"""How long connecting to a node may take, or opening or releasing a session on the last one.

Nodes before it wait longer, so that the one next to the trouble is the one to report it.
"""

R = TypeVar("R")


class DownstreamOwner(Protocol):
    """The session on this side."""

    def token_returned(self, reply: TokenReply) -> None:
        """The tail's token for an earlier step."""

    def fail(self, error: MeshnetError) -> None:
        """The session can't go on."""


class Downstream:
    """Listens on the channel for one session. Errors name the hop."""

    def __init__(
        self, owner: DownstreamOwner, channel: SeamChannel, hop: Hop, nodes_behind: int
    ) -> None:
        self._owner = owner
        self._channel = channel
        self._hop = hop
        self._patience = HOP_TIMEOUT_SECONDS * (1 + 2 * nodes_behind)
        self._credits = Credits()
        self._releasing = False
        self._last_chunk = -1
        """The highest step of a chunk that was handed on."""
        loop = asyncio.get_running_loop()
        self._opened: asyncio.Future[SessionOpened] = loop.create_future()
        self._released: asyncio.Future[SessionReleased] = loop.create_future()
        self.handle = channel.attach(self)

    async def open(self, request: OpenSession) -> None:
        """Open the session on the next node and all behind it; raises what they raise."""
        self.send(request)
        opened = await self._within(self._opened, "accept the session")
        self._credits.add(opened.flow.strictest(request.flow).chunk_credits)

    async def send_chunk(self, chunk: PrefillChunk) -> None:
        """Send a chunk once the next node takes one; the session's deadline bounds the wait."""
        await self._credits.take()
        self._last_chunk = max(self._last_chunk, chunk.step)
        self.send(chunk)

    async def release(self) -> tuple[HopTimings, ...]:
        """Release the session behind; returns those nodes' timings.

        From here on trouble behind is raised here, rather than failing the session.
        """
        self._releasing = True
        self.send(Release(self.handle))
        released = await self._within(self._released, "release the session")
        return released.timings

    def send(self, request: SeamRequest) -> None:
        """Queue a frame; raises ``NodeLostError`` naming the hop once it is gone."""
        try:
            self._channel.send(request)
        except NodeError as error:
            raise self._lost(error.message) from error

    def leave(self, reason: str | None) -> None:
        """Hear no more of it; with a reason, the nodes behind are told to cancel."""
        self._channel.detach(self.handle)
        self._opened.cancel()
        self._released.cancel()
        if reason is not None:
            # Nodes behind a broken connection see its end and free the session by themselves.
            with contextlib.suppress(NodeError):
                self._channel.send(Cancel(self.handle, reason))

    def on_reply(self, reply: SeamReply) -> None:
        """Take a reply from the channel."""
        match reply:
            case TokenReply():
                self._owner.token_returned(reply)
            case StepAck():
                # A repeated decode step is acknowledged too, but took no credit.
                self._credits.add(1 if reply.step <= self._last_chunk else 0)
            case SessionOpened() if not self._opened.done():
                self._opened.set_result(reply)
            case SessionReleased() if not self._released.done():
                self._released.set_result(reply)
            case SessionFailed():
                self._trouble(error_from(reply.status))
            case _:
                self._owner.fail(self._lost(f"it sent an unexpected {type(reply).__name__}"))

    def on_lost(self, error: MeshnetError) -> None:
        """The next node is gone."""
        self._trouble(self._lost(error.message))

    def _trouble(self, error: MeshnetError) -> None:
        if not self._releasing:
            self._owner.fail(error)
        elif not self._released.done():
            self._released.set_exception(error)

    def _lost(self, why: str) -> NodeLostError:
        hop = self._hop
        return NodeLostError(f"lost node {hop}: {why}", node=hop.node_id, layers=str(hop.layers))

    async def _within(self, future: asyncio.Future[R], what: str) -> R:
        try:
            async with asyncio.timeout(self._patience):
                return await future
        except TimeoutError:
            raise self._lost(f"it didn't {what} within {self._patience:g} s") from None
