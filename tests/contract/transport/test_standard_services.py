"""What gRPC tools ask of any server: health as the node says it, and the schema by reflection."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2

from meshnet.domain.errors import NodeNotReadyError
from meshnet.domain.ids import Address
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import HealthReport
from meshnet.transport.methods import SERVICE_NAME
from tests.support.networks import Serve
from tests.support.services import FailingService, ScriptedService

Status = health_pb2.HealthCheckResponse.ServingStatus
CHECK = "/grpc.health.v1.Health/Check"
WATCH = "/grpc.health.v1.Health/Watch"
REFLECT = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Changing(ScriptedService):
    state = LifecycleState.READY

    async def health(self) -> HealthReport:
        return HealthReport(self.state)


async def check(address: Address, name: str) -> int:
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            CHECK,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )
        answer: Any = await call(health_pb2.HealthCheckRequest(service=name), timeout=5)
        return int(answer.status)


@pytest.mark.parametrize("name", ["", SERVICE_NAME])
async def test_a_ready_node_is_serving(serve: Serve, name: str) -> None:
    assert await check(await serve(ScriptedService()), name) == Status.SERVING


async def test_a_node_that_isnt_ready_or_fails_is_not_serving(serve: Serve) -> None:
    draining = Changing()
    draining.state = LifecycleState.DRAINING
    assert await check(await serve(draining), "") == Status.NOT_SERVING
    failing = FailingService(NodeNotReadyError("still loading"))
    assert await check(await serve(failing), "") == Status.NOT_SERVING


async def test_an_unknown_service_is_not_found(serve: Serve) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await check(await serve(ScriptedService()), "other.Service")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watcher_hears_of_a_change(serve: Serve) -> None:
    service = Changing()
    async with grpc.aio.insecure_channel(await serve(service)) as channel:
        call: Any = channel.unary_stream(
            WATCH,
            request_serializer=health_pb2.HealthCheckRequest.SerializeToString,
            response_deserializer=health_pb2.HealthCheckResponse.FromString,
        )(health_pb2.HealthCheckRequest(), timeout=10)
        assert (await call.read()).status == Status.SERVING
        service.state = LifecycleState.FAILED
        assert (await call.read()).status == Status.NOT_SERVING
        call.cancel()


async def test_reflection_names_the_services_and_gives_the_schema(serve: Serve) -> None:
    async with grpc.aio.insecure_channel(await serve(ScriptedService())) as channel:
        call: Any = channel.stream_stream(
            REFLECT,
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )(timeout=5)
        await call.write(reflection_pb2.ServerReflectionRequest(list_services=""))
        names = {service.name for service in (await call.read()).list_services_response.service}
        assert {SERVICE_NAME, "grpc.health.v1.Health"} <= names
        request = reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE_NAME)
        await call.write(request)
        files = (await call.read()).file_descriptor_response.file_descriptor_proto
        assert any(b"TensorFragment" in file for file in files)
        call.cancel()
