"""The services that gRPC tools expect of any server: health (``grpc.health.v1``) and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection

from meshnet.domain.errors import MeshnetError
from meshnet.domain.lifecycle import LifecycleState
from meshnet.transport.base import ShardService
from meshnet.transport.methods import SERVICE_NAME

HEALTH_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
WATCH_SECONDS = 1.0
"""How often a watched health is looked at."""

Context = grpc.aio.ServicerContext[Any, Any]
_Status = health_pb2.HealthCheckResponse.ServingStatus


def add_standard_services(server: grpc.aio.Server, service: ShardService) -> None:
    """Offer health, which is the node's own, and reflection on ``server``."""
    server.add_generic_rpc_handlers((_health_handlers(service),))
    reflection.enable_server_reflection(
        (SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME), server
    )


def _health_handlers(service: ShardService) -> grpc.GenericRpcHandler:
    async def check(
        request: health_pb2.HealthCheckRequest, context: Context
    ) -> health_pb2.HealthCheckResponse:
        status = await _status(service, request.service)
        if status == _Status.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r} here")
        return health_pb2.HealthCheckResponse(status=status)

    async def watch(
        request: health_pb2.HealthCheckRequest, _context: Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        told = None
        while True:
            status = await _status(service, request.service)
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(WATCH_SECONDS)

    codec = {
        "request_deserializer": health_pb2.HealthCheckRequest.FromString,
        "response_serializer": health_pb2.HealthCheckResponse.SerializeToString,
    }
    return grpc.method_handlers_generic_handler(
        HEALTH_NAME,
        {
            "Check": grpc.unary_unary_rpc_method_handler(check, **codec),
            "Watch": grpc.unary_stream_rpc_method_handler(watch, **codec),
        },
    )


async def _status(service: ShardService, name: str) -> Any:
    """The empty name is the server as a whole, which is the node."""
    if name not in ("", SERVICE_NAME):
        return _Status.SERVICE_UNKNOWN
    try:
        report = await service.health()
    except MeshnetError:
        return _Status.NOT_SERVING
    return _Status.SERVING if report.state is LifecycleState.READY else _Status.NOT_SERVING
