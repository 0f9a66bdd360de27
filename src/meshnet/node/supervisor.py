"""Starts a node's worker process, outlives it, and says what became of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.domain.errors import NodeLostError, NodeNotReadyError, error_from
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.node.config import NodeConfig
from meshnet.node.snapshot import NodeSnapshot
from meshnet.node.worker import WorkerEvent

LOGGER = logging.getLogger(__name__)
KEPT_LINES = 20
START_SECONDS = 300.0
"""Loading a large shard from a slow disk takes minutes."""
GRACE_SECONDS = 1.0
ASK = b"figures\n"
"""Anything at all on a serving worker's input asks it for its figures."""


@dataclass(frozen=True, slots=True)
class WorkerDeath:
    """How a worker ended."""

    node_id: NodeId
    layers: LayerRange
    returncode: int
    last_words: tuple[str, ...]
    """The last lines of its standard error."""

    def describe(self) -> str:
        """One sentence for people."""
        return f"node {self.node_id} (layers {self.layers}) {describe_exit(self.returncode)}" + (
            f": {self.last_words[-1]}" if self.last_words else ""
        )

    def error(self) -> NodeLostError:
        """The error that the death means for whoever used the node."""
        return NodeLostError(self.describe(), node=self.node_id, layers=str(self.layers))


def describe_exit(returncode: int) -> str:
    """What a process's return code says."""
    if returncode >= 0:
        return f"ended with status {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    if name == "SIGABRT":
        return "was aborted (SIGABRT): an assertion in libllama failed"
    return f"was killed ({name})"


class NodeProcess:
    """One worker. ``command`` starts a program that reads a :class:`NodeConfig` from its input.

    The pipe to the worker's input stays open for its whole life: a worker whose supervisor is gone,
    however it went, reads its end and stops.
    """

    def __init__(self, command: Sequence[str], config: NodeConfig) -> None:
        self._command = tuple(command)
        self._config = config
        self._process: asyncio.subprocess.Process | None = None
        self._last_words: deque[str] = deque(maxlen=KEPT_LINES)
        self._words: asyncio.Task[None] | None = None
        self._serving = False
        self._reading = asyncio.Lock()
        self._owed = False
        """Whether figures were asked for that haven't been read."""

    @property
    def node_id(self) -> NodeId:
        """The node's name."""
        return self._config.node_id

    @property
    def layers(self) -> LayerRange:
        """The layers it holds."""
        return LayerRange(self._config.shard_start, self._config.shard_end)

    @property
    def pid(self) -> int | None:
        """The worker's process id; None before :meth:`start`."""
        return self._process.pid if self._process is not None else None

    async def start(self, timeout_seconds: float = START_SECONDS) -> Address:
        """Start the worker and wait until it serves; returns where.

        Raises the worker's own error, ``NodeLostError`` if it died, or ``NodeNotReadyError`` if it
        can't be started or takes longer than the timeout; no process is left then.
        """
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # Signals to the supervisor's group (Ctrl-C) are the supervisor's: it ends workers.
                start_new_session=True,
            )
        except OSError as error:
            raise NodeNotReadyError(
                f"node {self.node_id} (layers {self.layers}) can't be started: {error}"
            ) from error
        self._words = asyncio.create_task(self._listen(self._process))
        try:
            async with asyncio.timeout(timeout_seconds):
                address = await self._ready(self._process)
        except TimeoutError:
            await self.stop()
            raise NodeNotReadyError(
                f"node {self.node_id} (layers {self.layers}) didn't start within "
                f"{timeout_seconds:g} s"
            ) from None
        except BaseException:
            await self.stop()
            raise
        self._serving = True
        return address

    async def figures(self, timeout_seconds: float) -> NodeSnapshot:
        """Ask the worker for its figures.

        Raises ``NodeNotReadyError`` if it doesn't serve or doesn't answer in time, and
        ``NodeLostError`` if it is dead.
        """
        process = self._process
        if process is None or not self._serving:
            raise NodeNotReadyError(f"node {self.node_id} doesn't serve")
        try:
            async with asyncio.timeout(timeout_seconds), self._reading:
                return await self._asked_figures(process)
        except TimeoutError:
            raise NodeNotReadyError(
                f"node {self.node_id} didn't tell its figures within {timeout_seconds:g} s"
            ) from None

    async def wait(self) -> WorkerDeath:
        """Wait for the worker's end, whatever its cause."""
        if self._process is None or self._words is None:
            raise NodeNotReadyError(f"node {self.node_id} was never started")
        returncode = await self._process.wait()
        # A grandchild could hold the pipe open; the last words aren't worth waiting for.
        await asyncio.wait([self._words], timeout=0.2)
        return WorkerDeath(self.node_id, self.layers, returncode, tuple(self._last_words))

    async def stop(self) -> None:
        """End the worker: by closing its input, and by force if it lingers. Idempotent.

        One that doesn't serve yet has nothing to end in good order, and may be deep in a load.
        """
        process = self._process
        if process is None or self._words is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        try:
            async with asyncio.timeout(GRACE_SECONDS if self._serving else 0.0):
                await process.wait()
        except TimeoutError:
            if self._serving:
                LOGGER.warning("node %s doesn't end by itself and is killed", self.node_id)
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._words.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._words

    async def _ready(self, process: asyncio.subprocess.Process) -> Address:
        event = await self._first_event(process)
        if event.event == "failed":
            raise error_from(event.status)
        return Address(event.address)

    async def _asked_figures(self, process: asyncio.subprocess.Process) -> NodeSnapshot:
        if not self._owed:
            # An answer that came too late for who asked is still to be read.
            self._owed = True
            await self._write(process, ASK)
        event = await self._next_event(process)
        self._owed = False
        if event.figures is None:
            raise NodeNotReadyError(f"node {self.node_id} answered with {event.event!r}")
        return event.figures

    async def _first_event(self, process: asyncio.subprocess.Process) -> WorkerEvent:
        await self._write(process, self._config.to_json() + b"\n")
        return await self._next_event(process)

    async def _write(self, process: asyncio.subprocess.Process, data: bytes) -> None:
        if process.stdin is None:
            raise NodeNotReadyError("the worker has no pipes")
        # A worker that is dead already has closed its pipe, for which uvloop raises RuntimeError.
        with contextlib.suppress(ConnectionError, RuntimeError):
            process.stdin.write(data)
            await process.stdin.drain()

    async def _next_event(self, process: asyncio.subprocess.Process) -> WorkerEvent:
        if process.stdout is None:
            raise NodeNotReadyError("the worker has no pipes")
        line = b"more than fits in a line"
        try:
            line = await process.stdout.readline()
            if line:
                return WorkerEvent.from_json(line)
        except ValueError as error:
            raise NodeNotReadyError(
                f"node {self.node_id} said {line[:200]!r} where an event was due"
            ) from error
        raise (await self.wait()).error()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        """Keep the worker's last words, and pass each on to the log."""
        if process.stderr is None:
            return
        while not process.stderr.at_eof():
            try:
                line = await process.stderr.readline()
            except ValueError:
                # Longer than the reader's buffer, which drops it; reading must go on all the same.
                line = b"(a line too long to keep)"
            text = line.decode(errors="replace").rstrip()
            if text:
                self._last_words.append(text)
                LOGGER.info("%s: %s", self.node_id, text)
