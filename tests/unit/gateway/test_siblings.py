"""Several generations where there is room for fewer."""

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import NodeLostError, ResourceExhaustedError
from meshnet.gateway.fanout import interleaved
from meshnet.gateway.siblings import Siblings


class Room:
    """Lets so many generations run at once, and refuses the others."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.most = 0
        self.attempts = 0
        self._used = 0

    async def generate(self, size: int, wait: int = 1) -> AsyncGenerator[int, None]:
        self.attempts += 1
        await asyncio.sleep(0)
        if self._used >= self.places:
            raise ResourceExhaustedError("full")
        self._used += 1
        self.most = max(self.most, self._used)
        try:
            for number in range(size):
                for _ in range(wait):
                    await asyncio.sleep(0)
                yield number
        finally:
            self._used -= 1


async def answered(room: Room, sizes: list[int], wait: int = 1) -> list[tuple[int, int]]:
    siblings = Siblings()
    streams = [siblings.admitted(partial(room.generate, size, wait)) for size in sizes]
    async with asyncio.timeout(5):
        return [event async for event in interleaved(streams)]


@given(
    places=st.integers(1, 5),
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12),
    wait=st.integers(0, 3),
)
def test_all_are_answered_whatever_room_there_is(places: int, sizes: list[int], wait: int) -> None:
    room = Room(places)
    told = asyncio.run(answered(room, sizes, wait))
    assert sorted(told) == [(index, n) for index, size in enumerate(sizes) for n in range(size)]
    assert room.most <= places
    # Nobody asks again before another has ended.
    assert room.attempts <= len(sizes) * (len(sizes) + 1)


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_without_any_room_all_are_refused_at_once(count: int) -> None:
    with pytest.raises(ResourceExhaustedError):
        await answered(Room(0), [3] * count)


async def test_what_fails_after_its_beginning_is_not_begun_again() -> None:
    begun = 0

    async def fails() -> AsyncGenerator[int, None]:
        nonlocal begun
        begun += 1
        yield 1
        raise ResourceExhaustedError("full")

    siblings = Siblings()
    room = Room(1)
    streams = [siblings.admitted(fails), siblings.admitted(partial(room.generate, 50))]
    with pytest.raises(ResourceExhaustedError):
        async for _ in interleaved(streams):
            pass
    assert begun == 1


async def test_another_error_is_nobody_s_to_wait_for() -> None:
    async def fails() -> AsyncGenerator[int, None]:
        for number in range(2):
            if number == 0:
                raise NodeLostError("gone")
            yield number

    siblings = Siblings()
    with pytest.raises(NodeLostError):
        async for _ in siblings.admitted(fails):
            pass
