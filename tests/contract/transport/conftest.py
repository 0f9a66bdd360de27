"""Servers for the tests of the gRPC transport."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from meshnet.domain.ids import Address
from meshnet.domain.nodes import FlowControl
from meshnet.transport.base import ShardService
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_server import GrpcNodeServer
from tests.support.networks import ANY_PORT, Serve


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    """Starts servers, which are stopped after the test."""
    servers: list[GrpcNodeServer] = []

    async def start(
        service: ShardService, flow: FlowControl | None = None, options: GrpcOptions | None = None
    ) -> Address:
        servers.append(GrpcNodeServer(service, ANY_PORT, flow, options))
        return await servers[-1].start()

    yield start
    for server in servers:
        await server.stop()
