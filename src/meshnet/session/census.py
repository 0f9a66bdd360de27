"""What each node of a chain says of itself now, one by one: a dead one hides none of the others."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from meshnet.domain.errors import MeshnetError
from meshnet.domain.nodes import Capability, HealthReport, Hop
from meshnet.session.chain import Chain
from meshnet.transport.channel import ChannelPool


@dataclass(frozen=True, slots=True)
class NodeAnswer:
    """One node's answer. ``capability`` and ``health`` are None if it gave none."""

    hop: Hop
    capability: Capability | None = None
    health: HealthReport | None = None
    round_trip_seconds: float | None = None
    """Of the question what it can do, which no engine has a part in."""
    problem: str = ""
    """Why there is no answer."""


@dataclass(frozen=True, slots=True)
class Census:
    """A chain and its nodes' answers, head first."""

    chain: Chain
    nodes: tuple[NodeAnswer, ...]


async def take_census(channels: ChannelPool, chain: Chain, timeout_seconds: float) -> Census:
    """Ask every node of a chain at once; none has longer than ``timeout_seconds``."""
    asked = (_ask(channels, hop, timeout_seconds) for hop in chain.hops)
    return Census(chain, tuple(await asyncio.gather(*asked)))


async def _ask(channels: ChannelPool, hop: Hop, timeout_seconds: float) -> NodeAnswer:
    try:
        async with asyncio.timeout(timeout_seconds):
            peer = channels.peer(hop.address, hop.node_id)
            began = time.perf_counter()
            capability = await peer.capability(timeout_seconds)
            round_trip = time.perf_counter() - began
            health = await peer.health(timeout_seconds)
    except TimeoutError:
        return NodeAnswer(hop, problem=f"it didn't answer within {timeout_seconds:g} s")
    except MeshnetError as error:
        return NodeAnswer(hop, problem=error.message)
    return NodeAnswer(hop, capability, health, round_trip)
