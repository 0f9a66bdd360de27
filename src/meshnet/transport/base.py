"""The transport contract: what a node offers, and how one reaches a node.

Both transports (gRPC, loopback) fulfil it and pass the same tests. Every wait has a deadline; a
peer's error arrives as the :class:`MeshnetError` it was, a broken connection as ``NodeLostError``.
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import NoReturn

from meshnet.domain.frames import SeamReply, SeamRequest
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.nodes import Capability, HealthReport


class ServerSeam(abc.ABC):
    """The serving end of one stream."""

    @property
    def peer(self) -> NodeId | None:
        """Who opened the stream, where the connection proves it; None where it doesn't."""
        return None

    @abc.abstractmethod
    async def receive(self) -> SeamRequest | None:
        """The next request; None once the opener has closed the stream or is gone.

        Raises :class:`MalformedFrameError` for bytes that don't obey the contract; the stream is
        of no more use then.
        """

    async def consume(self, take: Callable[[SeamRequest], None]) -> None:
        """Bring each request to ``take`` until there are no more.

        A transport may call ``take`` right where a request comes in, which saves the turns of the
        event loop that it takes to wake a reader. Raises what :meth:`receive` or ``take`` raises.
        """
        while (request := await self.receive()) is not None:
            take(request)

    @abc.abstractmethod
    def send(self, reply: SeamReply) -> None:
        """Queue a reply; replies leave in order. Does nothing once the stream has ended."""


class ShardService(abc.ABC):
    """What a node offers. Methods raise :class:`MeshnetError`; the transport carries it over."""

    @abc.abstractmethod
    async def capability(self) -> Capability:
        """What the node holds and can do."""

    @abc.abstractmethod
    async def health(self) -> HealthReport:
        """Its state and reason; answers while the engine is busy."""

    @abc.abstractmethod
    async def release(self, key: SessionKey) -> None:
        """Drop a session's state; idempotent, also for a session that was never here."""

    @abc.abstractmethod
    async def cancel(self, key: SessionKey, reason: str) -> None:
        """Stop a session's work here and behind; idempotent."""

    @abc.abstractmethod
    async def serve_seam(self, seam: ServerSeam) -> None:
        """Serve one stream until :meth:`ServerSeam.receive` gives None or this is cancelled.

        On return, whatever the stream's sessions held is freed.
        """


class ClientSeam(abc.ABC):
    """The opening end of one stream."""

    @abc.abstractmethod
    def send(self, request: SeamRequest) -> None:
        """Queue a request; requests leave in order.

        Raises :class:`NodeLostError` once the stream has broken.
        """

    @abc.abstractmethod
    async def receive(self) -> SeamReply:
        """The next reply; raises :class:`NodeLostError` when the stream is broken or ended.

        Waits without a deadline of its own: a stream is quiet for as long as its sessions are,
        and a dead peer is noticed by the connection (reset or keep-alive).
        """

    async def consume(self, take: Callable[[SeamReply], None]) -> NoReturn:
        """Bring each reply to ``take``, like :meth:`ServerSeam.consume`; raises in the end."""
        while True:
            take(await self.receive())

    @abc.abstractmethod
    async def close(self) -> None:
        """Close the stream and free it; idempotent."""


class Peer(abc.ABC):
    """A node as seen from outside."""

    @property
    @abc.abstractmethod
    def address(self) -> Address:
        """Where it is."""

    @abc.abstractmethod
    async def capability(self, timeout_seconds: float, padding_bytes: int = 0) -> Capability:
        """See :meth:`ShardService.capability`; raises ``NodeUnreachableError`` or its error.

        ``padding_bytes`` more are sent than needed, so that the link can be timed.
        """

    @abc.abstractmethod
    async def health(self, timeout_seconds: float) -> HealthReport:
        """See :meth:`ShardService.health`."""

    @abc.abstractmethod
    async def release(self, key: SessionKey, timeout_seconds: float) -> None:
        """See :meth:`ShardService.release`."""

    @abc.abstractmethod
    async def cancel(self, key: SessionKey, reason: str, timeout_seconds: float) -> None:
        """See :meth:`ShardService.cancel`."""

    @abc.abstractmethod
    async def open_seam(self, timeout_seconds: float) -> ClientSeam:
        """Open a stream; raises ``NodeUnreachableError`` when no connection comes about."""

    @abc.abstractmethod
    async def close(self) -> None:
        """Free the connection; idempotent."""


class Transport(abc.ABC):
    """Reaches nodes by address."""

    @property
    def proves_identity(self) -> bool:
        """Whether it makes sure which node is at an address; one that doesn't takes any."""
        return False

    @abc.abstractmethod
    def peer(self, address: Address, node_id: NodeId | None = None) -> Peer:
        """The node at ``address``; makes no connection yet.

        With ``node_id``, a transport that :attr:`proves_identity` reaches that node or none; with
        None, any node of the cluster.
        """
