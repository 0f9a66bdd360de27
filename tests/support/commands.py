"""The ``meshnet`` command as a process of its own, with all that it starts in view."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from meshnet.domain.ids import Address

MESHNET = str(Path(sys.executable).with_name("meshnet"))
START_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that is over."""

    status: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Standard error without the line breaks that a narrow terminal makes."""
        return " ".join(self.err.split())


@dataclass(slots=True)
class Command:
    """A command that runs, in a process group of its own as on a terminal."""

    process: asyncio.subprocess.Process
    seen: set[int] = field(default_factory=set)
    _err: asyncio.Task[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the command itself."""
        return self.process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended."""
        return self.process.returncode is None

    def workers(self) -> list[psutil.Process]:
        """The node processes it has now, in the order of their start."""
        with suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.pid).children(recursive=True)
            self.seen |= {child.pid for child in children}
            return sorted(children, key=lambda child: child.pid)
        return []

    async def until_workers(self, count: int) -> list[psutil.Process]:
        """Wait until it has started so many nodes."""
        await until(lambda: len(self.workers()) == count, START_SECONDS)
        return self.workers()

    async def worker_of(self, node_id: str) -> psutil.Process:
        """The process of a node, found by the ``node_id`` that its gRPC server gives."""
        from meshnet.transport.seam_client import GrpcTransport

        for worker in self.workers():
            peer = GrpcTransport().peer(address_of(worker))
            try:
                if (await peer.capability(5.0)).node_id == node_id:
                    return worker
            finally:
                await peer.close()
        raise AssertionError(f"no worker says that it is {node_id}")

    def interrupt(self) -> None:
        """Ctrl-C: SIGINT to the whole group."""
        os.killpg(self.pid, signal.SIGINT)

    async def read_some(self, within_seconds: float = START_SECONDS) -> bytes:
        """What it writes to standard output next."""
        assert self.process.stdout is not None
        return await asyncio.wait_for(self.process.stdout.read(4096), within_seconds)

    async def read_line(self, within_seconds: float = START_SECONDS) -> str:
        """The next whole line of standard output."""
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), within_seconds)
        return line.decode()

    async def end(self, within_seconds: float = START_SECONDS) -> Ended:
        """Wait for the end of the command and of all it started."""
        assert self.process.stdout is not None
        assert self._err is not None
        self.workers()
        async with asyncio.timeout(within_seconds):
            out = await self.process.stdout.read()
            err = await self._err
            status = await self.process.wait()
        assert not self.left(), f"still running: {self.left()}"
        return Ended(status, out.decode(errors="replace"), err.decode(errors="replace"))

    def left(self) -> list[int]:
        """Processes it started that are still there."""
        return [pid for pid in self.seen if _alive(pid)]


@asynccontextmanager
async def command(
    *arguments: str | Path, env: Mapping[str, str], stdin: bytes | None = None
) -> AsyncIterator[Command]:
    """Start ``meshnet`` with arguments; ends it by force if the test doesn't."""
    process = await asyncio.create_subprocess_exec(
        MESHNET,
        *map(str, arguments),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **env},
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    started = Command(process)
    started._err = asyncio.create_task(process.stderr.read())
    if stdin is not None:
        process.stdin.write(stdin)
    process.stdin.close()
    try:
        yield started
    finally:
        started.workers()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        started._err.cancel()
        for pid in started.left():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


async def meshnet(
    *arguments: str | Path, env: Mapping[str, str], stdin: bytes | None = None
) -> Ended:
    """Run a command to its end."""
    async with command(*arguments, env=env, stdin=stdin) as started:
        return await started.end()


def address_of(worker: psutil.Process) -> Address:
    """Where a node process listens."""
    ports = [
        connection.laddr.port
        for connection in worker.net_connections(kind="tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert len(ports) == 1, f"process {worker.pid} listens at {ports}"
    return Address(f"127.0.0.1:{ports[0]}")


def require_clean(ended: Ended) -> None:
    """No Python internals on a user's terminal."""
    for sign in ("Traceback", "Error:", "Exception", "Task was destroyed", "never awaited"):
        assert not re.search(rf"(?<!\w){sign}", ended.err), ended.err


async def until(happened: object, within_seconds: float = 2.0) -> None:
    """Wait for what has no event; fails after the time."""
    assert callable(happened)
    deadline = time.monotonic() + within_seconds
    while not happened():
        assert time.monotonic() < deadline, "it didn't happen in time"
        await asyncio.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
