"""Serves a node over gRPC: wire to domain, errors to status."""

from __future__ import annotations

import asyncio
import errno
import functools
import socket
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from meshnet.domain.errors import (
    InvalidArgumentError,
    MalformedFrameError,
    MeshnetError,
    ResourceExhaustedError,
    status_of,
)
from meshnet.domain.frames import SeamReply, SeamRequest
from meshnet.domain.ids import Address, NodeId, SessionKey
from meshnet.domain.nodes import FlowControl
from meshnet.transport.address import format_address, parse_address
from meshnet.transport.admission import Admission, caller
from meshnet.transport.base import ServerSeam, ShardService
from meshnet.transport.failures import reported
from meshnet.transport.methods import SERVICE_NAME
from meshnet.transport.options import GrpcOptions, max_frame_bytes
from meshnet.transport.queues import FRAME_WEIGHT, Inbox, Outbox
from meshnet.transport.standard import add_standard_services
from meshnet.transport.tls import server_credentials
from meshnet.transport.traffic import Traffic
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.convert import MERGEABLE, checked, decode_request, encode_reply, parse
from meshnet.wire.convert_nodes import capability_to_proto, health_to_proto
from meshnet.wire.convert_values import key_from_fields
from meshnet.wire.status import GRPC_FROM_CODE, cut_text, error_trailer

FLUSH_SECONDS = 2.0
"""How long replies that are still queued may take to leave when a stream has been served."""
GONE_SECONDS = 0.2
"""How long a service may take to end when its client is gone, and again when it is cancelled."""
UNREAD_FRAMES = 2
"""So many of the largest frames' bytes may wait for a client that doesn't read its replies."""
MAX_DETAILS_BYTES = 200
"""Of an error's text, where gRPC's own status carries it; the trailer has the whole."""

Context = grpc.aio.ServicerContext[Any, Any]
T = TypeVar("T")


class GrpcNodeServer:
    """A node's server: offers a :class:`ShardService` at an address."""

    def __init__(
        self,
        service: ShardService,
        listen: str,
        flow: FlowControl | None = None,
        options: GrpcOptions | None = None,
    ) -> None:
        """``listen`` is ``host:port``, port 0 takes a free one; ``flow``: the node's bounds."""
        self._service = service
        self._host, self._port = parse_address(listen, "listen")
        self._flow = flow or FlowControl()
        self._options = options or GrpcOptions()
        self._server: grpc.aio.Server | None = None
        self._seams: dict[asyncio.Future[None], _GrpcServerSeam] = {}
        self.traffic = Traffic()
        """What the seams of all openers carried."""

    async def start(self) -> Address:
        """Listen and serve; gives the address with the port that was taken.

        Raises :class:`InvalidArgumentError` when the address can't be had, with the reason.
        """
        tls = self._options.tls
        server = grpc.aio.server(
            interceptors=() if tls is None else (Admission(tls.removed),),
            options=self._options.server_arguments(max_frame_bytes(self._flow)),
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        add_standard_services(server, self._service)
        try:
            port = self._listen(server, format_address(self._host, self._port))
        except RuntimeError as error:
            problem = await _bind_problem(self._host, self._port)
            raise InvalidArgumentError("listen", problem or str(error)) from error
        await server.start()
        self._server = server
        return Address(format_address(self._host, port))

    def _listen(self, server: grpc.aio.Server, address: str) -> int:
        if self._options.tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, server_credentials(self._options.tls))

    async def stop(self, grace_seconds: float = 0.3) -> None:
        """End all streams and stop; idempotent.

        Services see the end of their streams at once, and have ``grace_seconds`` to return; what
        is still going on then is cancelled, and has twice :data:`GONE_SECONDS` more.
        """
        server, self._server = self._server, None
        if server is None:
            return
        stopping = asyncio.create_task(server.stop(grace_seconds))
        for seam in self._seams.values():
            seam.end()
        await stopping
        if self._seams:
            await asyncio.wait(set(self._seams), timeout=2 * GONE_SECONDS)

    def _handlers(self) -> grpc.GenericRpcHandler:
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "GetCapability": grpc.unary_unary_rpc_method_handler(self._get_capability),
                "Health": grpc.unary_unary_rpc_method_handler(self._health),
                "Session": grpc.stream_stream_rpc_method_handler(self._session),
                "Release": grpc.unary_unary_rpc_method_handler(self._release),
                "Cancel": grpc.unary_unary_rpc_method_handler(self._cancel),
            },
        )

    async def _get_capability(self, _data: bytes, context: Context) -> bytes:
        async def answer() -> Message:
            held = await self._service.capability()
            return pb.GetCapabilityResponse(capability=capability_to_proto(held))

        return await _answer(answer, context)

    async def _health(self, _data: bytes, context: Context) -> bytes:
        async def answer() -> Message:
            return health_to_proto(await self._service.health())

        return await _answer(answer, context)

    async def _release(self, data: bytes, context: Context) -> bytes:
        async def answer() -> Message:
            await self._service.release(_key(parse(pb.ReleaseRequest, data)))
            return pb.ReleaseResponse()

        return await _answer(answer, context)

    async def _cancel(self, data: bytes, context: Context) -> bytes:
        async def answer() -> Message:
            request = parse(pb.CancelRequest, data)
            await self._service.cancel(_key(request), request.reason)
            return pb.CancelResponse()

        return await _answer(answer, context)

    async def _session(self, _requests: object, context: Context) -> None:
        seam = _GrpcServerSeam(context, self._flow, self.traffic)
        served = asyncio.get_running_loop().create_future()
        self._seams[served] = seam
        try:
            await context.send_initial_metadata(())
            error = await self._serve(seam)
        finally:
            del self._seams[served]
            served.set_result(None)
        if error is not None:
            await _abort(context, error)

    async def _serve(self, seam: _GrpcServerSeam) -> MeshnetError | None:
        """Run the service on a stream until it is done; gives the error the stream ends with."""
        reader = asyncio.create_task(seam.read())
        writer = asyncio.create_task(seam.write())
        serving = asyncio.create_task(self._service.serve_seam(seam))
        try:
            await asyncio.wait({serving})
            seam.close()
            await asyncio.wait({writer}, timeout=FLUSH_SECONDS)
        except asyncio.CancelledError:
            # The client is gone or the server stops: the service sees the end of its stream.
            seam.end()
            seam.close()
            await asyncio.wait({serving}, timeout=GONE_SECONDS)
            raise
        finally:
            for task in (reader, writer, serving):
                task.cancel()
            await asyncio.wait({reader, writer, serving}, timeout=GONE_SECONDS)
        for task in (serving, reader, writer):
            failure = task.exception() if task.done() and not task.cancelled() else None
            if isinstance(failure, Exception):
                return reported(failure, "serving a stream")
        return seam.fault


class _GrpcServerSeam(ServerSeam):
    def __init__(self, context: Context, flow: FlowControl, traffic: Traffic) -> None:
        self._context = context
        self._traffic = traffic
        self._max_bytes = flow.max_chunk_bytes
        self._inbox: Inbox[SeamRequest] = Inbox(max_frame_bytes(flow))
        self._outbox = Outbox(context.write, max_frame_bytes(flow))
        self._max_unread = UNREAD_FRAMES * max_frame_bytes(flow)
        self._ended = False
        self.fault: MeshnetError | None = None

    @functools.cached_property
    def peer(self) -> NodeId | None:
        return caller(self._context)

    async def receive(self) -> SeamRequest | None:
        return await self._inbox.get()

    async def consume(self, take: Callable[[SeamRequest], None]) -> None:
        await self._inbox.drain(take)

    def send(self, reply: SeamReply) -> None:
        if not self._ended:
            kind = type(reply) if isinstance(reply, MERGEABLE) else None
            frame = encode_reply(reply)
            self._traffic.sent(len(frame))
            self._outbox.put(frame, kind)
            if self._outbox.weight > self._max_unread:
                self._give_up()

    def _give_up(self) -> None:
        """End the stream of a client that sends but doesn't read."""
        self.fault = ResourceExhaustedError(
            f"replies of {self._outbox.weight} bytes were waiting to be read, and "
            f"{self._max_unread} may; read the stream, or grant fewer tokens"
        )
        self._outbox.discard()
        self.close()
        self._inbox.discard()
        self._inbox.end(self.fault)

    def close(self) -> None:
        """Send what is queued, and nothing more."""
        self._ended = True
        self._outbox.close()

    def end(self) -> None:
        """Let the service see the end of its stream; it may still say something."""
        self._inbox.discard()
        self._inbox.end()

    async def read(self) -> None:
        """Take requests until the client has no more, is gone, or sends what isn't one."""
        try:
            while isinstance(data := await self._context.read(), bytes):
                self._traffic.received(len(data))
                self._inbox.put(decode_request(data, self._max_bytes), len(data) + FRAME_WEIGHT)
                await self._inbox.room()
        except MalformedFrameError as error:
            self.fault = error
            self._inbox.end(error)
        except grpc.aio.BaseError:
            # The stream is over; the handler learns it by being cancelled.
            return
        finally:
            self._inbox.end()

    async def write(self) -> None:
        """Send replies until closed or the client is gone."""
        try:
            await self._outbox.run()
        except grpc.aio.BaseError:
            # The stream is over; the handler learns it by being cancelled.
            return


async def _answer(answer: Callable[[], Awaitable[Message]], context: Context) -> bytes:
    try:
        return (await answer()).SerializeToString()
    except Exception as error:  # noqa: BLE001 - reported() logs what isn't a MeshnetError
        failure = reported(error, "answering")
    await _abort(context, failure)
    raise failure


async def _abort(context: Context, error: MeshnetError) -> None:
    status = status_of(error)
    await context.abort(
        GRPC_FROM_CODE[status.code],
        cut_text(status.message, MAX_DETAILS_BYTES),
        error_trailer(status),
    )


def _key(request: pb.ReleaseRequest | pb.CancelRequest) -> SessionKey:
    return checked(lambda: key_from_fields(request.route_session_id, request.route_epoch))


async def _bind_problem(host: str, port: int) -> str | None:
    """Why an address can't be listened at, which gRPC itself doesn't say; None if it can now."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return f"port {port} of {host} is in use by another program; choose another port"
        if error.errno == errno.EACCES:
            return f"port {port} may not be used by this user; choose one above 1023"
        return f"{host}:{port} can't be listened at: {error.strerror or error}"
    return None
