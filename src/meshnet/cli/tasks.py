"""Tasks of a machine's agent: ended, waited for, and their faults raised."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence


def cancel(task: asyncio.Task[None]) -> None:
    """End a task, unless it is ending already."""
    # A second cancel would reach the clearing up that the first one began.
    if not task.cancelling():
        task.cancel()


def raise_faults(tasks: Iterable[asyncio.Task[None]]) -> None:
    """What nobody expected to go wrong ends the agent, rather than leave it waiting for ever."""
    for task in tasks:
        if task.done() and not task.cancelled():
            task.result()


def going_on(
    tasks: Sequence[asyncio.Task[None]], work: Coroutine[object, object, None]
) -> list[asyncio.Task[None]]:
    """Those of the tasks that have not ended well, and last of all one that does ``work``."""
    kept = [it for it in tasks if not it.done() or not (it.cancelled() or it.exception() is None)]
    return [*kept, asyncio.create_task(work)]


async def over(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Wait until all of the tasks have ended, however."""
    waiting = list(tasks)
    if waiting:
        await asyncio.wait(waiting)
