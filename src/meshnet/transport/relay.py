"""The relay: where nodes that can't be reached keep connections open, for others to reach them by.

One port takes two kinds of connection, told apart by the server that their TLS hello names. One for
the tracker is a node's own: its certificate says which node it is, and it waits. One for a node is
from somebody who wants that node, and its bytes, from the hello on, go over one of those that wait.
So the TLS connection that they make is between these two: the relay has neither's key.

On a waiting connection both sides send single bytes: :data:`WAIT`, which the node sends back, so
that either knows that the other is there, and :data:`GO`, which the node sends back once it is
connected to its own worker; what follows that is the other's. :data:`NO` says that its worker isn't
there.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Collection, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from meshnet.domain.errors import (
    InvalidArgumentError,
    MeshnetError,
    NodeUnreachableError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from meshnet.domain.ids import NodeId
from meshnet.transport.certificates import DOMAIN, Role, peer_of
from meshnet.transport.hello import peeked_name
from meshnet.transport.quota import Pace
from meshnet.transport.splice import Meter, Streams, splice, streams_of

LOGGER = logging.getLogger(__name__)
WAIT: Final = b"\x00"
GO: Final = b"\x01"
NO: Final = b"\x02"
ACCEPT_PAUSE_SECONDS = 0.5
"""After an accept failed, which is for want of file descriptors mostly."""


@dataclass(frozen=True, slots=True)
class RelayLimits:
    """What nodes and strangers may have of a relay. Each node has an allowance of its own."""

    bytes_per_second: float = 32.0 * 2**20
    """Of one node, both directions and all connections together."""
    burst_bytes: float = 16.0 * 2**20
    """What passes at once after a quiet time."""
    connections: int = 32
    """To one node at once."""
    waiting: int = 8
    """That one node keeps open at once."""
    greeting: int = 256
    """Connections at once that didn't say yet what they want, from all over."""
    greeting_seconds: float = 5.0
    """How long each of these has."""
    wait_seconds: float = 10.0
    """How often a waiting connection is asked for a sign of life, and how long that may take."""
    go_seconds: float = 5.0
    """How long a node may take to connect its worker."""
    idle_seconds: float = 30.0
    """A connection on which nothing passes for so long is closed; gRPC's keep-alive passes."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} isn't positive")


@dataclass(slots=True)
class _Account:
    """One node's."""

    pace: Pace
    seats: list[_Seat] = field(default_factory=list)
    carrying: set[asyncio.Task[None]] = field(default_factory=set)
    """Those that serve somebody's connection to the node."""
    carried_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Seat:
    """A connection that a node keeps open."""

    account: _Account
    streams: Streams
    watch: asyncio.Task[None]
    """Ends when the node is gone; cancelled when the connection is taken or given up."""


class Relay:
    """Serves nodes that it was told of with :meth:`admit`, and nobody else.

    ``tls`` is the tracker's, as ``server_context`` makes it.
    """

    def __init__(self, tls: ssl.SSLContext, limits: RelayLimits | None = None) -> None:
        self._tls = tls
        self._limits = limits or RelayLimits()
        self._accounts: dict[NodeId, _Account] = {}
        self._admitted: frozenset[NodeId] = frozenset()
        self._greeting = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener: socket.socket | None = None

    def start(self, listener: socket.socket) -> None:
        """Serve on a listening socket, which is closed with the relay."""
        listener.settimeout(0)
        self._listener = listener
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    async def close(self) -> None:
        """Listen no more, and end every connection; idempotent."""
        if self._listener is not None:
            asyncio.get_running_loop().remove_reader(self._listener)
            self._listener.close()
            self._listener = None
        # One that is cancelled before it has begun wouldn't close what it was given.
        await asyncio.sleep(0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def admit(self, admitted: Collection[NodeId], members: Collection[NodeId]) -> None:
        """Keep connections for these nodes alone.

        What other ``members`` have under way goes on to its end; those of nobody else do.
        """
        self._admitted = frozenset(admitted)
        for node_id, account in list(self._accounts.items()):
            if node_id not in admitted:
                for seat in account.seats:
                    seat.watch.cancel()
            if node_id not in members:
                for task in account.carrying:
                    task.cancel()
                del self._accounts[node_id]

    @property
    def waiting(self) -> frozenset[NodeId]:
        """The nodes that can be reached here now."""
        return frozenset(node for node, account in self._accounts.items() if account.seats)

    @property
    def carrying(self) -> frozenset[NodeId]:
        """The nodes that it knows: those with something under way are among them."""
        return frozenset(self._accounts)

    @property
    def carried_bytes(self) -> Mapping[NodeId, int]:
        """By node, what was carried to and from it."""
        return {node: account.carried_bytes for node, account in self._accounts.items()}

    def _accept(self, listener: socket.socket) -> None:
        """Take what waits to be accepted."""
        try:
            connection, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            LOGGER.warning("the relay can't take a connection: %s", error)
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(ACCEPT_PAUSE_SECONDS, self._accept_again, listener)
            return
        connection.settimeout(0)
        if self._greeting >= self._limits.greeting:
            connection.close()
            return
        self._greeting += 1
        self._run(self._serve(connection))

    def _accept_again(self, listener: socket.socket) -> None:
        # Closed meanwhile?
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, listener)

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="relayed connection")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            LOGGER.error("a relayed connection failed", exc_info=error)

    async def _serve(self, connection: socket.socket) -> None:
        """One connection, from its first byte to its last."""
        # Whoever connects can bring these errors about, so they aren't worth a louder word.
        try:
            found = await self._greeted(connection)
            if isinstance(found, _Seat):
                await self._keep(found)
            else:
                await self._carry(found, connection)
        except MeshnetError as error:
            LOGGER.debug("the relay ended a connection: %s", error.message)
        except OSError as error:
            LOGGER.debug("the relay lost a connection: %s", error)

    async def _greeted(self, connection: socket.socket) -> _Seat | NodeId:
        """Who is there: a node, whose connection waits from now on, or whom somebody asks for."""
        try:
            name = await self._hello(connection)
            if name != Role.TRACKER.host_name:
                return NodeId(name.removesuffix(f".{DOMAIN}"))
            streams = await streams_of(connection, self._tls, self._limits.greeting_seconds)
        finally:
            self._greeting -= 1
        try:
            return self._seated(streams)
        except MeshnetError:
            await streams.close()
            raise

    async def _hello(self, connection: socket.socket) -> str:
        """The server that a connection's first message names; in time, or it is closed."""
        try:
            async with asyncio.timeout(self._limits.greeting_seconds):
                return await peeked_name(connection)
        except BaseException:
            connection.close()
            raise

    def _seated(self, streams: Streams) -> _Seat:
        """Have a node's connection wait, if it may."""
        certificate = streams.writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if not certificate:
            raise UnauthenticatedError("it shows no certificate")
        peer = peer_of(certificate)
        if peer.role is not Role.NODE or peer.node_id not in self._admitted:
            raise UnauthenticatedError(f"{peer} has no business here")
        account = self._accounts.get(peer.node_id)
        if account is None:
            rate, burst = self._limits.bytes_per_second, self._limits.burst_bytes
            account = _Account(Pace(rate, burst, asyncio.get_running_loop().time()))
            self._accounts[peer.node_id] = account
        if len(account.seats) >= self._limits.waiting:
            raise ResourceExhaustedError(f"{peer} keeps {self._limits.waiting} connections already")
        streams.keep_alive()
        streams.writer.write(WAIT)
        seat = _Seat(account, streams, asyncio.create_task(self._watch(streams)))
        account.seats.append(seat)
        return seat

    async def _watch(self, streams: Streams) -> None:
        """Ask for signs of life until none comes, or what comes isn't one."""
        asked = True
        while True:
            try:
                async with asyncio.timeout(self._limits.wait_seconds):
                    said = await streams.reader.read(1)
            except TimeoutError:
                if asked:
                    return
                streams.writer.write(WAIT)
                asked = True
                continue
            if said != WAIT or not asked:
                return
            asked = False

    async def _keep(self, seat: _Seat) -> None:
        """Wait until a node's connection is taken by somebody, or is of no use any more."""
        try:
            await asyncio.wait([seat.watch])
        finally:
            seat.watch.cancel()
            if seat in seat.account.seats:
                seat.account.seats.remove(seat)
                await seat.streams.close()

    async def _carry(self, node_id: NodeId, connection: socket.socket) -> None:
        """Connect somebody to a node, and carry what they say."""
        with connection:
            account = self._account_of(node_id)
            carrying = asyncio.create_task(self._connected(connection, account))
            account.carrying.add(carrying)
            carrying.add_done_callback(account.carrying.discard)
            await carrying

    def _account_of(self, node_id: NodeId) -> _Account:
        """Of a node to which one more connection may be made."""
        account = self._accounts.get(node_id)
        if account is None:
            raise NodeUnreachableError(f"nothing waits for {node_id[:40]!r}")
        if len(account.carrying) >= self._limits.connections:
            raise ResourceExhaustedError(f"{node_id} has {len(account.carrying)} connections")
        return account

    async def _connected(self, connection: socket.socket, account: _Account) -> None:
        """Carry between somebody's end and one of the node's."""
        node = await self._taken(account)
        try:
            client = await streams_of(connection)
        except BaseException:
            node.writer.transport.abort()
            raise
        await splice(client, node, self._limits.idle_seconds, self._meter(account))

    async def _taken(self, account: _Account) -> Streams:
        """A waiting connection on which the node has connected its worker."""
        for _ in range(len(account.seats)):
            if not account.seats:
                break
            seat = account.seats.pop(0)
            seat.watch.cancel()
            try:
                await asyncio.wait([seat.watch])
                said = await self._asked(seat.streams)
                if said == GO:
                    return seat.streams
            except BaseException:
                seat.streams.writer.transport.abort()
                raise
            await seat.streams.close()
            if said == NO:
                break
            # The connection has died just now, and others may not have.
        raise NodeUnreachableError("no connection to it is of use now")

    async def _asked(self, streams: Streams) -> bytes:
        """Have a node connect its worker; gives its answer, empty without one."""
        try:
            streams.writer.write(GO)
            async with asyncio.timeout(self._limits.go_seconds):
                # The answer to the last question may still be under way, and comes first.
                while (said := await streams.reader.readexactly(1)) == WAIT:
                    pass
        except (OSError, asyncio.IncompleteReadError):
            return b""
        return said

    def _meter(self, account: _Account) -> Meter:
        clock = asyncio.get_running_loop().time

        def count(passed: int) -> float:
            account.carried_bytes += passed
            return account.pace.take(passed, clock())

        return count
