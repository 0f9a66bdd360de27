"""Reaches nodes over gRPC: one connection a peer, one long-lived stream a seam."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from meshnet.domain.errors import (
    InvalidArgumentError,
    MalformedFrameError,
    MeshnetError,
    error_from,
)
from meshnet.domain.frames import SeamReply, SeamRequest
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.nodes import Capability, FlowControl, HealthReport
from meshnet.domain.status import StatusCode, StructuredStatus
from meshnet.transport.address import parse_address
from meshnet.transport.base import ClientSeam, Peer, Transport
from meshnet.transport.connection import Connection
from meshnet.transport.failures import lost, no_answer, unreachable
from meshnet.transport.methods import method_path
from meshnet.transport.options import GrpcOptions, max_frame_bytes
from meshnet.transport.queues import FRAME_WEIGHT, Inbox, Outbox
from meshnet.transport.tls import handshake_problem
from meshnet.transport.traffic import Traffic
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.compression import Compression
from meshnet.wire.convert import MERGEABLE, checked, decode_replies, encode_request, fitting, parse
from meshnet.wire.convert_nodes import capability_from_proto, health_from_proto
from meshnet.wire.convert_values import require
from meshnet.wire.status import CODE_FROM_GRPC, status_from_trailer

CLOSE_SECONDS = 0.5
"""How long closing a seam waits for what is queued to leave and for the node to end it."""
NO_NODE = "what listens there isn't a Meshnet node"

M = TypeVar("M", bound=Message)


class GrpcTransport(Transport):
    """Reaches nodes by ``host:port``."""

    def __init__(self, flow: FlowControl | None = None, options: GrpcOptions | None = None) -> None:
        """``flow``: the bounds of this end; only the size of frames matters here."""
        self._max_bytes = max_frame_bytes(flow or FlowControl())
        self._options = options or GrpcOptions()
        self.traffic: dict[Address, Traffic] = {}
        """What the seams to each node carried that there is a :class:`Peer` of."""
        self._peers: Counter[Address] = Counter()

    @property
    def proves_identity(self) -> bool:
        """See :attr:`Transport.proves_identity`; it does with TLS."""
        return self._options.tls is not None

    def peer(self, address: Address, node_id: NodeId | None = None) -> Peer:
        """The node there; raises :class:`InvalidArgumentError` unless it is ``host:port``."""
        parse_address(address, "address")
        connection = Connection(address, node_id, self._options, self._max_bytes)
        traffic = self.traffic.setdefault(address, Traffic())
        self._peers[address] += 1
        closed = partial(self._closed, address)
        compression = self._options.compression
        return _GrpcPeer(address, connection, self._max_bytes, compression, traffic, closed)

    def _closed(self, address: Address) -> None:
        self._peers[address] -= 1
        if not self._peers[address]:
            del self._peers[address], self.traffic[address]


class _GrpcPeer(Peer):
    def __init__(
        self,
        address: Address,
        connection: Connection,
        max_bytes: int,
        compression: Compression,
        traffic: Traffic,
        closed: Callable[[], None],
    ) -> None:
        """``closed`` is called once, by :meth:`close`."""
        self._connection = connection
        self._traffic = traffic
        self._tell_closed = closed
        self._address = address
        self._max_bytes = max_bytes
        self._compression = compression

    @property
    def address(self) -> Address:
        return self._address

    async def capability(self, timeout_seconds: float, padding_bytes: int = 0) -> Capability:
        request = pb.GetCapabilityRequest(padding=bytes(padding_bytes)).SerializeToString()
        answer = await self._ask(
            "GetCapability", request, pb.GetCapabilityResponse, timeout_seconds
        )
        require(answer, "capability")
        return checked(lambda: capability_from_proto(answer.capability))

    async def health(self, timeout_seconds: float) -> HealthReport:
        answer = await self._ask("Health", b"", pb.HealthResponse, timeout_seconds)
        return checked(lambda: health_from_proto(answer))

    async def release(self, key: SessionKey, timeout_seconds: float) -> None:
        request = fitting(
            SessionKey,
            lambda: pb.ReleaseRequest(route_session_id=key.session_id, route_epoch=key.route_epoch),
        )
        await self._ask("Release", request, pb.ReleaseResponse, timeout_seconds)

    async def cancel(self, key: SessionKey, reason: str, timeout_seconds: float) -> None:
        request = fitting(
            SessionKey,
            lambda: pb.CancelRequest(
                route_session_id=key.session_id, route_epoch=key.route_epoch, reason=reason
            ),
        )
        await self._ask("Cancel", request, pb.CancelResponse, timeout_seconds)

    async def open_seam(self, timeout_seconds: float) -> ClientSeam:
        call: grpc.aio.StreamStreamCall[bytes, bytes]
        call = self._connection.channel().stream_stream(method_path("Session"))(wait_for_ready=True)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._connection.recognised(timeout_seconds)
                await call.initial_metadata()
            if call.done():
                await call.read()
        except TimeoutError as error:
            call.cancel()
            raise no_answer(self._address, timeout_seconds) from error
        except grpc.aio.AioRpcError as error:
            if status_from_trailer(_trailers(error)) is None:
                call.cancel()
                raise self._error(error, timeout_seconds) from error
            # A node answered, so the stream came about; that it ended at once is its news.
        except asyncio.CancelledError:
            call.cancel()
            self._raise_if_closed()
            raise
        return _GrpcClientSeam(
            call, self._address, self._max_bytes, self._compression, self._traffic
        )

    async def close(self) -> None:
        if not self._connection.closed:
            self._tell_closed()
        await self._connection.close()

    async def _ask(self, method: str, request: bytes, answer: type[M], timeout_seconds: float) -> M:
        call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        call = self._connection.channel().unary_unary(method_path(method))
        try:
            data = await call(request, timeout=timeout_seconds)
        except grpc.aio.AioRpcError as error:
            raise self._error(error, timeout_seconds) from error
        except asyncio.CancelledError:
            self._raise_if_closed()
            raise
        return parse(answer, data)

    def _raise_if_closed(self) -> None:
        """Closing the channel cancels calls in a way that looks as if their task were cancelled."""
        task = asyncio.current_task()
        if self._connection.closed and task is not None and not task.cancelling():
            raise unreachable(self._address, "the connection was closed here")

    def _error(self, error: grpc.aio.AioRpcError, timeout_seconds: float) -> MeshnetError:
        status = status_from_trailer(_trailers(error))
        if status is not None:
            return error_from(status)
        if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
            return no_answer(self._address, timeout_seconds)
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return unreachable(self._address, NO_NODE)
        details = error.details() or ""
        text = (
            f"{self._address}: {handshake_problem(details) or details} (gRPC {error.code().name})"
        )
        return error_from(StructuredStatus(CODE_FROM_GRPC[error.code()], message=text))


class _GrpcClientSeam(ClientSeam):
    def __init__(
        self,
        call: grpc.aio.StreamStreamCall[bytes, bytes],
        address: Address,
        max_bytes: int,
        compression: Compression,
        traffic: Traffic,
    ) -> None:
        self._traffic = traffic
        self._call = call
        self._address = address
        self._max_bytes = max_bytes
        self._compression = compression
        self._closed = False
        self._inbox: Inbox[SeamReply] = Inbox(max_bytes)
        self._outbox = Outbox(call.write, max_bytes)
        self._reader = asyncio.create_task(self._read())
        self._writer = asyncio.create_task(self._write())

    def send(self, request: SeamRequest) -> None:
        if self._inbox.ended:
            raise lost(self._address, "nothing can be sent any more")
        frame = encode_request(request, self._compression)
        if len(frame) > self._max_bytes:
            raise InvalidArgumentError(
                "frame",
                f"{len(frame)} bytes are over the bound of {self._max_bytes}; "
                "use smaller prefill chunks",
            )
        kind = type(request) if isinstance(request, MERGEABLE) else None
        self._traffic.sent(len(frame))
        self._outbox.put(frame, kind)

    async def receive(self) -> SeamReply:
        reply = await self._inbox.get()
        if reply is None:
            raise lost(self._address, "it ended")
        return reply

    async def consume(self, take: Callable[[SeamReply], None]) -> NoReturn:
        await self._inbox.drain(take)
        raise lost(self._address, "it ended")

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._inbox.discard()
        self._inbox.end(lost(self._address, "it was closed here"))
        self._outbox.close()
        await asyncio.wait({self._reader, self._writer}, timeout=CLOSE_SECONDS)
        self._call.cancel()
        await asyncio.wait({self._reader, self._writer}, timeout=CLOSE_SECONDS)

    async def _read(self) -> None:
        """Take replies until the stream ends; after :meth:`close`, so that it can end."""
        try:
            while isinstance(data := await self._call.read(), bytes):
                self._traffic.received(len(data))
                for reply in decode_replies(data):
                    self._inbox.put(reply, FRAME_WEIGHT)
                await self._inbox.room()
            self._inbox.end(lost(self._address, "the node closed it"))
        except MalformedFrameError as error:
            self._inbox.end(error)
        except grpc.aio.AioRpcError as error:
            self._inbox.end(self._error(error))
        finally:
            self._inbox.end(lost(self._address, "the connection was closed here"))
            self._call.cancel()
            self._outbox.close()

    async def _write(self) -> None:
        try:
            await self._outbox.run()
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            # The stream is broken or ended; the reader knows why and says it.
            return

    def _error(self, error: grpc.aio.AioRpcError) -> MeshnetError:
        try:
            status = status_from_trailer(_trailers(error))
        except MalformedFrameError as malformed:
            return malformed
        if status is not None:
            return error_from(status)
        if CODE_FROM_GRPC[error.code()] is StatusCode.MALFORMED_FRAME:
            return MalformedFrameError("frame", f"too large for its receiver: {error.details()}")
        if error.code() is grpc.StatusCode.UNIMPLEMENTED:
            return lost(self._address, NO_NODE)
        return lost(self._address, f"{error.details()} (gRPC {error.code().name})")


def _trailers(error: grpc.aio.AioRpcError) -> Iterable[tuple[str, str | bytes]]:
    return error.trailing_metadata() or ()
