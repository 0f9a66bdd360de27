"""Keeps a cluster's tracker alive in a process of its own, and is this process's way to it.

What is under way doesn't pass through the tracker. So when its process dies, streams go on, and
another one is started at once on the same socket; machines that connect meanwhile wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

from meshnet.cli.output import print_error, print_note
from meshnet.cli.runtime import alongside
from meshnet.cli.tracker_process import TrackerConfig, TrackerEvent
from meshnet.domain.errors import MeshnetError, NodeNotReadyError, error_from
from meshnet.domain.ids import NodeId
from meshnet.node.supervisor import describe_exit
from meshnet.tracker.leases import Policy

LOGGER: Final = logging.getLogger(__name__)
COMMAND: Final = (sys.executable, "-m", "meshnet.cli.tracker_process")
START_SECONDS: Final = 60.0
"""A database elsewhere may take its time."""
STOP_SECONDS: Final = 5.0
WINDOW_SECONDS: Final = 60.0
LONGEST_PAUSE_SECONDS: Final = 10.0
SPARE_SECONDS: Final = 5.0
"""After a start; until then the machine has other things to do."""
FATAL_FIELDS: Final = frozenset({"store", "state", "authority"})
"""Another tracker has what this one needs, or it is of no use: starting again wouldn't help."""


@dataclass(frozen=True, slots=True)
class Restarts:
    """When to start a process again that should never end: at once, then after doubling pauses."""

    deaths: tuple[float, ...] = ()
    """When it ended within the last minute, in seconds of any clock."""

    def after_death(self, now: float) -> tuple[Restarts, float]:
        """With this death counted, and the pause in seconds. It is never given up."""
        recent = (*(at for at in self.deaths if now - at < WINDOW_SECONDS), now)
        pause = 0.0 if len(recent) == 1 else 0.25 * 2 ** min(len(recent) - 2, 8)
        return Restarts(recent), min(pause, LONGEST_PAUSE_SECONDS)


class TrackerKeeper:
    """The tracker's process over all its lives."""

    def __init__(self, config: TrackerConfig, listener: socket.socket) -> None:
        self._config = replace(config, listener=listener.fileno())
        self._listener = listener
        self._process: asyncio.subprocess.Process | None = None
        self._spare: asyncio.subprocess.Process | None = None
        """One that has imported all it needs, which takes most of a start, and waits to be told
        what to do."""
        self._spawning: asyncio.Task[None] | None = None
        self._serving = False
        self._back_at: float | None = None
        self.waiting: tuple[NodeId, ...] = ()
        """Who waits at the relay, for the tracker that comes after this one."""

    @property
    def pid(self) -> int | None:
        """Of the process of now; None before the first."""
        return None if self._process is None else self._process.pid

    def is_away(self) -> bool:
        """Whether it doesn't serve now."""
        process = self._process
        return not self._serving or process is None or process.returncode is not None

    def is_settling(self) -> bool:
        """Whether it was started again so lately that not every machine can have spoken to it."""
        back = self._back_at
        return back is not None and time.monotonic() - back < Policy().lease_seconds

    async def start(self) -> TrackerEvent:
        """Start a process and wait until it serves.

        Raises what the tracker itself raised, and ``NodeNotReadyError`` if it can't be started,
        ends or takes too long; none is left then.
        """
        config = replace(self._config, waiting=self.waiting)
        self._serving = False
        spare, self._spare = self._spare, None
        if spare is None or spare.returncode is not None:
            spare = await self._spawned()
        process = self._process = spare
        try:
            async with asyncio.timeout(START_SECONDS):
                await _write(process, config.to_json() + b"\n")
                event = await _event_of(process)
        except TimeoutError:
            await self.stop()
            raise NodeNotReadyError(
                f"the tracker didn't start within {START_SECONDS:g} s"
            ) from None
        except BaseException:
            await self.stop()
            raise
        if event is None:
            raise NodeNotReadyError(f"the tracker {describe_exit(await process.wait())}")
        if event.event == "failed":
            await process.wait()
            raise error_from(event.status)
        self._serving = True
        return event

    async def keep(self) -> None:
        """Start it again whenever it ends; raises only what no other start would help against."""
        restarts = Restarts()
        while True:
            async with alongside(self._prepare(), "tracker's spare"):
                problem = await self._ended()
            while True:
                restarts, pause = restarts.after_death(time.monotonic())
                print_error(f"{problem}; it is started again")
                await asyncio.sleep(pause)
                try:
                    await self.start()
                    break
                except MeshnetError as error:
                    _raise_fatal(error)
                    problem = f"the tracker can't be started: {error.message}"
            self._back_at = time.monotonic()
            print_note("the tracker runs again", kept=True)

    async def stop(self) -> None:
        """End the process: by closing its input, and by force if it lingers. Idempotent."""
        await _stop(self._process)

    async def close(self) -> None:
        """End it, and the one that waits to follow it."""
        if self._spawning is not None:
            await asyncio.wait([self._spawning])
        await asyncio.gather(self.stop(), _stop(self._spare))

    async def _prepare(self) -> None:
        """Have another process ready; without one, the next start takes longer."""
        await asyncio.sleep(SPARE_SECONDS)
        if self._spare is None or self._spare.returncode is not None:
            self._spawning = asyncio.create_task(self._spawn_spare(), name="tracker's spare")
            # Cut off halfway, there would be a process that nobody ends.
            await asyncio.shield(self._spawning)

    async def _spawn_spare(self) -> None:
        with contextlib.suppress(NodeNotReadyError):
            self._spare = await self._spawned()

    async def _spawned(self) -> asyncio.subprocess.Process:
        try:
            return await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(self._listener.fileno(),),
                # Signals to the group (Ctrl-C) are for this process: it ends its tracker.
                start_new_session=True,
            )
        except OSError as error:
            raise NodeNotReadyError(f"the tracker can't be started: {error}") from error

    async def _ended(self) -> str:
        """Wait for the end of the process that serves; gives what there is to say of it."""
        process = self._process
        if process is None:
            raise NodeNotReadyError("the tracker was never started")
        try:
            event = await _event_of(process)
        except NodeNotReadyError as babble:
            await self.stop()
            return babble.message
        code = await process.wait()
        if event is not None and event.event == "failed":
            error = error_from(event.status)
            _raise_fatal(error)
            return f"the tracker ended: {error.message}"
        return f"the tracker {describe_exit(code)}"


@asynccontextmanager
async def tracker_kept(
    config: TrackerConfig, listener: socket.socket
) -> AsyncIterator[tuple[TrackerKeeper, TrackerEvent]]:
    """A tracker on a bound socket, kept alive for as long as the block runs.

    The block ends with the error that no other start would help against, if there is one.
    Raises like :meth:`TrackerKeeper.start`.
    """
    keeper = TrackerKeeper(config, listener)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(keeper.close)
        event = await keeper.start()
        await stack.enter_async_context(alongside(keeper.keep(), "tracker's keeper"))
        yield keeper, event


async def _stop(process: asyncio.subprocess.Process | None) -> None:
    if process is None or process.returncode is not None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _raise_fatal(error: MeshnetError) -> None:
    if error.details.get("field") in FATAL_FIELDS:
        raise error


async def _write(process: asyncio.subprocess.Process, data: bytes) -> None:
    if process.stdin is None:
        raise NodeNotReadyError("the tracker's process has no pipes")
    # A process that is dead already has closed its pipe, for which uvloop raises RuntimeError.
    with contextlib.suppress(ConnectionError, RuntimeError):
        process.stdin.write(data)
        await process.stdin.drain()


async def _event_of(process: asyncio.subprocess.Process) -> TrackerEvent | None:
    """What the process says next; None if it ends before."""
    if process.stdout is None:
        raise NodeNotReadyError("the tracker's process has no pipes")
    try:
        line = await process.stdout.readline()
        return TrackerEvent.from_json(line) if line else None
    except ValueError as error:
        raise NodeNotReadyError(f"the tracker's process said what is no event: {error}") from error
