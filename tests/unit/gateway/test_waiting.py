"""Generations where there is room for fewer."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import MeshnetError, NodeLostError, ResourceExhaustedError
from meshnet.domain.generation import GeneratedToken
from meshnet.gateway import waiting
from meshnet.gateway.fair import Party, QueueBounds
from meshnet.gateway.fanout import interleaved
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.waiting import Event, WaitingRoom
from meshnet.node.seats import LACKING, ROOM
from meshnet.session.service import Opened, TextDelta, TextRequest
from tests.support.scripted_model import OPENED

REQUEST = TextRequest((1, 2, 3), max_new_tokens=4)


def token(number: int) -> TextDelta:
    return TextDelta("", (GeneratedToken(number, number),))


def full() -> ResourceExhaustedError:
    return ResourceExhaustedError("full", **{LACKING: ROOM})


class Nodes:
    """Let so many generations run at once, and refuse the others."""

    def __init__(self, places: int) -> None:
        self.places = places
        self.most = 0
        self.begun: list[str] = []
        self.used = 0

    async def generate(
        self, size: int, request: TextRequest, *, name: str = ""
    ) -> AsyncGenerator[Event, None]:
        await asyncio.sleep(0)
        if self.used >= self.places:
            raise full()
        self.used += 1
        self.begun.append(name)
        self.most = max(self.most, self.used)
        if request.on_open is not None:
            request.on_open(OPENED)
        try:
            for number in range(size):
                await asyncio.sleep(0)
                yield token(number)
        finally:
            self.used -= 1


def room_of(bounds: QueueBounds | None = None) -> WaitingRoom:
    return WaitingRoom("m", bounds or QueueBounds(), GatewayFigures())


async def read(events: AsyncGenerator[Event, None]) -> int:
    return len([event async for event in events])


@given(places=st.integers(1, 5), sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_all_choices_are_answered_whatever_room_there_is_and_without_a_queue(
    places: int, sizes: list[int]
) -> None:
    nodes = Nodes(places)

    async def answered() -> list[tuple[int, Event]]:
        room, party = room_of(QueueBounds(0)), Party("k")
        streams = [room.admitted(party, REQUEST, partial(nodes.generate, size)) for size in sizes]
        async with asyncio.timeout(5):
            return [event async for event in interleaved(streams)]

    told = asyncio.run(answered())
    found = sorted((index, event.tokens[0].position) for index, event in told)  # type: ignore[union-attr]
    assert found == [(index, n) for index, size in enumerate(sizes) for n in range(size)]
    assert nodes.most <= places


@pytest.mark.parametrize("count", [1, 2, 5])
async def test_without_room_and_without_a_queue_all_are_refused_at_once(count: int) -> None:
    room, party, nodes = room_of(QueueBounds(0)), Party("k"), Nodes(0)
    streams = [room.admitted(party, REQUEST, partial(nodes.generate, 3)) for _ in range(count)]
    with pytest.raises(ResourceExhaustedError):
        async with asyncio.timeout(1):
            async for _ in interleaved(streams):
                pass


async def test_requests_wait_for_room_that_comes_from_elsewhere() -> None:
    room, nodes = room_of(), Nodes(0)
    reading = asyncio.create_task(
        read(room.admitted(Party("k"), REQUEST, partial(nodes.generate, 3)))
    )
    await asyncio.sleep(0.05)
    assert not reading.done()
    nodes.places = 1
    async with asyncio.timeout(5):
        assert await reading == 3


async def test_a_light_key_is_next_however_many_requests_another_has_waiting() -> None:
    room, nodes = room_of(QueueBounds(200, 200)), Nodes(2)

    async def ask(key: str) -> int:
        return await read(room.admitted(Party(key), REQUEST, partial(nodes.generate, 4, name=key)))

    heavy = [asyncio.create_task(ask("heavy")) for _ in range(100)]
    while len(nodes.begun) < 10:  # noqa: ASYNC110 - what is waited for has no event
        await asyncio.sleep(0)
    before = len(nodes.begun)
    light = asyncio.create_task(ask("light"))
    async with asyncio.timeout(20):
        await asyncio.gather(light, *heavy)
    # Those that run when it comes may end together, and one more of the other key's may begin.
    assert nodes.begun.index("light") - before <= 2


async def test_who_waits_too_long_is_told_when_to_come_back() -> None:
    room, nodes = room_of(QueueBounds(seconds=0.05)), Nodes(0)
    with pytest.raises(ResourceExhaustedError, match=r"waited 0.05 s") as caught:
        async with asyncio.timeout(5):
            await read(room.admitted(Party("k"), REQUEST, partial(nodes.generate, 3)))
    assert float(caught.value.details["retry_after_seconds"]) == 1.0


async def test_who_leaves_while_waiting_leaves_nothing_behind() -> None:
    room, nodes = room_of(QueueBounds(1)), Nodes(0)
    ask: Callable[[], asyncio.Task[int]] = lambda: asyncio.create_task(  # noqa: E731
        read(room.admitted(Party("k"), REQUEST, partial(nodes.generate, 3)))
    )
    for _ in range(3):
        task = ask()
        await asyncio.sleep(0.03)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
    nodes.places = 1
    async with asyncio.timeout(5):
        assert await ask() == 3
    assert nodes.used == 0


async def test_the_refusals_of_one_that_waits_give_it_no_more_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "LONGEST_PROBE_SECONDS", 0.02)
    room, nodes = room_of(QueueBounds(seconds=0.2)), Nodes(0)
    with pytest.raises(ResourceExhaustedError, match=r"waited 0.2 s"):
        async with asyncio.timeout(1):
            await read(room.admitted(Party("k"), REQUEST, partial(nodes.generate, 3)))


async def test_choices_wait_for_one_another_longer_than_others_may_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(waiting, "LOOK_SECONDS", 0.01)
    room, party, nodes = room_of(QueueBounds(seconds=0.05)), Party("k"), Nodes(1)

    def free() -> None:
        nodes.used -= 1

    async def slow(request: TextRequest) -> AsyncGenerator[Event, None]:
        async with aclosing(nodes.generate(3, request)) as events:
            async for event in events:
                await asyncio.sleep(0.04)
                yield event
        # Its place comes free a little later.
        nodes.used += 1
        asyncio.get_running_loop().call_later(0.01, free)

    streams = [room.admitted(party, REQUEST, slow) for _ in range(4)]
    async with asyncio.timeout(5):
        assert len([event async for event in interleaved(streams)]) == 12


async def test_without_a_queue_one_refusal_closes_nothing() -> None:
    room, nodes = room_of(QueueBounds(0)), Nodes(0)
    with pytest.raises(ResourceExhaustedError):
        await read(room.admitted(Party("k"), REQUEST, partial(nodes.generate, 3)))
    nodes.places = 1
    assert await read(room.admitted(Party("k"), REQUEST, partial(nodes.generate, 3))) == 3


@pytest.mark.parametrize("when", ["opened", "begun"])
async def test_what_fails_after_its_beginning_is_not_begun_again(when: str) -> None:
    begun = 0

    async def fails(request: TextRequest) -> AsyncGenerator[Event, None]:
        nonlocal begun
        begun += 1
        if when == "begun":
            yield token(1)
        elif request.on_open is not None:
            request.on_open(OPENED)
        raise full()

    with pytest.raises(ResourceExhaustedError):
        async with asyncio.timeout(1):
            await read(room_of().admitted(Party("k"), REQUEST, fails))
    assert begun == 1


async def test_who_leaves_during_its_prompt_has_used_it_but_for_cached_tokens() -> None:
    room, nodes = room_of(), Nodes(0)
    told: list[Opened] = []

    async def opens(cached: int, request: TextRequest) -> AsyncGenerator[Event, None]:
        assert request.on_open is not None
        request.on_open(replace(OPENED, cached_tokens=cached))
        await asyncio.Event().wait()
        yield token(1)

    async def opened(key: str, cached: int) -> asyncio.Task[int]:
        request, before = replace(REQUEST, on_open=told.append), len(told)
        task = asyncio.create_task(read(room.admitted(Party(key), request, partial(opens, cached))))
        while len(told) == before:  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0)
        return task

    # While somebody stays, what others used is remembered.
    staying = await opened("staying", 0)
    for key, cached in (("whole", 0), ("cached", 2)):
        leaving = await opened(key, cached)
        leaving.cancel()
        await asyncio.wait((leaving,))
    back = [
        asyncio.create_task(
            read(room.admitted(Party(key), REQUEST, partial(nodes.generate, 2, name=key)))
        )
        for key in ("whole", "cached")
    ]
    await asyncio.sleep(0.01)
    nodes.places = 1
    async with asyncio.timeout(5):
        await asyncio.gather(*back)
    staying.cancel()
    await asyncio.wait((staying,))
    assert nodes.begun == ["cached", "whole"]
    assert [each.cached_tokens for each in told] == [0, 0, 2]


@pytest.mark.parametrize(
    "error", [NodeLostError("gone"), ResourceExhaustedError("the process doesn't start")]
)
async def test_another_error_is_nobody_s_to_wait_for(error: MeshnetError) -> None:
    async def fails(_request: TextRequest) -> AsyncGenerator[Event, None]:
        for number in range(2):
            if number == 0:
                raise error
            yield token(number)

    with pytest.raises(type(error)) as caught:
        async with asyncio.timeout(1):
            await read(room_of().admitted(Party("k"), REQUEST, fails))
    assert caught.value is error
