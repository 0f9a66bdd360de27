"""One seam, many sessions: gives out handles and brings each reply to the session it is for."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from typing import Protocol

from meshnet.domain.errors import MeshnetError, NodeError, NodeLostError
from meshnet.domain.frames import SeamReply, SeamRequest
from meshnet.domain.ids import Address
from meshnet.transport.base import ClientSeam, Peer, Transport
from meshnet.transport.failures import no_answer


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
        self._reader = asyncio.create_task(self._read(), name=f"seam-reader {address}")

    @property
    def broken(self) -> MeshnetError | None:
        """Why the channel is of no more use; None while it is."""
        return self._broken

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
            while True:
                reply = await self._seam.receive()
                listener = self._listeners.get(reply.handle)
                if listener is not None:
                    listener.on_reply(reply)
        except MeshnetError as error:
            self._break(error)

    def _break(self, error: MeshnetError) -> None:
        if self._broken is None:
            # Whatever ended the stream, to later senders this node is one that is gone.
            lost = error if isinstance(error, NodeError) else NodeLostError(error.message)
            self._broken = lost
        listeners = list(self._listeners.values())
        self._listeners.clear()
        for listener in listeners:
            listener.on_lost(error)


class ChannelPool:
    """The channels of one node or gateway: one an address, opened when first asked for."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._peers: dict[Address, Peer] = {}
        self._channels: dict[Address, SeamChannel] = {}
        self._opening: dict[Address, asyncio.Lock] = {}

    def peer(self, address: Address) -> Peer:
        """The node at ``address``, for unary calls; shared with its channel."""
        if address not in self._peers:
            self._peers[address] = self._transport.peer(address)
        return self._peers[address]

    async def channel(self, address: Address, timeout_seconds: float) -> SeamChannel:
        """The channel to ``address``; a broken one is replaced.

        Raises ``NodeUnreachableError`` when no connection comes about in time, which includes
        the wait for others who are opening the same channel.
        """
        lock = self._opening.setdefault(address, asyncio.Lock())
        try:
            async with asyncio.timeout(timeout_seconds), lock:
                return await self._opened(address, timeout_seconds)
        except TimeoutError:
            raise no_answer(address, timeout_seconds) from None

    async def _opened(self, address: Address, timeout_seconds: float) -> SeamChannel:
        channel = self._channels.get(address)
        if channel is not None and channel.broken is None:
            return channel
        if channel is not None:
            await channel.close()
        seam = await self.peer(address).open_seam(timeout_seconds)
        self._channels[address] = SeamChannel(seam, address)
        return self._channels[address]

    async def close(self) -> None:
        """Close every channel and connection."""
        channels, peers = list(self._channels.values()), list(self._peers.values())
        self._channels.clear()
        self._peers.clear()
        for channel in channels:
            await channel.close()
        for peer in peers:
            await peer.close()
