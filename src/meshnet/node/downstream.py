"""A session's way to the next node: a handle on a channel, and credits for chunks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Protocol, TypeVar

from meshnet.domain.errors import MeshnetError, NodeError, NodeLostError, error_from
from meshnet.domain.frames import (
    Cancel,
    DecodeFrame,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    Release,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    SessionReleased,
    SignedWork,
    StepAck,
    TokenReply,
)
from meshnet.domain.nodes import Hop, HopTimings
from meshnet.domain.seamcounts import NodeSeamCounts
from meshnet.node.credits import Credits
from meshnet.transport.channel import SeamChannel
from meshnet.transport.countersigning import OpenersReceipt

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
        self,
        owner: DownstreamOwner,
        channel: SeamChannel,
        hop: Hop,
        nodes_behind: int,
        receipt: OpenersReceipt[NodeSeamCounts] | None,
    ) -> None:
        """``receipt`` counts what passes; None where there are none."""
        self._receipt = receipt
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

    @property
    def step_tokens(self) -> int:
        """See :attr:`SessionOpened.step_tokens`; for when the session is open."""
        return self._opened.result().step_tokens

    @property
    def pieces(self) -> tuple[int, int] | None:
        """See :attr:`SessionOpened.pieces`; for when the session is open."""
        return self._opened.result().pieces

    @property
    def cached_tokens(self) -> int:
        """See :attr:`SessionOpened.cached_tokens`; for when the session is open."""
        return self._opened.result().cached_tokens

    @property
    def chunk_credits(self) -> int:
        """Chunks that the next node takes now."""
        return self._credits.count

    async def open(self, request: OpenSession) -> None:
        """Open the session on the next node and all behind it; raises what they raise."""
        self.send(request)
        opened = await self._within(self._opened, "accept the session")
        self._credits.add(opened.flow.strictest(request.flow).chunk_credits)

    async def send_chunk(self, chunk: PrefillChunk) -> int:
        """Send a chunk once the next node takes one; returns the nanoseconds waited for that.

        The session's deadline bounds the wait.
        """
        began = time.perf_counter_ns()
        await self._credits.take()
        waited = time.perf_counter_ns() - began
        self._last_chunk = max(self._last_chunk, chunk.step)
        self._step(chunk, chunk)
        return waited

    def send_step(self, step: DecodeStep) -> None:
        """Send a decode step; raises like :meth:`send`."""
        self._step(DecodeFrame((step,)), step)

    def _step(self, request: SeamRequest, counted: PrefillChunk | DecodeStep) -> None:
        self.send(request)
        if self._receipt is not None:
            self._receipt.counts.request(counted)

    def begin_release(self, *, keep: bool) -> None:
        """Let the session behind go, whose caches may stay.

        From here on trouble behind is raised by :meth:`released`, rather than failing the session.
        """
        self._releasing = True
        try:
            self.send(Release(self.handle, keep))
        except NodeError as error:
            self._trouble(error)

    async def release(self, *, keep: bool) -> tuple[HopTimings, ...]:
        """:meth:`begin_release`, and :meth:`released`."""
        self.begin_release(keep=keep)
        return await self.released()

    async def released(self, patience_seconds: float | None = None) -> tuple[HopTimings, ...]:
        """The timings of the nodes behind, once they have let go; raises why they didn't.

        The patience is by default enough for the node next to the trouble to report it first.
        """
        released = await self._within(self._released, "release the session", patience_seconds)
        return released.timings

    def give_up(self) -> None:
        """Tell the nodes behind that what they kept of the session is of no more use."""
        # One that is gone, or doesn't hear it, gives it up by itself later.
        with contextlib.suppress(NodeError):
            self._channel.send(Release(self.handle))

    def send(self, request: SeamRequest) -> None:
        """Queue a frame; raises ``NodeLostError`` naming the hop once it is gone."""
        try:
            self._channel.send(request)
        except NodeError as error:
            raise self._lost(error.message) from error

    def leave(self, reason: str | None) -> None:
        """Hear no more of it; with a reason, the nodes behind are told to cancel."""
        if self._receipt is None:
            self._channel.detach(self.handle)
        else:
            self._receipt.linger(self.handle)
        self._opened.cancel()
        if not self._released.cancel() and not self._released.cancelled():
            # Trouble that came too late to matter is no error that nobody looked at.
            self._released.exception()
        if reason is not None:
            # Nodes behind a broken connection see its end and free the session by themselves.
            with contextlib.suppress(NodeError):
                self._channel.send(Cancel(self.handle, reason))

    def on_reply(self, reply: SeamReply) -> None:
        """Take a reply from the channel."""
        match reply:
            case TokenReply():
                if self._receipt is not None:
                    self._receipt.on_reply(reply)
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
            case SignedWork() if self._receipt is not None:
                self._receipt.on_reply(reply)
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

    async def _within(
        self, future: asyncio.Future[R], what: str, patience_seconds: float | None = None
    ) -> R:
        patience = self._patience if patience_seconds is None else patience_seconds
        try:
            async with asyncio.timeout(patience):
                return await future
        except TimeoutError:
            raise self._lost(f"it didn't {what} within {patience:g} s") from None
