"""Runs a command's work on an event loop, and turns its end into an exit status."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager

import uvloop

from meshnet.cli.output import print_error
from meshnet.domain.errors import InputError, MeshnetError

EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130


@contextmanager
def interruptible() -> Iterator[None]:
    """Work outside the event loop; Ctrl-C ends the command at once, with 130."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


def run_async(work: Coroutine[object, object, None]) -> None:
    """Run ``work``; Ctrl-C and SIGTERM cancel it, so that all it started is ended first.

    An interrupted command exits with 130.
    """

    async def guarded() -> None:
        task = asyncio.current_task()
        if task is not None:
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        await work

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(guarded())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(EXIT_INTERRUPTED)


@asynccontextmanager
async def alongside(work: Coroutine[object, object, None], name: str) -> AsyncIterator[None]:
    """Run ``work`` beside the block and end it with the block; if it fails, the block ends too."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(work, name=name)
        try:
            yield
        finally:
            task.cancel()


def exit_with(error: BaseException) -> None:
    """Print an error that Meshnet knows as one line and exit; raise any other again."""
    known = known_error(error)
    if known is None:
        raise error
    print_error(known.message)
    sys.exit(EXIT_BAD_INPUT if isinstance(known, InputError) else EXIT_FAILED)


def known_error(error: BaseException) -> MeshnetError | None:
    """The error that Meshnet knows, also out of a group; None where there is none."""
    if isinstance(error, MeshnetError):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((known for inner in error.exceptions if (known := known_error(inner))), None)
    return None
