"""The queues between a seam's users and its stream."""

from __future__ import annotations

import asyncio

import pytest

from meshnet.domain.errors import CacheMissError, NodeLostError
from meshnet.transport.queues import SERIALISED_WEIGHT, Inbox, Outbox


async def test_an_inbox_gives_items_in_order_and_then_its_end() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    inbox.put(2)
    inbox.end()
    inbox.put(3)
    assert [await inbox.get() for _ in range(4)] == [1, 2, None, None]


async def test_an_inbox_raises_the_first_error_it_ended_with_each_time() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.end(CacheMissError("gone", held="3"))
    inbox.end(NodeLostError("later"))
    for _ in range(2):
        with pytest.raises(CacheMissError, match="gone") as caught:
            await inbox.get()
        assert caught.value.details == {"held": "3"}


async def test_a_waiting_taker_is_woken_by_an_item_and_by_the_end() -> None:
    inbox: Inbox[int] = Inbox()
    taker = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(7)
    assert await asyncio.wait_for(taker, 1) == 7
    taker = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.end()
    assert await asyncio.wait_for(taker, 1) is None


async def test_a_cancelled_get_loses_nothing() -> None:
    inbox: Inbox[int] = Inbox()
    taker = asyncio.create_task(inbox.get())
    await asyncio.sleep(0)
    inbox.put(7)
    taker.cancel()
    await asyncio.wait({taker})
    assert taker.cancelled()
    assert await inbox.get() == 7


async def test_a_full_inbox_makes_the_putter_wait_until_there_is_room() -> None:
    inbox: Inbox[int] = Inbox(bound=10)
    inbox.put(1, weight=9)
    await asyncio.wait_for(inbox.room(), 1)
    inbox.put(2, weight=9)
    putter = asyncio.create_task(inbox.room())
    await asyncio.sleep(0)
    assert not putter.done()
    await inbox.get()
    await asyncio.wait_for(putter, 1)


async def test_the_end_of_an_inbox_frees_a_waiting_putter() -> None:
    inbox: Inbox[int] = Inbox(bound=1)
    inbox.put(1, weight=1)
    putter = asyncio.create_task(inbox.room())
    await asyncio.sleep(0)
    inbox.end()
    await asyncio.wait_for(putter, 1)


async def test_discarding_drops_what_waits_but_not_the_end() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.put(1)
    inbox.end()
    inbox.discard()
    assert await inbox.get() is None


class _Stream:
    """Records writes; each waits until it is let through."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.gate = asyncio.Event()

    async def write(self, frame: bytes) -> None:
        self.written.append(frame)
        await self.gate.wait()


async def _run(outbox: Outbox, stream: _Stream) -> list[bytes]:
    """Start the writer, let it get stuck in its first write, then let everything through."""
    writer = asyncio.create_task(outbox.run())
    await asyncio.sleep(0)
    stream.gate.set()
    outbox.close()
    await asyncio.wait_for(writer, 1)
    return stream.written


async def test_a_frame_leaves_at_once_and_alone_when_nothing_is_under_way() -> None:
    stream = _Stream()
    outbox = Outbox(stream.write, 100)
    writer = asyncio.create_task(outbox.run())
    outbox.put(b"a", int)
    await asyncio.sleep(0)
    assert stream.written == [b"a"]
    outbox.put(b"b", int)
    stream.gate.set()
    outbox.close()
    await asyncio.wait_for(writer, 1)
    assert stream.written == [b"a", b"b"]


async def test_frames_of_one_kind_that_queued_up_leave_as_one() -> None:
    stream = _Stream()
    outbox = Outbox(stream.write, 100)
    for frame, kind in ((b"x", None), (b"a", int), (b"b", int), (b"c", str), (b"d", int)):
        outbox.put(frame, kind)
    assert await _run(outbox, stream) == [b"x", b"ab", b"c", b"d"]


async def test_frames_without_a_kind_are_never_merged() -> None:
    stream = _Stream()
    outbox = Outbox(stream.write, 100)
    for frame in (b"a", b"b", b"c"):
        outbox.put(frame, None)
    assert await _run(outbox, stream) == [b"a", b"b", b"c"]


async def test_merging_stops_at_the_bound() -> None:
    stream = _Stream()
    outbox = Outbox(stream.write, 5)
    for frame in (b"aaa", b"bb", b"c", b"dddddddd", b"e"):
        outbox.put(frame, int)
    assert await _run(outbox, stream) == [b"aaabb", b"c", b"dddddddd", b"e"]


async def test_a_failed_write_ends_the_writer() -> None:
    async def write(frame: bytes) -> None:
        raise ConnectionResetError

    outbox = Outbox(write, 5)
    outbox.put(b"a", None)
    with pytest.raises(ConnectionResetError):
        await asyncio.wait_for(outbox.run(), 1)


async def test_a_drain_gets_what_waits_and_then_each_item_as_it_is_put() -> None:
    inbox: Inbox[int] = Inbox(2)
    inbox.put(1, 1)
    inbox.put(2, 1)
    taken: list[int] = []
    draining = asyncio.create_task(inbox.drain(taken.append))
    await asyncio.wait_for(inbox.room(), 1)
    await asyncio.sleep(0)
    assert taken == [1, 2]
    inbox.put(3, 5)
    assert taken == [1, 2, 3], "in the very call"
    await asyncio.wait_for(inbox.room(), 1)
    inbox.end()
    inbox.put(4)
    await asyncio.wait_for(draining, 1)
    assert taken == [1, 2, 3]


async def test_a_drain_raises_what_the_inbox_ended_with_or_its_taker_raised() -> None:
    inbox: Inbox[int] = Inbox()
    inbox.end(CacheMissError("gone"))
    with pytest.raises(CacheMissError, match="gone"):
        await inbox.drain(lambda _: None)

    def refuse(item: int) -> None:
        raise NodeLostError(str(item))

    inbox = Inbox()
    draining = asyncio.create_task(inbox.drain(refuse))
    await asyncio.sleep(0)
    inbox.put(7)
    with pytest.raises(NodeLostError, match="7"):
        await draining
    inbox.put(8)
    assert await inbox.get() == 8


async def test_a_cancelled_drain_loses_nothing() -> None:
    inbox: Inbox[int] = Inbox()
    taken: list[int] = []
    draining = asyncio.create_task(inbox.drain(taken.append))
    await asyncio.sleep(0)
    inbox.put(1)
    draining.cancel()
    await asyncio.wait({draining})
    inbox.put(2)
    assert (taken, await inbox.get()) == ([1], 2)


async def test_an_outbox_knows_the_weight_of_what_waits() -> None:
    stream = _Stream()
    outbox = Outbox(stream.write, 100)
    assert outbox.weight == 0
    for frame in (b"aaa", b"bb", b"c"):
        outbox.put(frame, int)
    whole = outbox.weight
    assert whole == 6 + 3 * SERIALISED_WEIGHT
    outbox.put(b"d" * 50, None)
    outbox.discard()
    assert outbox.weight == 0
    for frame in (b"aaa", b"bb", b"c"):
        outbox.put(frame, int)
    assert await _run(outbox, stream) == [b"aaabbc"]
    assert outbox.weight == 0
