"""Runs the engine: one thread, one step at a time, made of whatever waits when it falls free.

The engine's thread chooses its next step by itself, so that it computes on while the event loop is
busy with packing, sending and receiving.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, ParamSpec, TypeVar

from meshnet.domain.errors import (
    InternalError,
    NodeNotReadyError,
    ResourceExhaustedError,
    error_from,
)
from meshnet.domain.ids import SessionKey
from meshnet.domain.status import StatusCode
from meshnet.engine.base import (
    DecodeRequest,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
)
from meshnet.node.engine_thread import EngineThread
from meshnet.node.figures import NodeFigures
from meshnet.node.pieces import joined, piece_of
from meshnet.node.plan import EnginePlan, Step, StepDone, Waiting
from meshnet.node.schedule import Choice, Cut, Pace, choose_step, lone_decode

LOGGER = logging.getLogger(__name__)
BROKEN = frozenset({StatusCode.ENGINE_FAILED, StatusCode.INTERNAL})
MAX_DECODE_ROWS = 32
"""Rows of one decode step at most, also where more of them would be exact."""
REMEMBERED_CHUNKS = 8
"""Of each session, so many chunks that come again are answered with the first result."""

NOTED_SECONDS = 0.001
"""What a step teaches is noted so long after it: then what it gave is on its way."""

P = ParamSpec("P")
T = TypeVar("T")


class EngineStepper:
    """Hands steps to the engine's thread. Belongs to the event loop it was made on."""

    def __init__(self, engine: ShardEngine, max_queued: int, pace: Pace | None = None) -> None:
        self._engine = engine
        self._max_queued = max_queued
        self._pace = pace or Pace()
        self._loop = asyncio.get_running_loop()
        self._thread = EngineThread()
        self._calls: set[Future[Any]] = set()
        self._plan = EnginePlan()
        self._chunks: dict[SessionKey, OrderedDict[int, StepResult]] = {}
        self.figures = NodeFigures()
        self.steps_done = 0
        self.last_success: float | None = None
        """Monotonic time of the last step that succeeded; None once the engine failed at one."""

    @property
    def queued(self) -> int:
        """Steps that wait for the engine."""
        return len(self._plan.waiting)

    async def run(
        self, request: StepRequest, meanwhile: Callable[[], None] | None = None
    ) -> StepDone:
        """Compute a step; raises the error that the engine's status stands for.

        ``meanwhile`` is called on the loop while the engine computes, this step or, if that has to
        wait, the one before: work that needn't be done before the step costs no time there.
        """
        self._require_open()
        chunks = self._chunks.get(request.key)
        known = None if chunks is None else chunks.get(request.idempotency_step)
        if known is not None:
            self.figures.duplicates += 1
            return StepDone(replace(known, duplicate=True), 0)
        waiting = Waiting(request, time.perf_counter_ns(), self._loop.create_future(), meanwhile)
        if self._enqueue(waiting) and meanwhile is not None:
            meanwhile()
        done = await waiting.done
        if not done.result.status.ok:
            raise error_from(done.result.status)
        if isinstance(request, PrefillRequest):
            self._remember(request, done.result)
        return done

    def submit(
        self,
        request: DecodeRequest,
        take: Callable[[asyncio.Future[StepDone]], None],
        meanwhile: Callable[[], None] | None = None,
    ) -> asyncio.Future[StepDone]:
        """Compute a decode step like :meth:`run`, without a task that waits for it.

        ``take`` is called with the future in the very turn of the loop in which it got its result
        or its error; the result's status may be an error too. Cancel the future to hear nothing.
        """
        self._require_open()
        done: asyncio.Future[StepDone] = self._loop.create_future()
        waiting = Waiting(request, time.perf_counter_ns(), done, meanwhile, take)
        if self._enqueue(waiting) and meanwhile is not None:
            meanwhile()
        return done

    def give_the_beat(self, stages: int) -> None:
        """This node is the head of chains of so many nodes; the latest counts."""
        with self._plan.lock:
            self._plan.stages = stages

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run another of the engine's operations on its thread, between steps."""
        self._require_open()
        answer: Future[T] = Future()
        self._calls.add(answer)
        self._thread.submit(partial(_answer, answer, partial(function, *args, **kwargs)))
        try:
            return await asyncio.wrap_future(answer)
        finally:
            self._calls.discard(answer)

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Like :meth:`call`, without waiting for it, and before any step that is asked for later.

        An error is logged. Nothing happens once closed.
        """
        plan = self._plan
        with plan.lock:
            if plan.closed:
                return
            plan.errands.append(partial(function, *args, **kwargs))
            told, plan.coming = plan.coming, True
        if not told:
            self._next_turn()

    def forget(self, key: SessionKey) -> None:
        """Drop what is remembered of a session that has ended."""
        self._chunks.pop(key, None)
        with self._plan.lock:
            self._plan.forget(key)

    def note_success(self) -> None:
        """A step of the engine succeeded now."""
        self.last_success = self._loop.time()

    def close(self) -> None:
        """Take no more work; a step that runs is left to end by itself."""
        with self._plan.lock:
            self._plan.closed = True
            left, self._plan.waiting = self._plan.waiting, []
        self._thread.close()
        for call in tuple(self._calls):
            call.cancel()
        for waiting in left:
            waiting.done.cancel()

    def _require_open(self) -> None:
        if self._plan.closed:
            raise NodeNotReadyError("the node is shutting down")

    def _remember(self, request: StepRequest, result: StepResult) -> None:
        """Keep a chunk's result: of one computed in pieces the engine knows only those."""
        chunks = self._chunks.setdefault(request.key, OrderedDict())
        chunks[request.idempotency_step] = result
        while len(chunks) > REMEMBERED_CHUNKS:
            chunks.popitem(last=False)

    def _enqueue(self, waiting: Waiting) -> bool:
        """Let a step wait; whether the engine is at another one, so that there is time now."""
        plan = self._plan
        with plan.lock:
            plan.waiting = [each for each in plan.waiting if not each.done.done()]
            about_to_run = 0 if plan.computing else 1
            if len(plan.waiting) >= self._max_queued + about_to_run:
                raise ResourceExhaustedError(f"{self._max_queued} steps wait for this node already")
            plan.waiting.append(waiting)
            if plan.computing:
                waiting.meanwhile = None
            computing, told, plan.coming = plan.computing, plan.coming, True
            others = len(plan.talking) > 1 or not plan.talking
        if not told and others:
            # After this turn of the loop: steps that became ready together run together.
            self._loop.call_soon(self._next_turn)
        elif not told:
            self._next_turn()
        return computing

    def _next_turn(self) -> None:
        self._thread.submit(self._turn)

    def _turn(self) -> None:
        """On the engine's thread: run one step, and come back for the next.

        Between two steps other operations on the engine have their turn.
        """
        self._run_errands()
        chosen: tuple[Waiting, ...] | None = None
        try:
            taken = self._take()
            if taken is None:
                return
            chosen, rows = taken
            step = self._execute(chosen, rows)
            deliver = partial(self._deliver, step, self._settle(step))
        except Exception as error:  # noqa: BLE001 - told to everybody who waits for the step
            deliver = partial(self._break, self._take_all() if chosen is None else chosen, error)
        more = self._more_waits()
        with contextlib.suppress(RuntimeError):  # the loop has ended before
            self._loop.call_soon_threadsafe(deliver)
        if more:
            self._next_turn()

    def _more_waits(self) -> bool:
        """The step is over. Whether to come back at once: a turn for nothing would be in the way of
        the delivery."""
        plan = self._plan
        with plan.lock:
            plan.computing = False
            plan.coming = bool(plan.waiting or plan.errands)
            return plan.coming

    def _run_errands(self) -> None:
        with self._plan.lock:
            errands, self._plan.errands = self._plan.errands, []
            if self._plan.closed:
                return
        for errand in errands:
            try:
                errand()
            except Exception:
                LOGGER.exception("an engine operation failed")

    def _take(self) -> tuple[tuple[Waiting, ...], int] | None:
        """Whose steps the engine does next, and how many rows of them; None if nothing waits."""
        plan = self._plan
        with plan.lock:
            plan.waiting = [each for each in plan.waiting if not each.done.done()]
            if plan.errands and not plan.closed:
                # They came just now, perhaps before a step that waits.
                self._next_turn()
                return None
            if plan.closed or not plan.waiting:
                plan.coming = False
                return None
            choice = self._choose()
            plan.turn = choice.turn
            chosen = tuple(plan.waiting[index] for index in choice.indices)
            taken = set(choice.indices)
            plan.waiting = [each for i, each in enumerate(plan.waiting) if i not in taken]
            plan.computing = True
        return chosen, choice.rows

    def _take_all(self) -> tuple[Waiting, ...]:
        """Everybody who waits, where no step could be chosen."""
        plan = self._plan
        with plan.lock:
            waiting, plan.waiting = plan.waiting, []
        return tuple(waiting)

    def _choose(self) -> Choice:
        plan = self._plan
        only = plan.waiting[0].request
        if len(plan.waiting) == 1 and isinstance(only, DecodeRequest):
            # What a lone reader's token needn't wait for.
            return lone_decode(only.rows, plan.turn)
        held = self._engine.capabilities()
        ready = [waiting.ready(held.exact_pieces) for waiting in plan.waiting]
        cut: Cut | None = None
        most = max((each.rows for each in ready if each.prefill), default=0)
        if most:
            plan.learn()
            plan.talked_since(time.perf_counter() - self._pace.talking_seconds)
        if plan.talking and most:
            least = most if held.exact_pieces is None else held.exact_pieces[0]
            cut = self._pace.cut(plan.costs, plan.decode_rows, least, most)
        rows = plan.most_rows(min(MAX_DECODE_ROWS, held.exact_sessions), prompt=most > 0)
        return choose_step(ready, plan.turn, rows, cut)

    def _execute(self, chosen: tuple[Waiting, ...], rows: int) -> Step:
        for waiting in chosen:
            if waiting.meanwhile is not None:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(waiting.meanwhile)
                waiting.meanwhile = None
        requests = tuple(waiting.request for waiting in chosen)
        if isinstance(requests[0], PrefillRequest):
            requests = (piece_of(requests[0], chosen[0].computed, rows),)
        began = time.perf_counter_ns()
        results = self._engine.execute(requests)
        if len(results) != len(requests):
            raise ValueError(f"{len(results)} results of {len(requests)} steps")
        nanos = time.perf_counter_ns() - began
        return Step(chosen, requests, tuple(results), began, nanos)

    def _settle(self, step: Step) -> list[StepResult | None]:
        """The answers to a step's requests, None for a chunk that isn't done.

        The rest of such a chunk waits for its next turn.
        """
        for waiting in step.chosen:
            waiting.started = step.began if waiting.started is None else waiting.started
        with self._plan.lock:
            self._plan.done.append(step)
        if not step.prefill:
            return list(step.results)
        first, result = step.chosen[0], step.results[0]
        first.results.append(result)
        first.computed += step.rows
        if not result.status.ok or first.computed == first.request.rows:
            return [joined(first.results)]
        with self._plan.lock:
            self._plan.waiting.insert(0, first)
        return [None]

    def _deliver(self, step: Step, answers: Sequence[StepResult | None]) -> None:
        """Tell those who wait; on the loop."""
        for result in step.results:
            if result.status.ok:
                self.steps_done += 1
                self.note_success()
            elif result.status.code in BROKEN:
                self.last_success = None
        for waiting, answer in zip(step.chosen, answers, strict=True):
            if answer is not None and not waiting.done.done():
                queued = (waiting.started or step.began) - waiting.arrived
                waiting.done.set_result(StepDone(answer, queued))
                if waiting.take is not None:
                    waiting.take(waiting.done)
            elif answer is None and self._plan.closed:
                waiting.done.cancel()
        self._loop.call_later(NOTED_SECONDS, self._note, step)

    def _note(self, step: Step) -> None:
        with self._plan.lock:
            self._plan.learn()
        waits = [step.began - waiting.arrived for waiting in step.chosen]
        self.figures.stepped(step.requests, step.results, waits, step.nanos)

    def _break(self, chosen: Sequence[Waiting], failure: Exception) -> None:
        LOGGER.error("the engine broke its contract", exc_info=failure)
        self.last_success = None
        for waiting in chosen:
            if not waiting.done.done():
                waiting.done.set_exception(InternalError(f"the engine broke: {failure}"))
                if waiting.take is not None:
                    waiting.take(waiting.done)


def _answer(answer: Future[T], function: Callable[[], T]) -> None:
    if not answer.set_running_or_notify_cancel():
        return
    try:
        answer.set_result(function())
    except BaseException as error:  # noqa: BLE001 - raised where it is waited for
        answer.set_exception(error)
