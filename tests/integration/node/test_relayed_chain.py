"""A chain of worker processes, some of which are reached over the relay alone."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshnet.domain.errors import NodeError
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.engine.base import EngineLimits
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.node.supervisor import NodeProcess
from meshnet.session.chain import require_route
from meshnet.session.generate import ChainModel
from meshnet.transport.certificates import Role, node_id_of
from meshnet.transport.channel import ChannelPool
from meshnet.transport.identity_folder import IdentityFiles, IdentityFolder
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from tests.support.identities import AUTHORITY, member
from tests.support.mesh import LAYERS, PENALISED, Setup, alone, ask, prompt_of
from tests.support.relays import RunningRelay, relay_running

pytestmark = pytest.mark.slow

WORKER = (sys.executable, "-m", "meshnet.cli.worker")
CUTS = ((0, 2), (2, 4), (4, LAYERS))
PROMPT, TOKENS = prompt_of(30), 20


@dataclass
class Machine:
    """A worker, and who it is."""

    node_id: NodeId
    files: IdentityFiles
    layers: LayerRange
    worker: NodeProcess
    address: Address | None = None

    @staticmethod
    def joined(path: Path, start: int, end: int) -> Machine:
        folder = IdentityFolder(path)
        public = folder.public_key()
        node_id = node_id_of(public)
        made = AUTHORITY.issue(public, node_id, role=Role.NODE, now=time.time())
        folder.keep(made, AUTHORITY.certificate_pem)
        config = NodeConfig(
            node_id,
            start,
            end,
            LAYERS,
            FixtureEngineConfig(),
            limits=EngineLimits(4096, 4),
            flow=FlowControl(max_sessions=4),
            chunk_tokens=Setup().chunk_tokens,
            identity=folder.files,
        )
        worker = NodeProcess(WORKER, config)
        return Machine(node_id, folder.files, LayerRange(start, end), worker)

    def hop(self, relay: Address | None) -> Hop:
        return Hop(self.node_id, relay or self.served, self.layers)

    @property
    def served(self) -> Address:
        assert self.address is not None
        return self.address


@dataclass
class Machines:
    """All of a chain's, and the relay."""

    each: list[Machine]
    running: RunningRelay

    def carried(self) -> list[int]:
        """Bytes that went over the relay, by machine."""
        by_node = self.running.relay.carried_bytes
        return [by_node.get(it.node_id, 0) for it in self.each]

    @asynccontextmanager
    async def model(self, relayed: set[int]) -> AsyncIterator[ChainModel]:
        """The model over a chain in which these machines wait at the relay, the head being 0."""
        async with AsyncExitStack() as stack:
            for index in relayed:
                it = self.each[index]
                await stack.enter_async_context(self.running.node(it.served, it.files.load()))
            gateway = GrpcOptions(tls=member(AUTHORITY, Role.GATEWAY))
            channels = ChannelPool(GrpcTransport(options=gateway))
            stack.push_async_callback(channels.close)
            hops = [
                it.hop(self.running.address if index in relayed else None)
                for index, it in enumerate(self.each)
            ]
            chain = await require_route(channels, hops)
            yield ChainModel("fixture", ByteTokenizer(), chain, channels)


@pytest.fixture
async def machines(tmp_path: Path) -> AsyncIterator[Machines]:
    each = [Machine.joined(tmp_path / str(cut[0]), *cut) for cut in CUTS]
    addresses = await asyncio.gather(*(it.worker.start() for it in each))
    for it, address in zip(each, addresses, strict=True):
        it.address = address
    try:
        async with relay_running(*(it.node_id for it in each)) as running:
            yield Machines(each, running)
    finally:
        await asyncio.gather(*(it.worker.stop() for it in each))


async def test_the_same_tokens_come_wherever_the_relay_is(machines: Machines) -> None:
    for relayed in ({1}, {0}, {2}, {0, 1, 2}):
        before = machines.carried()
        async with machines.model(relayed) as model:
            assert (await ask(model, PROMPT, TOKENS)).tokens == alone(PROMPT, TOKENS)
            drawn = await ask(model, PROMPT, TOKENS, PENALISED)
            assert drawn.tokens == alone(PROMPT, TOKENS, PENALISED)
        used = [was < now for was, now in zip(before, machines.carried(), strict=True)]
        assert used == [index in relayed for index in range(len(CUTS))]


async def test_a_generation_ends_with_an_error_when_a_relayed_worker_dies(
    machines: Machines,
) -> None:
    async with machines.model({1}) as model:
        await ask(model, PROMPT, TOKENS)
        await machines.each[1].worker.stop()
        with pytest.raises(NodeError):
            await ask(model, PROMPT, TOKENS)
