"""Nodes within one process: frames are handed over as they are, nothing is serialised.

A :class:`LoopbackNetwork` is a whole network of its own; nodes are registered in it by name, and
each reaches the others through :meth:`LoopbackNetwork.transport`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from meshnet.domain.errors import (
    InvalidArgumentError,
    MeshnetError,
    NodeLostError,
    error_from,
    status_of,
)
from meshnet.domain.frames import SeamReply, SeamRequest
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.nodes import Capability, HealthReport
from meshnet.transport.base import ClientSeam, Peer, ServerSeam, ShardService, Transport
from meshnet.transport.failures import lost, no_answer, reported, unreachable
from meshnet.transport.queues import Inbox

CLOSE_SECONDS = 0.5
"""How long closing a seam waits for the serving end before it is cancelled."""

T = TypeVar("T")


class LoopbackNetwork:
    """Services by address, and the seams between them."""

    def __init__(self) -> None:
        self._services: dict[Address, ShardService] = {}
        self._answers: dict[asyncio.Task[Any], Address] = {}
        self._links: set[_Link] = set()

    def register(self, address: Address, service: ShardService) -> None:
        """Put a service at an address; :class:`InvalidArgumentError` if another is there."""
        if address in self._services:
            raise InvalidArgumentError("address", f"{address} is taken; choose another")
        self._services[address] = service

    def transport(self, origin: Address | None = None) -> LoopbackTransport:
        """The network as the node at ``origin`` uses it; None for somebody who is no node."""
        return LoopbackTransport(self, origin)

    def drop(self, address: Address) -> None:
        """Lose the node at ``address`` at once, as when its machine loses power.

        What it was serving is cancelled, and its peers see broken streams on both sides. Nobody
        reaches it until another service is registered there. An unknown address is no error.
        """
        self._services.pop(address, None)
        for task in [task for task, at in self._answers.items() if at == address]:
            task.cancel()
        for link in list(self._links):
            if address in (link.address, link.origin):
                link.sever(serving_too=link.address == address)

    def _service(self, address: Address) -> ShardService:
        service = self._services.get(address)
        if service is None:
            raise unreachable(address, "no node is there")
        return service

    async def _ask(
        self,
        address: Address,
        call: Callable[[ShardService], Coroutine[Any, Any, T]],
        timeout_seconds: float,
    ) -> T:
        task = asyncio.create_task(call(self._service(address)))
        self._answers[task] = address
        task.add_done_callback(lambda done: self._answers.pop(done, None))
        try:
            await asyncio.wait({task}, timeout=timeout_seconds)
        finally:
            unanswered = not task.done()
            task.cancel()
        if unanswered:
            raise no_answer(address, timeout_seconds)
        if task.cancelled():
            raise unreachable(address, "the node was lost before it answered")
        error = task.exception()
        if isinstance(error, Exception):
            raise _copy(reported(error, "answering"))
        return task.result()

    def _open(self, address: Address, origin: Address | None) -> _Link:
        link = _Link(address, origin)
        link.serve(self._service(address))
        self._links.add(link)
        link.serving.add_done_callback(lambda _: self._links.discard(link))
        return link


class LoopbackTransport(Transport):
    """The network as one node uses it."""

    def __init__(self, network: LoopbackNetwork, origin: Address | None) -> None:
        self._network = network
        self._origin = origin

    def peer(self, address: Address, node_id: NodeId | None = None) -> Peer:
        """See :meth:`Transport.peer`; an address is all there is to a node here."""
        return _LoopbackPeer(self._network, address, self._origin)


class _LoopbackPeer(Peer):
    def __init__(self, network: LoopbackNetwork, address: Address, origin: Address | None) -> None:
        self._network = network
        self._address = address
        self._origin = origin

    @property
    def address(self) -> Address:
        return self._address

    async def capability(self, timeout_seconds: float, padding_bytes: int = 0) -> Capability:
        return await self._network._ask(self._address, lambda s: s.capability(), timeout_seconds)

    async def health(self, timeout_seconds: float) -> HealthReport:
        return await self._network._ask(self._address, lambda s: s.health(), timeout_seconds)

    async def release(self, key: SessionKey, timeout_seconds: float) -> None:
        await self._network._ask(self._address, lambda s: s.release(key), timeout_seconds)

    async def cancel(self, key: SessionKey, reason: str, timeout_seconds: float) -> None:
        await self._network._ask(self._address, lambda s: s.cancel(key, reason), timeout_seconds)

    async def open_seam(self, timeout_seconds: float) -> ClientSeam:
        return _LoopbackClientSeam(self._network._open(self._address, self._origin))

    async def close(self) -> None:
        pass


class _Link:
    """One seam: what goes down, what comes up, and the task that serves it."""

    serving: asyncio.Task[None]

    def __init__(self, address: Address, origin: Address | None) -> None:
        self.address = address
        self.origin = origin
        self.requests: Inbox[SeamRequest] = Inbox()
        self.replies: Inbox[SeamReply] = Inbox()

    def serve(self, service: ShardService) -> None:
        self.serving = asyncio.create_task(self._serve(service))

    async def _serve(self, service: ShardService) -> None:
        error: MeshnetError = lost(self.address, "the node closed it")
        try:
            await service.serve_seam(_LoopbackServerSeam(self))
        except asyncio.CancelledError:
            error = lost(self.address, "the node went away")
            raise
        except Exception as failure:  # noqa: BLE001 - reported() logs what isn't a MeshnetError
            error = reported(failure, "serving a stream")
        finally:
            self.requests.end()
            self.replies.end(error)

    def sever(self, *, serving_too: bool) -> None:
        self.requests.discard()
        self.requests.end()
        self.replies.discard()
        self.replies.end(lost(self.address, "the connection broke"))
        if serving_too:
            self.serving.cancel()


class _LoopbackServerSeam(ServerSeam):
    def __init__(self, link: _Link) -> None:
        self._link = link

    async def receive(self) -> SeamRequest | None:
        return await self._link.requests.get()

    def send(self, reply: SeamReply) -> None:
        self._link.replies.put(reply)


class _LoopbackClientSeam(ClientSeam):
    def __init__(self, link: _Link) -> None:
        self._link = link
        self._closed = False

    def send(self, request: SeamRequest) -> None:
        if self._link.replies.ended:
            raise lost(self._link.address, "nothing can be sent any more")
        self._link.requests.put(request)

    async def receive(self) -> SeamReply:
        reply = await self._link.replies.get()
        if reply is None:
            raise NodeLostError(f"{self._link.address}: the stream ended")
        return reply

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._link.requests.end()
        self._link.replies.discard()
        self._link.replies.end(lost(self._link.address, "it was closed here"))
        await asyncio.wait({self._link.serving}, timeout=CLOSE_SECONDS)
        self._link.serving.cancel()


def _copy(error: MeshnetError) -> MeshnetError:
    """The error as it comes out of a process border, so that both transports give the same."""
    return error_from(status_of(error))
