"""The chain of a model whose machines come, go and change their layers while it is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final, Protocol

from meshnet.domain.errors import (
    DeadlineExceededError,
    FingerprintMismatchError,
    MeshnetError,
    NodeError,
)
from meshnet.domain.ids import Digest
from meshnet.domain.nodes import Hop
from meshnet.domain.tensors import DType
from meshnet.session.chain import Chain, require_route
from meshnet.transport.channel import ChannelPool

CHAINS_KEPT: Final = 16
"""Checked chains that are kept: the routes go over several where some are as good as others."""

Hops = tuple[Hop, ...]


class Routes(Protocol):
    """Who knows which nodes hold what."""

    async def route(self) -> Hops:
        """The hops of the next generation, in order; raises ``NodeNotReadyError`` without any."""

    def took(self, hops: Sequence[Hop]) -> None:
        """A generation begins on these nodes."""

    def worked(self, hops: Sequence[Hop]) -> None:
        """A generation came to its end on these nodes."""

    def erred(self, node_id: str) -> None:
        """A generation failed by this node."""


class RoutedChains:
    """Asks for a route at each generation, and checks a chain when it is first used.

    It fulfils ``ChainSource``.
    """

    def __init__(
        self,
        routes: Routes,
        channels: ChannelPool,
        digest: Digest,
        context_length: int,
        boundary: DType = DType.FLOAT32,
    ) -> None:
        """``digest``: the model's, which all nodes must hold."""
        self._routes = routes
        self._channels = channels
        self._digest = digest
        self._context_length = context_length
        self._boundary = boundary
        self._checks: dict[Hops, asyncio.Task[Chain]] = {}
        self._checked: dict[Hops, Chain] = {}
        """The one that was used last comes last."""

    @property
    def context_length(self) -> int:
        """Tokens that every node has room for."""
        return self._context_length

    async def current(self) -> Chain:
        """The chain of now. One that proves to be of no use gives way to another, if there is one.

        Raises ``NodeNotReadyError`` if layers are missing, ``NodeUnreachableError`` for a node of
        it that can't be asked, :class:`FingerprintMismatchError` for one of another model.
        """
        hops = await self._routes.route()
        try:
            return await self._chain(hops)
        except (NodeError, FingerprintMismatchError):
            again = await self._other_than(hops)
            if again is None:
                raise
        return await self._chain(again)

    @asynccontextmanager
    async def used(self, timeout_seconds: float, /) -> AsyncIterator[Chain]:
        """The chain of now, for one generation; who keeps the routes is told how that went."""
        try:
            async with asyncio.timeout(timeout_seconds):
                chain = await self.current()
        except TimeoutError:
            raise DeadlineExceededError("the nodes didn't answer before the deadline") from None
        self._routes.took(chain.hops)
        try:
            yield chain
        except (NodeError, FingerprintMismatchError) as error:
            self._failed(error, chain.hops)
            raise
        # One that was left early, or refused its input, says nothing about the nodes.
        self._routes.worked(chain.hops)

    async def _other_than(self, hops: Hops) -> Hops | None:
        try:
            again = await self._routes.route()
        except NodeError:
            # What was wrong with the first says more.
            return None
        return None if again == hops else again

    async def _chain(self, hops: Hops) -> Chain:
        """The checked chain of these hops; whoever wants the same one waits for the same check."""
        known = self._checked.pop(hops, None)
        if known is not None:
            self._checked[hops] = known
            return known
        task = self._checks.get(hops)
        if task is None:
            task = asyncio.create_task(self._check(hops), name="checking a chain")
            self._checks[hops] = task
            task.add_done_callback(lambda done: self._note(hops, done))
        # Others may wait for it when this request is left.
        return await asyncio.shield(task)

    def _note(self, hops: Hops, task: asyncio.Task[Chain]) -> None:
        del self._checks[hops]
        # An error is raised in all who wait; here it counts once, also if nobody waits any more.
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MeshnetError):
            self._failed(error, hops)
        elif error is None and not task.cancelled():
            self._checked[hops] = task.result()
            for oldest in list(self._checked)[:-CHAINS_KEPT]:
                del self._checked[oldest]

    def _failed(self, error: MeshnetError, hops: Hops) -> None:
        """Tell who keeps the routes, and look at the nodes again before they are used again."""
        node = error.details.get("node")
        self._checked = {
            each: chain
            for each, chain in self._checked.items()
            if each != hops and all(hop.node_id != node for hop in each)
        }
        if node is not None:
            self._routes.erred(node)

    async def _check(self, hops: Hops) -> Chain:
        chain = await require_route(self._channels, hops)
        theirs = chain.fingerprint.model_artifact_digest
        if theirs != self._digest:
            raise FingerprintMismatchError(
                f"the nodes hold another model: {theirs} there, {self._digest} here",
                here=self._digest,
                there=theirs,
                node=chain.head.node_id,
            )
        return chain if self._boundary is DType.FLOAT32 else chain.with_boundary(self._boundary)
