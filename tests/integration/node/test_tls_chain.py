"""A chain of worker processes that prove who they are, and those who can't."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from meshnet.domain.errors import InvalidArgumentError, NodeLostError, NodeUnreachableError
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.engine.base import EngineLimits
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.node.supervisor import NodeProcess
from meshnet.session.chain import find_chain
from meshnet.session.generate import ChainModel
from meshnet.transport.certificates import Authority, Role, node_id_of
from meshnet.transport.channel import ChannelPool
from meshnet.transport.identity_folder import IdentityFiles, IdentityFolder
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.tls import Identity
from tests.support.identities import AUTHORITY, member
from tests.support.mesh import LAYERS, Setup, alone, ask, prompt_of

WORKER = (sys.executable, "-m", "meshnet.cli.worker")
CUTS = ((0, 2), (2, 4), (4, LAYERS))


@dataclass
class Machine:
    """A node's place on its disk."""

    node_id: NodeId
    files: IdentityFiles

    @staticmethod
    def joined(path: Path, role: Role = Role.NODE, days: float = 30, age: float = 0) -> Machine:
        folder = IdentityFolder(path)
        public = folder.public_key()
        node_id = node_id_of(public)
        made = AUTHORITY.issue(public, node_id, role=role, days=days, now=time.time() - age)
        folder.keep(made, AUTHORITY.certificate_pem)
        return Machine(node_id, folder.files)

    def config(self, start: int, end: int, node_id: NodeId | None = None) -> NodeConfig:
        return NodeConfig(
            node_id or self.node_id,
            start,
            end,
            LAYERS,
            FixtureEngineConfig(),
            limits=EngineLimits(4096, 4),
            flow=FlowControl(max_sessions=4),
            chunk_tokens=Setup().chunk_tokens,
            identity=self.files,
        )


@asynccontextmanager
async def pool_of(identity: Identity | None) -> AsyncIterator[ChannelPool]:
    pool = ChannelPool(GrpcTransport(options=GrpcOptions(tls=identity)))
    try:
        yield pool
    finally:
        await pool.close()


async def test_a_chain_of_certified_workers_computes_for_a_certified_gateway_only(
    tmp_path: Path,
) -> None:
    machines = [Machine.joined(tmp_path / str(number)) for number in range(3)]
    workers = [
        NodeProcess(WORKER, machine.config(*cut))
        for machine, cut in zip(machines, CUTS, strict=True)
    ]
    addresses = await asyncio.gather(*(worker.start() for worker in workers))
    try:
        async with pool_of(member(role=Role.GATEWAY)) as channels:
            chain = await find_chain(channels, addresses)
            assert [hop.node_id for hop in chain.hops] == [each.node_id for each in machines]
            model = ChainModel("fixture", ByteTokenizer(), chain, channels)
            assert (await ask(model, prompt_of(30), 20)).tokens == alone(prompt_of(30), 20)
        for stranger in (None, member(Authority.create("another"), Role.GATEWAY)):
            async with pool_of(stranger) as channels:
                for address in addresses:
                    await refused(channels, address)
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


async def refused(channels: ChannelPool, address: Address) -> None:
    with pytest.raises(NodeUnreachableError):
        await channels.peer(address).capability(2.0)
    with pytest.raises(NodeUnreachableError):
        await channels.channel(address, 0.5)


async def test_a_generation_does_not_run_over_a_node_that_another_stands_for(
    tmp_path: Path,
) -> None:
    """The head must find the node that the chain names, not one that has taken its address."""
    head, tail = Machine.joined(tmp_path / "head"), Machine.joined(tmp_path / "tail")
    workers = [
        NodeProcess(WORKER, head.config(0, 3)),
        NodeProcess(WORKER, tail.config(3, LAYERS)),
    ]
    addresses = await asyncio.gather(*(worker.start() for worker in workers))
    try:
        async with pool_of(member(role=Role.GATEWAY)) as channels:
            chain = await find_chain(channels, addresses)
            model = ChainModel("fixture", ByteTokenizer(), chain, channels)
            await workers[1].stop()
            other = Machine.joined(tmp_path / "other").config(3, LAYERS)
            workers[1] = NodeProcess(WORKER, _at(other, addresses[1]))
            await workers[1].start()
            with pytest.raises((NodeUnreachableError, NodeLostError), match=tail.node_id):
                await ask(model, prompt_of(9), 5)
    finally:
        await asyncio.gather(*(worker.stop() for worker in workers))


def _at(config: NodeConfig, address: Address) -> NodeConfig:
    return replace(config, listen=address)


@pytest.mark.parametrize(
    ("role", "age", "node_id", "words"),
    [
        (Role.GATEWAY, 0, None, "identity: the certificate is that of gateway"),
        (Role.NODE, 0, NodeId("somebody"), "not of node somebody"),
        (Role.NODE, 3 * 86400, None, "certificate: it expired"),
    ],
)
async def test_a_worker_whose_identity_is_not_its_own_does_not_serve(
    tmp_path: Path, role: Role, age: float, node_id: NodeId | None, words: str
) -> None:
    machine = Machine.joined(tmp_path / "node", role, days=1, age=age)
    worker = NodeProcess(WORKER, machine.config(0, LAYERS, node_id))
    with pytest.raises(InvalidArgumentError, match=words):
        await worker.start()
