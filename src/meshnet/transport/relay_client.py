"""A node's end of the relay: connections kept open there, each for one that comes to the worker."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.transport.address import parse_address
from meshnet.transport.relay import GO, NO, WAIT
from meshnet.transport.splice import PIECE_BYTES, Streams, splice
from meshnet.transport.tls import IdentitySource, client_context

LOGGER = logging.getLogger(__name__)
WAITING: Final = 4
"""Connections kept open: as many can come at once. Each that is taken is replaced."""
CONNECT_SECONDS = 10.0
SILENCE_SECONDS = 30.0
"""Three times the relay's own wait: it isn't there any more when nothing comes for so long."""
WORKER_SECONDS = 3.0
IDLE_SECONDS = 120.0
"""The relay has a shorter one; this is for a relay that went without a word."""
FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 20.0
_DOUBLINGS = 6
"""After which the first pause has become longer than the longest."""


class RelayClient:
    """Keeps a worker reachable over the relay at an address, from :meth:`start` on."""

    def __init__(self, relay: Address, worker: Address, identity: IdentitySource) -> None:
        """Raises ``InvalidArgumentError`` ("relay", "worker") for what is no address."""
        self.relay = relay
        self.worker = worker
        self._relay_host, self._relay_port = parse_address(relay, "relay")
        self._worker_host, self._worker_port = parse_address(worker, "worker")
        self._identity = identity
        self._waiting: set[asyncio.Task[None]] = set()
        self._carrying: set[asyncio.Task[None]] = set()
        self._reached = True
        self._left = False

    def start(self) -> None:
        """Open the connections, and again whenever one ends."""
        for _ in range(WAITING):
            self._begin(0.0)

    @property
    def carries(self) -> bool:
        """Whether a connection that came is still there."""
        return bool(self._carrying)

    async def leave(self) -> None:
        """Take no more that come; those that came go on until they end."""
        self._left = True
        await _ended(set(self._waiting))

    async def close(self) -> None:
        """End all connections."""
        await self.leave()
        await _ended(set(self._carrying))

    def _begin(self, after_seconds: float) -> None:
        waiting = self._wait_always(after_seconds)
        task = asyncio.create_task(waiting, name="waiting at the relay")
        self._waiting.add(task)
        task.add_done_callback(self._replace)

    def _replace(self, task: asyncio.Task[None]) -> None:
        """Put another in the place of one that ended, which only a fault makes it do."""
        self._waiting.discard(task)
        if task.cancelled() or self._left:
            return
        LOGGER.error("waiting at the relay went wrong; it begins anew", exc_info=task.exception())
        self._begin(LONGEST_PAUSE_SECONDS)

    async def _wait_always(self, after_seconds: float) -> None:
        await asyncio.sleep(after_seconds)
        failures = 0
        while True:
            try:
                relay = await self._connected()
            except (OSError, asyncio.IncompleteReadError, InvalidArgumentError) as error:
                self._note(error)
                failures += 1
            else:
                self._note(None)
                failures = 0
                if await self._go(relay):
                    continue
            # Not all nodes at once after the tracker was started again.
            await asyncio.sleep(_pause_seconds(failures) * random.uniform(0.5, 1.0))

    def _note(self, error: Exception | None) -> None:
        """Say it once when the relay can't be used, and once when it can again."""
        if error is not None and self._reached:
            LOGGER.warning("the relay at %s can't be used: %s; trying again", self.relay, error)
        if error is None and not self._reached:
            LOGGER.warning("the relay at %s is back", self.relay)
        self._reached = error is None

    async def _connected(self) -> Streams:
        """A connection that waits at the relay; its first byte says that it may."""
        context = client_context(self._identity.load())
        async with asyncio.timeout(CONNECT_SECONDS):
            relay = Streams(
                *await asyncio.open_connection(
                    self._relay_host, self._relay_port, ssl=context, limit=PIECE_BYTES
                )
            )
            try:
                relay.keep_alive()
                relay.writer.write(await relay.reader.readexactly(1))
            except BaseException:
                relay.writer.transport.abort()
                raise
        return relay

    async def _go(self, relay: Streams) -> bool:
        """Wait for somebody, and connect the worker with them; False if that came to nothing."""
        try:
            while True:
                async with asyncio.timeout(SILENCE_SECONDS):
                    said = await relay.reader.readexactly(1)
                if said == GO:
                    break
                relay.writer.write(WAIT)
            worker = await self._worker()
            relay.writer.write(NO if worker is None else GO)
        except (OSError, asyncio.IncompleteReadError) as error:
            LOGGER.info("a connection that waited at the relay is gone: %s", error)
            await relay.close()
            return False
        except BaseException:
            relay.writer.transport.abort()
            raise
        if worker is None:
            await relay.close()
            return False
        task = asyncio.create_task(splice(relay, worker, IDLE_SECONDS), name="over the relay")
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)
        return True

    async def _worker(self) -> Streams | None:
        """A connection to the worker; None if it takes none."""
        host, port = self._worker_host, self._worker_port
        try:
            async with asyncio.timeout(WORKER_SECONDS):
                return Streams(*await asyncio.open_connection(host, port, limit=PIECE_BYTES))
        except OSError as error:
            LOGGER.info("somebody came over the relay, but the worker didn't answer: %s", error)
            return None


def _pause_seconds(failures: int) -> float:
    """Twice as long after each failure in a row, up to the longest, however many there were."""
    return float(min(FIRST_PAUSE_SECONDS * 2 ** min(failures, _DOUBLINGS), LONGEST_PAUSE_SECONDS))


async def _ended(tasks: set[asyncio.Task[None]]) -> None:
    # One that is cancelled before it has begun wouldn't close what it was given.
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
