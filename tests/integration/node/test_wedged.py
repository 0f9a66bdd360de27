"""A stream whose receiver takes no more chunks is still a stream that a cancel gets through."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from meshnet.domain.frames import (
    Cancel,
    OpenSession,
    PrefillChunk,
    SeamRequest,
    SessionOpened,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import Address, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Capability, FlowControl, HealthReport, Hop
from meshnet.transport.base import ServerSeam, ShardService
from meshnet.transport.seam_server import GrpcNodeServer
from tests.support.mesh import GREEDY, LAYERS, Mesh, Setup, prompt_of, start, until

CREDITS = 2
SETUP = FlowControl(chunk_credits=CREDITS)


class Wedged(ShardService):
    """Accepts sessions and never acknowledges a chunk."""

    def __init__(self) -> None:
        self.seen: list[SeamRequest] = []

    def saw(self, kind: type) -> int:
        return sum(isinstance(frame, kind) for frame in self.seen)

    async def serve_seam(self, seam: ServerSeam) -> None:
        while (request := await seam.receive()) is not None:
            self.seen.append(request)
            if isinstance(request, OpenSession):
                seam.send(SessionOpened(request.handle, SETUP))

    async def capability(self) -> Capability:
        raise NotImplementedError

    async def health(self) -> HealthReport:
        raise NotImplementedError

    async def release(self, key: SessionKey) -> None:
        raise NotImplementedError

    async def cancel(self, key: SessionKey, reason: str) -> None:
        raise NotImplementedError


@asynccontextmanager
async def head_before(wedged: Wedged, *, grpc: bool) -> AsyncIterator[tuple[Mesh, Hop]]:
    """A head whose next node is wedged."""
    chain = Mesh(Setup(flow=SETUP, grpc=grpc))
    node = await chain.add(LayerRange(0, 3))
    server = GrpcNodeServer(wedged, "127.0.0.1:0", SETUP) if grpc else None
    address = await server.start() if server is not None else Address("wedged")
    if server is None:
        chain.network.register(address, wedged)
    try:
        yield chain, Hop(node.hop.node_id, address, LayerRange(3, LAYERS))
    finally:
        await chain.close()
        if server is not None:
            await server.stop(0.1)


@pytest.mark.parametrize("grpc", [False, True], ids=["loopback", "grpc"])
@pytest.mark.parametrize("unary", [False, True], ids=["in-band", "unary"])
async def test_a_cancel_passes_a_sender_that_waits_for_credits(grpc, unary):
    wedged = Wedged()
    async with head_before(wedged, grpc=grpc) as (chain, behind):
        terms = chain.terms(hops=(chain.head.hop, behind))
        channel = await chain.channel()
        _, handle = start(channel, terms, GenerationSpec(prompt_of(200), GREEDY, 10))
        await until(lambda: wedged.saw(PrefillChunk) == CREDITS)
        await asyncio.sleep(0.05)
        # The sender keeps the next chunk to itself rather than queueing it.
        assert wedged.saw(PrefillChunk) == CREDITS
        if unary:
            peer = chain.channels.peer(chain.head.hop.address)
            await peer.cancel(terms.key, "enough", 2.0)
        else:
            channel.send(Cancel(handle, "enough"))
        await until(lambda: wedged.saw(Cancel) == 1, 0.5)
        await chain.idle(0.5)
