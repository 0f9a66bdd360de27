"""After each test here no task is left on the loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

TASKS_SECONDS = 1.0


@pytest.fixture(autouse=True)
async def no_tasks_left() -> AsyncIterator[None]:
    """Fail a test that leaves a task behind."""
    before = asyncio.all_tasks()
    yield
    left = asyncio.all_tasks() - before
    left = {task for task in left if task is not asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=TASKS_SECONDS)
    assert not left, f"tasks left: {left}"
