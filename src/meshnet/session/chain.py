"""Which nodes make up a chain, found by asking them, and whether they may work together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from meshnet.domain.errors import (
    FingerprintMismatchError,
    InvalidArgumentError,
    LayerRangeError,
    MeshnetError,
    NodeNotReadyError,
    NodeUnreachableError,
)
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


class ChainSource(Protocol):
    """Says which chain serves the next generation. A :class:`Chain` says that it is the one."""

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together, on any of its chains."""

    async def current(self) -> Chain:
        """The chain of now; raises ``NodeError`` if there is none."""

    def used(self, timeout_seconds: float, /) -> AbstractAsyncContextManager[Chain]:
        """The chain of now, for one generation: how the block ends tells how that went.

        Raises like :meth:`current`, and ``DeadlineExceededError`` if it takes longer to find.
        """


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
    grammars: bool = False
    """Whether the tail can keep its tokens to a grammar."""

    @property
    def head(self) -> Hop:
        """Where generations start."""
        return self.hops[0]

    async def current(self) -> Chain:
        """Itself, always."""
        return self

    @asynccontextmanager
    async def used(self, _timeout_seconds: float, /) -> AsyncIterator[Chain]:
        """Itself; there is no other to choose when this one fails."""
        yield self

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
    would compute different numbers; it names the one that differs from most.
    """
    if not found:
        raise InvalidArgumentError("chain", "it names no node")
    first = found[0][1]
    _require_alike(found)
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
        grammars=found[-1][1].grammars,
    )


def _require_alike(found: Sequence[tuple[Address, Capability]]) -> None:
    counts = Counter(capability.fingerprint for _, capability in found)
    # Of as many, the first.
    (usual, _), *_ = counts.most_common(1)
    for address, capability in found:
        whose = f"{capability.node_id} ({address})"
        try:
            usual.require_equal(capability.fingerprint, whose)
        except FingerprintMismatchError as error:
            details = {**error.details, "node": str(capability.node_id)}
            raise FingerprintMismatchError(error.message, **details) from None


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


async def require_route(channels: ChannelPool, hops: Sequence[Hop]) -> Chain:
    """The chain that a route names, its nodes asked: each must be there, with those layers.

    Raises ``NodeUnreachableError`` naming a node that can't be asked, ``NodeNotReadyError`` if one
    holds other layers now, and what :func:`assemble_chain` raises.
    """
    capabilities = await _all(_ask_hop(channels, hop) for hop in hops)
    for hop, capability in zip(hops, capabilities, strict=True):
        if (capability.node_id, capability.layers) != (hop.node_id, hop.layers):
            raise NodeNotReadyError(
                f"{hop} says that it is {capability.node_id} with layers {capability.layers}; ask "
                "again in a moment",
                node=hop.node_id,
            )
    return assemble_chain(
        [(hop.address, capability) for hop, capability in zip(hops, capabilities, strict=True)]
    )


async def _ask_hop(channels: ChannelPool, hop: Hop) -> Capability:
    try:
        return await channels.peer(hop.address, hop.node_id).capability(ASK_SECONDS)
    except MeshnetError as error:
        # Also for an address that is none, or an answer that can't be read.
        raise NodeUnreachableError(
            f"can't reach node {hop}: {error.message}", node=hop.node_id, layers=str(hop.layers)
        ) from error


async def ask_health(
    channels: ChannelPool, chain: Chain
) -> tuple[tuple[Capability, HealthReport], ...]:
    """What each node of the chain says of itself now."""
    return tuple(await _all(_ask(channels, hop) for hop in chain.hops))


async def _ask(channels: ChannelPool, hop: Hop) -> tuple[Capability, HealthReport]:
    peer = channels.peer(hop.address, hop.node_id)
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
