"""The engine's thread: one step at a time, and nobody waits for what will not come."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest

from meshnet.domain.errors import (
    EngineError,
    InternalError,
    NodeNotReadyError,
    ResourceExhaustedError,
)
from meshnet.domain.frames import SessionKey
from meshnet.domain.ids import Digest, RouteSessionId
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest, PrefillRequest, StepRequest, StepResult
from meshnet.engine.fixture import Fault, FaultKind, FixtureEngine
from meshnet.node.stepper import EngineStepper


class Gated(FixtureEngine):
    """Computes when it is let; remembers whose steps it was given."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        super().__init__(faults)
        recipe = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
        self.load(LoadRequest(None, 0, 2, 2, recipe, EngineLimits(64, 8)))
        self.computing = threading.Event()
        self.gate = threading.Event()
        self.seen: list[str] = []

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        self.computing.set()
        assert self.gate.wait(5)
        self.seen += [request.key.session_id for request in requests]
        return super().execute(requests)


def request(name: str) -> PrefillRequest:
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    return PrefillRequest(SessionKey(RouteSessionId(name), 0), 0, fresh, 0, token_ids=(1,))


@asynccontextmanager
async def stepping(engine: Gated, max_queued: int = 8) -> AsyncIterator[EngineStepper]:
    stepper = EngineStepper(engine, max_queued)
    try:
        yield stepper
    finally:
        engine.gate.set()
        stepper.close()


def proven(stepper: EngineStepper) -> bool:
    return stepper.last_success is not None


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(2):
        while not happened():  # noqa: ASYNC110 - what is waited for is on a thread
            await asyncio.sleep(0.001)


async def test_steps_that_wait_for_too_many_others_are_refused():
    engine = Gated()
    async with stepping(engine, max_queued=2) as stepper:
        running = [asyncio.create_task(stepper.run(request(name))) for name in "abc"]
        await until(engine.computing.is_set)
        with pytest.raises(ResourceExhaustedError, match="2 steps"):
            await stepper.run(request("d"))
        engine.gate.set()
        await asyncio.gather(*running)
    assert engine.seen == ["a", "b", "c"]


async def test_a_step_nobody_waits_for_any_more_isnt_computed():
    engine = Gated()
    async with stepping(engine) as stepper:
        running = [asyncio.create_task(stepper.run(request(name))) for name in "abc"]
        await until(engine.computing.is_set)
        running[1].cancel()
        engine.gate.set()
        await asyncio.wait(running)
    assert engine.seen == ["a", "c"]


async def test_work_for_meanwhile_is_done_during_the_step():
    engine = Gated()
    async with stepping(engine) as stepper:
        done: list[str] = []
        running = asyncio.create_task(stepper.run(request("a"), lambda: done.append("told")))
        await until(lambda: bool(done))
        assert not running.done()
        engine.gate.set()
        await running
    assert done == ["told"]


async def test_work_for_meanwhile_doesnt_wait_for_the_step_before():
    engine = Gated()
    async with stepping(engine) as stepper:
        first = asyncio.create_task(stepper.run(request("a")))
        await until(engine.computing.is_set)
        done: list[str] = []
        second = asyncio.create_task(stepper.run(request("b"), lambda: done.append("told")))
        await until(lambda: bool(done))
        assert engine.seen == []
        engine.gate.set()
        await asyncio.gather(first, second)
    assert done == ["told"]


async def test_a_stepper_that_is_closed_says_so():
    engine = Gated()
    async with stepping(engine) as stepper:
        waiting = [asyncio.create_task(stepper.run(request(name))) for name in "ab"]
        await until(engine.computing.is_set)
        stepper.close()
        engine.gate.set()
        await asyncio.wait(waiting, timeout=2)
        assert waiting[1].cancelled(), "what waited is given up"
        with pytest.raises(NodeNotReadyError):
            await stepper.run(request("c"))
        with pytest.raises(NodeNotReadyError):
            await stepper.call(engine.capabilities)
        stepper.post(engine.capabilities)


@pytest.mark.parametrize("breach", ["raises", "loses a result"])
async def test_an_engine_that_breaks_its_contract_fails_its_steps_and_is_asked_again(
    breach, monkeypatch, caplog
):
    engine = Gated()
    engine.gate.set()

    def broken(_: Sequence[StepRequest]) -> list[StepResult]:
        if breach == "raises":
            raise ZeroDivisionError("oh")
        return []

    async with stepping(engine) as stepper:
        await stepper.run(request("a"))
        monkeypatch.setattr(engine, "execute", broken)
        with pytest.raises(InternalError):
            await stepper.run(request("b"))
        assert not proven(stepper)
        monkeypatch.undo()
        await stepper.run(request("c"))
        assert proven(stepper)
    assert "broke its contract" in caplog.text


async def test_a_failed_step_ends_the_proof_that_the_engine_works():
    engine = Gated([Fault(FaultKind.EXCEPTION, 1), Fault(FaultKind.MEMORY_PRESSURE, 3)])
    engine.gate.set()
    async with stepping(engine) as stepper:
        await stepper.run(request("a"))
        with pytest.raises(EngineError):
            await stepper.run(request("b"))
        assert not proven(stepper)
        await stepper.run(request("c"))
        with pytest.raises(ResourceExhaustedError):
            await stepper.run(request("d"))
        assert proven(stepper), "a full engine isn't a broken one"
        assert stepper.steps_done == 2


async def test_an_error_of_posted_work_is_logged(caplog):
    engine = Gated()

    def fails() -> None:
        raise ZeroDivisionError("posted")

    async with stepping(engine) as stepper:
        stepper.post(fails)
        await stepper.call(engine.capabilities)
    assert "an engine operation failed" in caplog.text
