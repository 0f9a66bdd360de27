"""Several streams as one."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.gateway.fanout import interleaved


class Source:
    """Counts up to ``size``; then raises, if it is to."""

    def __init__(self, size: int, error: Exception | None = None, pauses: int = 1) -> None:
        self.size = size
        self.error = error
        self.pauses = pauses
        self.made = 0
        self.closed = False

    async def events(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(self.size):
                for _ in range(self.pauses):
                    await asyncio.sleep(0)
                self.made += 1
                yield number
            if self.error is not None:
                raise self.error
        finally:
            self.closed = True


def merged(*sources: Source) -> AsyncGenerator[tuple[int, int], None]:
    return interleaved([source.events() for source in sources])


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    pauses=st.lists(st.integers(0, 3), min_size=5, max_size=5),
)
def test_every_event_comes_once_and_in_its_stream_s_order(
    sizes: list[int], pauses: list[int]
) -> None:
    async def run() -> list[tuple[int, int]]:
        sources = [Source(size, pauses=wait) for size, wait in zip(sizes, pauses, strict=False)]
        async with asyncio.timeout(5):
            return [event async for event in merged(*sources)]

    told = asyncio.run(run())
    for index, size in enumerate(sizes):
        assert [number for of, number in told if of == index] == list(range(size))
    assert len(told) == sum(sizes)


@pytest.mark.parametrize("size", [0, 1, 40])
async def test_an_error_of_one_ends_the_others(size: int) -> None:
    failing, others = Source(size, ValueError("gone")), [Source(10**6), Source(10**6)]
    with pytest.raises(ValueError, match="gone"):
        async with asyncio.timeout(5), aclosing(merged(others[0], failing, others[1])) as events:
            async for _ in events:
                await asyncio.sleep(0)
    assert all(source.closed for source in (failing, *others))
    assert failing.made == size


async def test_leaving_early_closes_every_stream() -> None:
    sources = [Source(10**6) for _ in range(3)]
    async with aclosing(merged(*sources)) as events:
        assert await anext(events)
    assert all(source.closed for source in sources)


async def test_a_stream_that_is_always_ready_does_not_crowd_out_another() -> None:
    sources = [Source(10**6, pauses=0), Source(10**6, pauses=1)]
    async with aclosing(merged(*sources)) as events:
        told = [index for index, _ in [await anext(events) for _ in range(100)]]
    assert min(told.count(0), told.count(1)) > 20


async def test_streams_wait_for_a_reader_who_takes_nothing() -> None:
    sources = [Source(10**6) for _ in range(3)]
    async with aclosing(merged(*sources)) as events:
        await anext(events)
        for _ in range(200):
            await asyncio.sleep(0)
        assert sum(source.made for source in sources) <= 1 + len(sources)
