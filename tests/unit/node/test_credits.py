"""Credits: taken one by one, given in any number, waited for when there are none."""

import asyncio

from meshnet.node.credits import Credits


async def test_what_was_given_can_be_taken_and_no_more():
    purse = Credits(2)
    purse.add(1)
    for _ in range(3):
        await asyncio.wait_for(purse.take(), 0.5)
    waiting = asyncio.create_task(purse.take())
    await asyncio.sleep(0)
    assert not waiting.done()
    purse.add(1)
    await asyncio.wait_for(waiting, 0.5)


async def test_billions_are_given_at_once():
    purse = Credits()
    purse.add(2**32 - 1)
    purse.add(2**32 - 1)
    await asyncio.wait_for(purse.take(), 0.1)


async def test_a_wait_that_is_cancelled_takes_nothing():
    purse = Credits()
    waiting = asyncio.create_task(purse.take())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    purse.add(1)
    await asyncio.wait_for(purse.take(), 0.5)
