"""Measures what the tracker places by: this machine's speed with the models, and its links."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.cli.slices import Slices
from meshnet.cli.speed import Rehearsed, rehearse
from meshnet.domain.errors import (
    MeshnetError,
    ModelUnsupportedError,
    NodeNotReadyError,
    NodeUnreachableError,
)
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.session.links import PADDING, Link, measure, measure_by, round_trip
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.linkbook import LinkBook, Question, Target
from meshnet.tracker.measurements import LinkReport, Neighbour, SpeedReport
from meshnet.tracker.messages import MAX_SPEEDS
from meshnet.tracker.offers import OfferedReply
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.tls import IdentitySource

LOGGER: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 1.0
AGAIN_SECONDS: Final = 600.0
"""So often it is asked which models are offered, and an idle machine is measured with those with
which it wasn't, or was disturbed."""


@dataclass(frozen=True, slots=True)
class Computing:
    """How this machine's worker computes, and where models' headers come from."""

    settings: Settings
    options: NodeOptions
    slices: Slices

    async def rehearsed(self, offered: OfferedReply) -> Rehearsed:
        """This machine's speed with a model; raises what ``rehearse`` and ``header`` do."""
        serving, stop = offered.serving, threading.Event()
        options = replace(
            self.options,
            flash_attention=serving.flash_attention,
            cache_type_k=serving.cache_type_k,
            cache_type_v=serving.cache_type_v,
            allow_unverified=serving.allow_unverified,
        )
        try:
            index = await asyncio.to_thread(self.slices.header, Digest(offered.model), stop)
        finally:
            stop.set()
        return await rehearse(self.settings, index, Digest(offered.model), options)


class Measuring:
    """What one machine measures. Belongs to its agent's event loop."""

    def __init__(self, tracker: Address, identity: IdentitySource, computing: Computing) -> None:
        self._tracker = tracker
        self._identity = identity
        self._computing = computing
        self._book = LinkBook(tracker)
        self._offered: tuple[OfferedReply, ...] = ()
        self._rehearsed: dict[OfferedReply, Rehearsed] = {}
        self._unfit: set[OfferedReply] = set()
        """Models that can't be measured at all."""
        self.idle = True
        """Whether nothing is computed for sessions just now."""

    @property
    def speeds(self) -> tuple[SpeedReport, ...]:
        """Those with the models that are offered, as measured last."""
        known = [(it.model, self._rehearsed.get(it)) for it in self._offered]
        return tuple(SpeedReport.of(model, it.speed) for model, it in known if it is not None)

    def news(self) -> tuple[LinkReport, ...] | None:
        """What is to be told of links; None: nothing new."""
        return self._book.news(time.monotonic())

    def untold(self) -> None:
        """What was to be told didn't arrive."""
        self._book.untold()

    def follow(self, neighbours: Sequence[Neighbour] | None) -> None:
        """Measure the links to these from now on; None: to the same as before."""
        if neighbours is None:
            return
        targets = [Target(NodeId(it.node_id), Address(it.address)) for it in neighbours]
        self._book.want(targets, time.monotonic())

    async def begin(self, tracker: TrackerClient) -> None:
        """Measure this machine with the models that are offered, before anything is placed on it.

        One that can't be measured is placed by the speed of any weights, and so are all where the
        tracker isn't there yet. Raises what else asking it raises.
        """
        try:
            await self._ask(tracker)
        except (NodeUnreachableError, NodeNotReadyError) as error:
            LOGGER.warning("this machine isn't measured with the models yet: %s", error.message)
        for offered in self._offered:
            await self._rehearse(offered)

    async def run(self) -> None:
        """Go on measuring, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._measure_links(), name="links")
            group.create_task(self._measure_again(), name="speed")

    async def _ask(self, tracker: TrackerClient) -> None:
        self._offered = (await tracker.models()).models[:MAX_SPEEDS]

    async def _rehearse(self, offered: OfferedReply) -> None:
        try:
            self._rehearsed[offered] = await self._computing.rehearsed(offered)
        except ModelUnsupportedError:
            self._unfit.add(offered)
        except MeshnetError as error:
            LOGGER.warning("this machine isn't measured with %s: %s", offered.name, error.message)

    async def _measure_again(self) -> None:
        while True:
            await asyncio.sleep(AGAIN_SECONDS)
            # The agent says what is wrong with the tracker.
            with contextlib.suppress(MeshnetError):
                async with TrackerClient(self._tracker, self._identity.load()) as client:
                    await self._ask(client)
            for offered in self._offered:
                known = self._rehearsed.get(offered)
                is_good = known.undisturbed if known is not None else offered in self._unfit
                if self.idle and not is_good:
                    await self._rehearse(offered)

    async def _measure_links(self) -> None:
        while True:
            question = self._book.due(time.monotonic())
            if question is None:
                await asyncio.sleep(LOOK_SECONDS)
                continue
            try:
                link = await self._answer(question)
            except MeshnetError:
                # A machine that is gone, or comes back: the tracker knows which.
                self._book.failed(question, time.monotonic())
                continue
            rate = link.bytes_per_second if question.rate else None
            self._book.measured(question, link.round_trip_seconds, rate, time.monotonic())

    async def _answer(self, question: Question) -> Link:
        target = question.target
        if target.node_id is None:
            async with TrackerClient(self._tracker, self._identity.load()) as client:
                return await measure_by(client.probe, PADDING if question.rate else ())
        options = GrpcOptions(tls=self._identity)
        peer = GrpcTransport(FlowControl(), options).peer(target.address, target.node_id)
        try:
            return await (measure(peer) if question.rate else round_trip(peer))
        finally:
            await peer.close()
