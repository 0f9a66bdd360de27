"""Finds out, beside a tracker, which machines can be reached at the addresses that they state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from meshnet.cli.runtime import alongside
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.tracker.service import TrackerService
from meshnet.transport.reachable import trouble
from meshnet.transport.tls import IdentitySource

LOGGER: Final = logging.getLogger(__name__)
LOOK_SECONDS: Final = 0.2
"""How often it is asked which addresses are to be tried."""
ANSWER_SECONDS: Final = 8.0
"""How long a machine may take to prove that it is where it says: a busy one takes seconds. Looks at
others don't wait for it."""


@asynccontextmanager
async def addresses_tried(service: TrackerService, identity: IdentitySource) -> AsyncIterator[None]:
    """Try addresses, as the tracker ``identity``, for as long as the block runs."""
    async with alongside(_Tries(service, identity).run(), "who can be reached"):
        yield


class _Tries:
    def __init__(self, service: TrackerService, identity: IdentitySource) -> None:
        self._service = service
        self._identity = identity
        self._trying: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Go on until cancelled."""
        try:
            while True:
                for node_id, address in self._service.reach.due(self._service.now):
                    task = asyncio.create_task(
                        self._try(node_id, address), name=f"trying {address}"
                    )
                    self._trying.add(task)
                    task.add_done_callback(self._trying.discard)
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for task in self._trying:
                task.cancel()
            await asyncio.gather(*self._trying, return_exceptions=True)

    async def _try(self, node_id: NodeId, address: Address) -> None:
        try:
            identity = self._identity.load()
            problem = await trouble(address, node_id, identity, ANSWER_SECONDS)
        except InvalidArgumentError as error:
            LOGGER.warning("machines' addresses can't be tried: %s", error.message)
            return
        reach, now = self._service.reach, self._service.now
        before = reach.way(node_id)
        reach.looked(node_id, address, answered=problem is None, now=now)
        way = reach.way(node_id)
        if way is not before:
            # Once: one behind NAT is looked at for as long as it is there.
            said = "answers" if problem is None else f"doesn't answer: {problem}"
            LOGGER.info("node %s at %s %s; the way to it is %s", node_id, address, said, way.value)
