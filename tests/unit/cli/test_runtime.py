"""What runs beside a command's own work."""

import asyncio

import pytest

from meshnet.cli.runtime import alongside


async def test_it_ends_with_the_block():
    ended = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async with alongside(work(), "work"):
        await asyncio.sleep(0)
        assert not ended.is_set()
    assert ended.is_set()


async def test_its_failure_is_not_lost_though_the_block_would_go_on():
    async def work() -> None:
        raise ValueError("broken")

    with pytest.raises(ExceptionGroup) as told:
        async with asyncio.timeout(5), alongside(work(), "work"):
            await asyncio.Event().wait()
    assert [str(error) for error in told.value.exceptions] == ["broken"]


async def test_a_block_that_is_cancelled_stays_cancelled():
    async def block() -> None:
        async with alongside(asyncio.sleep(60), "work"):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
