"""What loopback adds to the contract: no copies, and nodes that can be lost at will."""

from __future__ import annotations

import asyncio

import pytest

from meshnet.domain.errors import InvalidArgumentError, NodeLostError, NodeUnreachableError
from meshnet.domain.frames import Release
from meshnet.domain.ids import Address
from meshnet.transport.loopback import LoopbackNetwork
from tests.support.frames import prefill_chunk
from tests.support.services import ScriptedService

TIMEOUT = 1.0
A, B, C = Address("a"), Address("b"), Address("c")


async def test_a_frame_is_handed_over_as_it_is() -> None:
    network, service = LoopbackNetwork(), ScriptedService()
    network.register(A, service)
    seam = await network.transport().peer(A).open_seam(TIMEOUT)
    chunk = prefill_chunk()
    seam.send(chunk)
    await seam.close()
    assert service.received[0] is chunk


async def test_losing_a_node_breaks_the_seams_it_opened_and_no_others() -> None:
    network = LoopbackNetwork()
    services = {address: ScriptedService() for address in (A, B, C)}
    for address, service in services.items():
        network.register(address, service)
    from_a = await network.transport(A).peer(B).open_seam(TIMEOUT)
    from_c = await network.transport(C).peer(A).open_seam(TIMEOUT)
    untouched = await network.transport(C).peer(B).open_seam(TIMEOUT)
    await asyncio.sleep(0)
    from_a.send(Release(1))
    network.drop(A)
    for seam in (from_a, from_c):
        with pytest.raises(NodeLostError):
            await asyncio.wait_for(seam.receive(), TIMEOUT)
    await asyncio.wait_for(services[B].saw_end.wait(), TIMEOUT)
    assert services[B].received == [], "what was under way is lost with its sender"
    await asyncio.wait_for(services[A].idle.wait(), TIMEOUT)
    assert services[B].serving == 1
    untouched.send(Release(2))
    await untouched.close()
    assert services[B].received == [Release(2)]
    for seam in (from_a, from_c):
        await seam.close()


async def test_another_node_can_take_a_lost_ones_place() -> None:
    network = LoopbackNetwork()
    network.register(A, ScriptedService())
    peer = network.transport().peer(A)
    network.drop(A)
    network.drop(A)
    with pytest.raises(NodeUnreachableError):
        await peer.open_seam(TIMEOUT)
    network.register(A, ScriptedService())
    assert (await peer.health(TIMEOUT)).steps_done == 9


def test_an_address_can_be_taken_once() -> None:
    network = LoopbackNetwork()
    network.register(A, ScriptedService())
    with pytest.raises(InvalidArgumentError, match="address: a is taken"):
        network.register(A, ScriptedService())
