"""One seam, many sessions: gives out handles and brings each reply to the session it is for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from dataclasses import dataclass, field
from typing import Protocol

from meshnet.domain.errors import MeshnetError, NodeError, NodeLostError
from meshnet.domain.frames import SeamReply, SeamRequest
from meshnet.domain.ids import Address, NodeId
from meshnet.transport.base import ClientSeam, Peer, Transport
from meshnet.transport.failures import lost, no_answer, unreachable
from meshnet.transport.receipts import ReceiptBook

LOGGER = logging.getLogger(__name__)
IDLE_SECONDS = 900.0
"""A connection that nobody used for so long is closed when one to a new address is made."""


class ReplyListener(Protocol):
    """A session's ear on the channel. Both methods are called on the event loop, never awaited."""

    def on_reply(self, reply: SeamReply) -> None:
        """A reply with this session's handle arrived."""

    def on_lost(self, error: MeshnetError) -> None:
        """The channel broke; no reply will come any more."""


class SeamChannel:
    """Owns a :class:`ClientSeam` and the task that reads it."""

    def __init__(self, seam: ClientSeam, address: Address) -> None:
        self._seam = seam
        self._address = address
        self._handles = itertools.count(1)
        self._listeners: dict[int, ReplyListener] = {}
        self._broken: MeshnetError | None = None
        self._left = asyncio.get_running_loop().time()
        self._reader = asyncio.create_task(self._read(), name=f"seam-reader {address}")

    @property
    def broken(self) -> MeshnetError | None:
        """Why the channel is of no more use; None while it is."""
        return self._broken

    @property
    def idle_since(self) -> float | None:
        """Since when nobody listens, by the loop's clock; None while somebody does."""
        return None if self._listeners else self._left

    def attach(self, listener: ReplyListener) -> int:
        """A new handle whose replies go to ``listener``; raises if the channel is broken."""
        if self._broken is not None:
            raise self._broken
        handle = next(self._handles)
        self._listeners[handle] = listener
        return handle

    def detach(self, handle: int) -> None:
        """Replies with this handle are dropped from now on; idempotent."""
        self._listeners.pop(handle, None)
        self._left = asyncio.get_running_loop().time()

    def hand_over(self, handle: int, listener: ReplyListener) -> None:
        """Replies with this handle go to another listener; raises if the channel is broken."""
        if self._broken is not None:
            raise self._broken
        self._listeners[handle] = listener

    def send(self, request: SeamRequest) -> None:
        """Queue a request; raises ``NodeLostError`` once the channel is broken."""
        if self._broken is not None:
            raise self._broken
        self._seam.send(request)

    async def close(self) -> None:
        """Close the stream; listeners still attached hear ``on_lost``."""
        self._reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reader
        self._break(NodeLostError(f"the connection to {self._address} was closed"))
        await self._seam.close()

    async def _read(self) -> None:
        try:
            await self._seam.consume(self._bring)
        except MeshnetError as error:
            self._break(error)
        except Exception as error:
            LOGGER.exception("a reply from %s couldn't be taken in", self._address)
            why = f"a reply couldn't be taken in: {type(error).__name__}: {error}"
            self._break(lost(self._address, why))
            # The stream itself may be whole, and the node behind it at work for nobody.
            await self._seam.close()

    def _bring(self, reply: SeamReply) -> None:
        listener = self._listeners.get(reply.handle)
        if listener is not None:
            listener.on_reply(reply)

    def _break(self, error: MeshnetError) -> None:
        if self._broken is None:
            # Whatever ended the stream, to later senders this node is one that is gone.
            gone = error if isinstance(error, NodeError) else NodeLostError(error.message)
            self._broken = gone
        listeners = list(self._listeners.values())
        self._listeners.clear()
        for listener in listeners:
            try:
                listener.on_lost(error)
            except Exception:
                LOGGER.exception("a session of %s couldn't take in its loss", self._address)


_Place = tuple[Address, NodeId | None]
"""An address, and who must be there; None where that isn't known or can't be proved."""


@dataclass(slots=True)
class _Line:
    """What there is for one place."""

    place: _Place
    peer: Peer
    used: float
    """When somebody last asked for it, by the loop's clock."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the channel is opened."""
    channel: SeamChannel | None = None
    waiting: int = 0
    """How many are in :meth:`ChannelPool.channel`."""
    asked: bool = False
    """Whether somebody got the peer for unary calls."""

    def idle(self, now: float) -> bool:
        """Whether nobody has used it for long."""
        if self.waiting:
            return False
        since = self.used if self.channel is None else self.channel.idle_since
        return since is not None and now - max(since, self.used) >= IDLE_SECONDS


class ChannelPool:
    """The channels of one node or gateway: one a place, opened when first asked for.

    Peers name addresses, so one that is of no use isn't remembered: that of a node that couldn't be
    reached, and that of one which nobody used for :data:`IDLE_SECONDS`.
    """

    def __init__(self, transport: Transport, receipts: ReceiptBook | None = None) -> None:
        self._transport = transport
        self.receipts = receipts
        """Where what sessions took is kept, signed; None where nobody has a key to sign with."""
        self._lines: dict[_Place, _Line] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def peer(self, address: Address, node_id: NodeId | None = None) -> Peer:
        """The node at ``address``, for unary calls; shared with its channel.

        Ask for it again for each call, since an idle connection is closed. ``node_id`` is who must
        be there, as :meth:`Transport.peer` says.
        """
        line = self._line(address, node_id)
        line.asked = True
        return line.peer

    async def channel(
        self, address: Address, timeout_seconds: float, node_id: NodeId | None = None
    ) -> SeamChannel:
        """The channel to ``address``; a broken one is replaced. ``node_id``: who must be there.

        Raises ``NodeUnreachableError`` when no connection comes about in time, which includes
        the wait for others who are opening the same channel, or when the pool is closed meanwhile.
        """
        line = self._line(address, node_id)
        line.waiting += 1
        try:
            async with asyncio.timeout(timeout_seconds), line.lock:
                return await self._opened(line, timeout_seconds)
        except TimeoutError:
            raise no_answer(address, timeout_seconds) from None
        finally:
            line.waiting -= 1
            if line.channel is None and not line.waiting and not line.asked:
                self._drop(line)

    async def close(self) -> None:
        """Close every channel and connection, those too that are being opened."""
        lines = list(self._lines.values())
        self._lines.clear()
        for line in lines:
            await _close(line)
        if self._closing:
            await asyncio.wait(self._closing)

    def _line(self, address: Address, node_id: NodeId | None) -> _Line:
        now = asyncio.get_running_loop().time()
        place = (address, node_id if self._transport.proves_identity else None)
        line = self._lines.get(place)
        if line is None:
            for old in list(self._lines.values()):
                if old.idle(now):
                    self._drop(old)
            line = self._lines[place] = _Line(place, self._transport.peer(*place), now)
        line.used = now
        return line

    async def _opened(self, line: _Line, timeout_seconds: float) -> SeamChannel:
        address, _ = line.place
        channel = line.channel
        if channel is not None and channel.broken is None:
            return channel
        if channel is not None:
            line.channel = None
            await channel.close()
        seam = await line.peer.open_seam(timeout_seconds)
        if self._lines.get(line.place) is not line:
            await seam.close()
            raise unreachable(address, "the connection was closed here")
        line.channel = SeamChannel(seam, address)
        return line.channel

    def _drop(self, line: _Line) -> None:
        """Forget a place, and close what there is for it; nothing if that was done before."""
        if self._lines.get(line.place) is line:
            del self._lines[line.place]
            task = asyncio.create_task(_close(line), name=f"closing {line.place[0]}")
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)


async def _close(line: _Line) -> None:
    if line.channel is not None:
        await line.channel.close()
    await line.peer.close()
