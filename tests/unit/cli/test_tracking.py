"""A tracker's tick: what it must not hold up, and what ends it."""

import asyncio
import threading

import pytest

from meshnet.cli import tracking
from meshnet.cli.tracking import _replan, _tick
from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError
from meshnet.tracker import messages as msg
from meshnet.tracker import plan as plan_module
from meshnet.tracker.service import TrackerService
from tests.support.identities import AUTHORITY
from tests.support.trackers import OFFER, MemoryStore


@pytest.fixture
def service() -> TrackerService:
    made = TrackerService(MemoryStore(), AUTHORITY)
    made.offer(OFFER)
    return made


async def test_others_are_served_while_it_plans(service, monkeypatch):
    planned, go = threading.Event(), threading.Event()

    def slow(*_about):
        planned.set()
        assert go.wait(5.0), "the event loop stood still"
        return ()

    monkeypatch.setattr(plan_module, "plan", slow)
    task = asyncio.create_task(_replan(service))
    async with asyncio.timeout(3.0):
        while not planned.is_set():  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        go.set()
        await task


async def test_a_plan_for_a_cluster_that_was_is_not_used(service):
    draft = service.draft()
    service.issue_token(msg.TokenRequest())
    before = service.state
    assert not service.settle(draft, draft.events())
    assert service.state is before
    again = service.draft()
    assert service.settle(again, again.events())


async def test_a_cluster_that_changes_all_the_time_is_planned_for_in_the_end(service, monkeypatch):
    plans: list[object] = []

    def overtaken(*about):
        plans.append(about)
        service.issue_token(msg.TokenRequest())
        return ()

    monkeypatch.setattr(plan_module, "plan", overtaken)
    await _replan(service)
    assert len(plans) == tracking.PLANS_IN_VAIN + 1


@pytest.fixture
def failing(service, monkeypatch):
    """A tick whose plans can't be written down, by the errors given, one after another."""
    monkeypatch.setattr(tracking, "TICK_SECONDS", 0.001)
    errors: list[Exception] = []

    async def replan(_service):
        raise errors.pop(0)

    monkeypatch.setattr(tracking, "_replan", replan)
    return errors


async def test_another_tracker_on_the_same_store_ends_this_one(service, failing, caplog):
    failing += [
        NodeNotReadyError("the disk is full"),
        InvalidArgumentError("store", "another tracker writes to it"),
    ]
    async with asyncio.timeout(3.0):
        with pytest.raises(InvalidArgumentError, match="another tracker writes"):
            await _tick(service, lambda: None)
    assert "the disk is full" in caplog.text
