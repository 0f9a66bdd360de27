"""Several generations of one request, run at once and told as one stream of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

EventT = TypeVar("EventT")


async def interleaved(
    streams: Sequence[AsyncGenerator[EventT, None]],
) -> AsyncGenerator[tuple[int, EventT], None]:
    """Each event with its stream's index, in the order in which they come.

    Every stream has at most one event waiting for the reader, so none can crowd out another.
    Ends when all streams have. An error of one closes them all and is raised; closing this closes
    them too.
    """
    if len(streams) == 1:
        async with aclosing(streams[0]) as only:
            async for event in only:
                yield 0, event
        return
    ahead = {asyncio.create_task(_next(stream)): index for index, stream in enumerate(streams)}
    try:
        while ahead:
            done, _ = await asyncio.wait(ahead, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=ahead.__getitem__):
                found = task.result()
                index = ahead.pop(task)
                if found:
                    ahead[asyncio.create_task(_next(streams[index]))] = index
                    yield index, found[0]
    finally:
        for task in ahead:
            task.cancel()
        await asyncio.gather(*ahead, return_exceptions=True)
        await asyncio.gather(*(stream.aclose() for stream in streams))


async def _next(stream: AsyncGenerator[EventT, None]) -> tuple[EventT] | None:
    """The stream's next event; None at its end."""
    async for event in stream:
        return (event,)
    return None
