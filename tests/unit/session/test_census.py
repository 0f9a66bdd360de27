"""Each node is asked by itself: what one says or doesn't say hides none of the others."""

from meshnet.domain.errors import NodeNotReadyError
from meshnet.domain.ids import Address
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import Hop
from meshnet.session.census import take_census
from meshnet.session.chain import Chain
from meshnet.transport.base import ShardService
from meshnet.transport.channel import ChannelPool
from meshnet.transport.loopback import LoopbackNetwork
from tests.support.frames import CAPABILITY
from tests.support.services import FailingService, ScriptedService, StubbornService

SERVICES: tuple[ShardService | None, ...] = (
    ScriptedService(),
    FailingService(NodeNotReadyError("it loads")),
    StubbornService(),
    None,
)


async def test_each_node_answers_for_itself() -> None:
    network = LoopbackNetwork()
    hops = []
    for number, service in enumerate(SERVICES):
        address = Address(f"node-{number}")
        layers = LayerRange(number, number + 1)
        hops.append(Hop(CAPABILITY.node_id, address, layers))
        if service is not None:
            network.register(address, service)
    chain = Chain(tuple(hops), CAPABILITY.fingerprint, 100, "fixture")
    channels = ChannelPool(network.transport())
    census = await take_census(channels, chain, 0.05)
    await channels.close()

    good, failing, stubborn, missing = census.nodes
    assert census.chain is chain
    assert good.health is not None
    assert good.health.state is LifecycleState.READY
    assert good.capability == CAPABILITY
    assert good.round_trip_seconds is not None
    assert good.problem == ""
    assert failing.problem == "it loads"
    assert "0.05 s" in stubborn.problem
    assert missing.problem
    for silent in (failing, stubborn, missing):
        assert (silent.capability, silent.health, silent.round_trip_seconds) == (None, None, None)
