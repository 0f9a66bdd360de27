"""Which nodes make up a chain, found by asking them, and whether they may work together."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from meshnet.domain.errors import InvalidArgumentError, LayerRangeError, MeshnetError
from meshnet.domain.ids import Address
from meshnet.domain.layers import require_chain
from meshnet.domain.nodes import Capability, HealthReport, Hop
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.tensors import DType
from meshnet.transport.channel import ChannelPool

ASK_SECONDS = 10.0
HEALTH_SECONDS = 15.0
"""Longer than a node's probe step may take."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Chain:
    """A verified chain: its hops in order, what they compute, and the context all of them hold."""

    hops: tuple[Hop, ...]
    fingerprint: Fingerprint
    context_length: int
    architecture: str
    dtypes: tuple[DType, ...] = (DType.FLOAT32,)
    """What every node takes and gives at a seam."""
    boundary_dtype: DType = DType.FLOAT32
    """What the seams carry; the fingerprint is that of the recipe with it."""

    @property
    def head(self) -> Hop:
        """Where generations start."""
        return self.hops[0]

    def with_boundary(self, dtype: DType) -> Chain:
        """The same chain, whose seams carry ``dtype`` instead of float32.

        Raises ``InvalidArgumentError`` if a node doesn't take that.
        """
        if self.boundary_dtype is not DType.FLOAT32:
            raise InvalidArgumentError(
                "boundary", f"the chain's seams carry {self.boundary_dtype.value} already"
            )
        if dtype not in self.dtypes:
            known = ", ".join(each.value for each in self.dtypes)
            raise InvalidArgumentError(
                "boundary", f"the chain's nodes all take {known}, but not {dtype.value}"
            )
        fingerprint = self.fingerprint.with_boundary(dtype)
        return replace(self, fingerprint=fingerprint, boundary_dtype=dtype)


def assemble_chain(found: Sequence[tuple[Address, Capability]]) -> Chain:
    """Check that nodes, given in order, form a chain.

    Raises ``LayerRangeError`` for a gap or an overlap, ``FingerprintMismatchError`` for nodes that
    would compute different numbers.
    """
    if not found:
        raise InvalidArgumentError("chain", "it names no node")
    first = found[0][1]
    for address, capability in found[1:]:
        first.fingerprint.require_equal(capability.fingerprint, f"{capability.node_id} ({address})")
    require_chain([capability.layers for _, capability in found], first.total_layers)
    return Chain(
        tuple(Hop(capability.node_id, address, capability.layers) for address, capability in found),
        first.fingerprint,
        min(capability.context_length for _, capability in found),
        first.architecture,
        tuple(
            dtype
            for dtype in first.dtypes
            if all(dtype in capability.dtypes for _, capability in found)
        ),
    )


async def find_chain(channels: ChannelPool, addresses: Sequence[Address]) -> Chain:
    """Ask the nodes what they hold. A single address is followed along its nodes' ``next``.

    Raises ``NodeUnreachableError`` and what :func:`assemble_chain` raises.
    """
    if len(addresses) == 1:
        return assemble_chain(await _follow(channels, addresses[0]))
    capabilities = await _all(
        channels.peer(address).capability(ASK_SECONDS) for address in addresses
    )
    return assemble_chain(list(zip(addresses, capabilities, strict=True)))


async def ask_health(
    channels: ChannelPool, chain: Chain
) -> tuple[tuple[Capability, HealthReport], ...]:
    """What each node of the chain says of itself now."""
    return tuple(await _all(_ask(channels, hop.address) for hop in chain.hops))


async def _ask(channels: ChannelPool, address: Address) -> tuple[Capability, HealthReport]:
    peer = channels.peer(address)
    # One after the other: a node that isn't there is known at once.
    capability = await peer.capability(ASK_SECONDS)
    return capability, await peer.health(HEALTH_SECONDS)


async def _all(asked: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """All answers; the first error ends the other questions and is raised."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(question) for question in asked]
    except ExceptionGroup as errors:
        first = errors.exceptions[0]
        if not isinstance(first, MeshnetError):
            raise
        raise first from None
    return [task.result() for task in tasks]


async def _follow(channels: ChannelPool, head: Address) -> list[tuple[Address, Capability]]:
    found: list[tuple[Address, Capability]] = []
    address = head
    while address not in [seen for seen, _ in found]:
        capability = await channels.peer(address).capability(ASK_SECONDS)
        found.append((address, capability))
        if capability.is_tail:
            return found
        if capability.next_address is None:
            raise LayerRangeError(
                f"node {capability.node_id} holds layers {capability.layers} and doesn't know who "
                f"holds the next ones; start it with the next node's address, or name every node"
            )
        address = capability.next_address
    raise LayerRangeError(f"the nodes' next addresses lead back to {address}")
