"""The engine's thread: one step at a time, and nobody waits for what will not come."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from meshnet.domain.errors import (
    EngineError,
    InternalError,
    NodeNotReadyError,
    ResourceExhaustedError,
)
from meshnet.domain.ids import Digest, RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import Recipe
from meshnet.domain.status import StatusCode
from meshnet.engine.base import (
    DecodeRequest,
    EngineLimits,
    LoadRequest,
    PrefillRequest,
    StepRequest,
    StepResult,
)
from meshnet.engine.fixture import Fault, FaultKind, FixtureEngine
from meshnet.node.plan import StepDone
from meshnet.node.schedule import Pace
from meshnet.node.stepper import NOTED_SECONDS, EngineStepper


class Gated(FixtureEngine):
    """Computes when it is let; remembers whose steps it was given."""

    def __init__(self, faults: Sequence[Fault] = ()) -> None:
        super().__init__(faults)
        recipe = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
        self.load(LoadRequest(None, 0, 2, 2, recipe, EngineLimits(64, 8)))
        self.computing = threading.Event()
        self.gate = threading.Event()
        self.seen: list[str] = []
        self.rows: list[int] = []

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        self.computing.set()
        assert self.gate.wait(5)
        self.seen += [request.key.session_id for request in requests]
        self.rows += [request.rows for request in requests]
        return super().execute(requests)


def request(name: str, rows: int = 1) -> PrefillRequest:
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    tokens = tuple(range(40, 40 + rows))
    return PrefillRequest(SessionKey(RouteSessionId(name), 0), 0, fresh, 0, token_ids=tokens)


def token(name: str, position: int) -> DecodeRequest:
    exact = CacheExpectation(CacheMode.EXACT, position)
    key = SessionKey(RouteSessionId(name), 0)
    return DecodeRequest(key, position, exact, position, token_ids=(65,))


@asynccontextmanager
async def stepping(
    engine: Gated, max_queued: int = 8, pace: Pace | None = None
) -> AsyncIterator[EngineStepper]:
    stepper = EngineStepper(engine, max_queued, pace)
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


TINY_PIECES = Pace(max_gap_seconds=1e-9)


async def test_while_somebody_generates_a_chunk_is_computed_in_pieces_with_the_same_result():
    engine, plain = Gated(), Gated()
    engine.gate.set()
    plain.gate.set()
    async with stepping(engine, pace=TINY_PIECES) as stepper:
        await stepper.run(request("talker"))
        await stepper.run(token("talker", 1))
        done = await stepper.run(request("prompt", 5))
        assert engine.rows[2:] == [1] * 5
        expected = plain.prefill(request("prompt", 5))
        assert (done.result.output, done.result.cache_result) == (
            expected.output,
            expected.cache_result,
        )

        again = await stepper.run(request("prompt", 5))
        assert (again.result.duplicate, again.result.output) == (True, expected.output)
        assert len(engine.rows) == 7, "a chunk that comes again isn't computed again"

        stepper.forget(SessionKey(RouteSessionId("talker"), 0))
        await stepper.run(request("other", 5))
        assert engine.rows[7:] == [5], "nobody generates any more"


async def test_a_talkers_token_comes_between_the_pieces_of_a_prompt():
    engine = Gated()
    engine.gate.set()
    async with stepping(engine, pace=TINY_PIECES) as stepper:
        await stepper.run(request("talker"))
        await stepper.run(token("talker", 1))
        engine.gate.clear()
        engine.computing.clear()
        prompt = asyncio.create_task(stepper.run(request("prompt", 4)))
        await until(engine.computing.is_set)
        talking = asyncio.create_task(stepper.run(token("talker", 2)))
        await asyncio.sleep(0.01)
        engine.gate.set()
        await asyncio.gather(prompt, talking)
    assert engine.seen[2:] == ["prompt", "talker", "prompt", "prompt", "prompt"]


async def test_where_pieces_would_change_bits_a_chunk_stays_whole(monkeypatch):
    engine = Gated()
    engine.gate.set()
    narrow = replace(engine.capabilities(), exact_pieces=(2, 4))
    monkeypatch.setattr(engine, "capabilities", lambda: narrow)
    async with stepping(engine, pace=TINY_PIECES) as stepper:
        await stepper.run(request("talker"))
        await stepper.run(token("talker", 1))
        await stepper.run(request("prompt", 5))
        await stepper.run(request("other", 4))
        await stepper.run(request("single", 1))
    assert engine.rows[2:] == [5, 2, 2, 1]


async def test_a_prompt_that_is_given_up_between_two_pieces_ends_there():
    engine = Gated()
    engine.gate.set()
    async with stepping(engine, pace=TINY_PIECES) as stepper:
        await stepper.run(request("talker"))
        await stepper.run(token("talker", 1))
        engine.gate.clear()
        engine.computing.clear()
        prompt = asyncio.create_task(stepper.run(request("prompt", 9)))
        await until(engine.computing.is_set)
        prompt.cancel()
        await asyncio.wait({prompt})
        engine.gate.set()
        await stepper.run(token("talker", 2))
    assert engine.seen[2:] == ["prompt", "talker"]


def sessions_of_steps(engine: Gated) -> list[int]:
    """How many sessions shared each step that the engine computes from now on."""
    steps: list[int] = []
    execute = engine.execute

    def counted(requests: Sequence[StepRequest]) -> list[StepResult]:
        steps.append(len(requests))
        return execute(requests)

    engine.execute = counted  # type: ignore[method-assign]
    return steps


async def test_steps_that_become_ready_together_run_together():
    engine = Gated()
    engine.gate.set()
    steps = sessions_of_steps(engine)
    async with stepping(engine) as stepper:
        for name in "abc":
            await stepper.run(request(name))
        await asyncio.gather(*(stepper.run(token(name, 1)) for name in "abc"))
    assert steps == [1, 1, 1, 3]


async def test_a_heads_sessions_go_in_as_many_groups_as_there_are_nodes():
    engine = Gated()
    engine.gate.set()
    steps = sessions_of_steps(engine)
    async with stepping(engine) as stepper:
        stepper.give_the_beat(2)
        for name in "abcde":
            await stepper.run(request(name))
            await stepper.run(token(name, 1))
        # What a step teaches is noted a moment later.
        await asyncio.sleep(2 * NOTED_SECONDS)
        steps.clear()
        await asyncio.gather(*(stepper.run(token(name, 2)) for name in "abcde"))
    assert steps == [3, 2]


async def test_the_engine_goes_on_while_the_loop_is_busy():
    engine = Gated()
    async with stepping(engine) as stepper:
        running = [asyncio.create_task(stepper.run(request(name))) for name in "abc"]
        await until(engine.computing.is_set)
        engine.gate.set()
        # Blocks the event loop, as packing a large boundary would.
        deadline = time.monotonic() + 2
        while len(engine.seen) < 3 and time.monotonic() < deadline:
            time.sleep(0.001)  # noqa: ASYNC251
        assert engine.seen == ["a", "b", "c"]
        await asyncio.gather(*running)


async def test_a_submitted_step_is_told_in_the_turn_it_is_done_and_never_once_cancelled():
    engine = Gated([Fault(FaultKind.EXCEPTION, 2)])
    engine.gate.set()
    async with stepping(engine) as stepper:
        for name in "ab":
            await stepper.run(request(name))
        told: list[asyncio.Future[StepDone]] = []
        kept = stepper.submit(token("a", 1), told.append)
        dropped = stepper.submit(token("b", 1), told.append)
        dropped.cancel()
        await until(lambda: bool(told))
        assert told == [kept]
        assert kept.result().result.status.code is StatusCode.ENGINE_FAILED


async def test_work_for_meanwhile_of_a_submitted_step_is_done_during_the_step():
    engine = Gated()
    engine.gate.set()
    async with stepping(engine) as stepper:
        await stepper.run(request("a"))
        engine.gate.clear()
        done: list[str] = []
        stepper.submit(token("a", 1), lambda _: done.append("token"), lambda: done.append("told"))
        await until(lambda: bool(done))
        assert done == ["told"]
        engine.gate.set()
        await until(lambda: len(done) == 2)
        assert done == ["told", "token"]


async def test_a_submitted_step_of_an_engine_that_breaks_is_told_too(monkeypatch):
    engine = Gated()
    engine.gate.set()
    async with stepping(engine) as stepper:
        await stepper.run(request("a"))
        monkeypatch.setattr(engine, "execute", lambda _: [])
        told: list[asyncio.Future[StepDone]] = []
        stepper.submit(token("a", 1), told.append)
        await until(lambda: bool(told))
        with pytest.raises(InternalError):
            told[0].result()
