"""Keeps a node's worker alive: starts it again after a death, unless it dies again and again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

from meshnet.domain.errors import MeshnetError
from meshnet.domain.ids import Address
from meshnet.node.config import NodeConfig
from meshnet.node.supervisor import NodeProcess, WorkerDeath

LOGGER = logging.getLogger(__name__)
WINDOW_SECONDS = 60.0
MAX_DEATHS = 5
FIRST_PAUSE_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Pauses that double, and a limit on deaths within a window; time is handed in."""

    deaths: tuple[float, ...] = ()

    def after_death(self, now: float) -> tuple[RestartPolicy, float | None]:
        """The policy with this death counted, and how long to pause; None means: give up."""
        recent = (*(death for death in self.deaths if now - death < WINDOW_SECONDS), now)
        policy = RestartPolicy(recent)
        if len(recent) >= MAX_DEATHS:
            return policy, None
        return policy, FIRST_PAUSE_SECONDS * 2 ** (len(recent) - 1)


class NodeKeeper:
    """One node's worker over several lives, always at the same address."""

    def __init__(
        self,
        command: tuple[str, ...],
        config: NodeConfig,
        on_death: Callable[[WorkerDeath], None],
    ) -> None:
        self._command = command
        self._config = config
        self._on_death = on_death
        self._process = NodeProcess(command, config)
        self._task: asyncio.Task[None] | None = None
        self.deaths = 0
        """How often a worker ended that should have gone on."""

    @property
    def process(self) -> NodeProcess:
        """The worker of now."""
        return self._process

    async def start(self) -> Address:
        """Start the first worker and watch over it; raises what its start raises."""
        address = await self._process.start()
        # Later lives must be found where the first one was, also if any free port was taken.
        self._config = replace(self._config, listen=address)
        self._task = asyncio.create_task(self._watch(), name=f"keeper {self._config.node_id}")
        return address

    async def gone(self) -> None:
        """Wait until the keeper has given the node up."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def stop(self) -> None:
        """End the worker and the watch."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await self._process.stop()

    async def _watch(self) -> None:
        policy = RestartPolicy()
        self._died(await self._process.wait())
        while True:
            policy, pause = policy.after_death(asyncio.get_running_loop().time())
            if pause is None:
                LOGGER.error(
                    "node %s died %d times within %g s; it is given up",
                    self._config.node_id,
                    MAX_DEATHS,
                    WINDOW_SECONDS,
                )
                return
            await asyncio.sleep(pause)
            self._process = NodeProcess(self._command, self._config)
            try:
                await self._process.start()
            except MeshnetError as error:
                # Counts as another death; start() left no process.
                LOGGER.warning("a restart failed: %s", error.message)
            else:
                self._died(await self._process.wait())

    def _died(self, death: WorkerDeath) -> None:
        self.deaths += 1
        self._on_death(death)
