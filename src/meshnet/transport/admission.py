"""Whom a node's server answers, once TLS has proved who asks."""

from __future__ import annotations

import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError, status_of
from meshnet.domain.ids import NodeId
from meshnet.transport.certificates import PeerIdentity, Role, peer_named_by
from meshnet.wire.status import GRPC_FROM_CODE, error_trailer

LOGGER = logging.getLogger(__name__)
ADMITTED = frozenset({Role.NODE, Role.GATEWAY})
"""Who has business with a node; the tracker is called by nodes, and calls none."""

Context = grpc.aio.ServicerContext[Any, Any]
_Continuation = Callable[
    [grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]
]


class RemovedNodes:
    """The nodes that a file lists, read again when it has changed; None or no file: none.

    A file that can't be read leaves the list as it was.
    """

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._seen: tuple[int, int] | None = None
        self._nodes: frozenset[str] = frozenset()

    def __contains__(self, node_id: object) -> bool:
        if self._file is not None:
            self._look(self._file)
        return node_id in self._nodes

    def _look(self, file: Path) -> None:
        try:
            found = file.stat()
            # It is replaced as a whole, so that another content is another file.
            seen = (found.st_ino, found.st_mtime_ns)
            if seen != self._seen:
                self._nodes = frozenset(file.read_text().split())
                self._seen = seen
        except FileNotFoundError:
            self._seen, self._nodes = None, frozenset()
        except (OSError, ValueError) as error:
            LOGGER.warning("%s can't be read, so the list of before is kept: %s", file, error)


class Admission(grpc.aio.ServerInterceptor):
    """Refuses every call of a peer whose certificate has none of the :data:`ADMITTED` roles.

    Those of nodes that were removed are refused too. For a server whose credentials let in no
    connection without a certificate of the cluster.
    """

    def __init__(self, removed: Path | None) -> None:
        """``removed``: what :class:`RemovedNodes` reads."""
        self._removed = RemovedNodes(removed)

    async def intercept_service(
        self, continuation: _Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """The handler of a call, behind the question who calls."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        streams = (handler.request_streaming, handler.response_streaming)
        behaviour, make = {
            (False, False): (handler.unary_unary, grpc.unary_unary_rpc_method_handler),
            (False, True): (handler.unary_stream, grpc.unary_stream_rpc_method_handler),
            (True, False): (handler.stream_unary, grpc.stream_unary_rpc_method_handler),
            (True, True): (handler.stream_stream, grpc.stream_stream_rpc_method_handler),
        }[streams]
        guarded = _guarded_stream if inspect.isasyncgenfunction(behaviour) else _guarded
        guard = guarded(behaviour, self._removed)
        return make(guard, handler.request_deserializer, handler.response_serializer)


def admitted(context: Context, removed: RemovedNodes) -> PeerIdentity:
    """Who calls; raises :class:`UnauthenticatedError` if it is nobody that a node answers."""
    shown = context.auth_context().get("x509_pem_cert", ())
    try:
        peer = peer_named_by(x509.load_pem_x509_certificate(next(iter(shown))))
    except (StopIteration, ValueError, InvalidArgumentError) as error:
        raise UnauthenticatedError(f"no certificate of a node or gateway came: {error}") from error
    if peer.role not in ADMITTED:
        raise UnauthenticatedError(f"{peer} may not call a node; a node or a gateway may")
    if peer.role is Role.NODE and peer.node_id in removed:
        raise UnauthenticatedError(f"{peer} was removed from the cluster")
    return peer


def caller(context: Context) -> NodeId | None:
    """Whose certificate a call's connection showed; None without one that names a member."""
    shown = context.auth_context().get("x509_pem_cert", ())
    try:
        return peer_named_by(x509.load_pem_x509_certificate(next(iter(shown)))).node_id
    except (StopIteration, ValueError, InvalidArgumentError):
        return None


def _guarded(behaviour: Any, removed: RemovedNodes) -> Any:
    async def call(request: Any, context: Context) -> Any:
        await _require_admitted(context, removed)
        return await behaviour(request, context)

    return call


def _guarded_stream(behaviour: Any, removed: RemovedNodes) -> Any:
    async def call(request: Any, context: Context) -> AsyncIterator[Any]:
        await _require_admitted(context, removed)
        async for answer in behaviour(request, context):
            yield answer

    return call


async def _require_admitted(context: Context, removed: RemovedNodes) -> None:
    try:
        admitted(context, removed)
    except UnauthenticatedError as error:
        status = status_of(error)
        await context.abort(GRPC_FROM_CODE[status.code], status.message, error_trailer(status))
