"""Runs the engine: one thread, one step at a time, made of whatever waits when it falls free."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from meshnet.domain.errors import (
    InternalError,
    NodeNotReadyError,
    ResourceExhaustedError,
    error_from,
)
from meshnet.domain.status import StatusCode
from meshnet.engine.base import ShardEngine, StepRequest, StepResult
from meshnet.node.schedule import choose_step

LOGGER = logging.getLogger(__name__)
BROKEN = frozenset({StatusCode.ENGINE_FAILED, StatusCode.INTERNAL})
MAX_DECODE_ROWS = 32
"""Rows of one decode step at most, also where more of them would be exact."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step's result and how long it waited for the engine."""

    result: StepResult
    queued_nanos: int


@dataclass(slots=True)
class _Waiting:
    request: StepRequest
    arrived: int
    done: asyncio.Future[StepDone]
    meanwhile: Callable[[], None] | None = None


class EngineStepper:
    """Hands steps to the engine's thread. Belongs to the event loop it was made on."""

    def __init__(self, engine: ShardEngine, max_queued: int) -> None:
        self._engine = engine
        self._max_queued = max_queued
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self._waiting: list[_Waiting] = []
        self._running = False
        self._closed = False
        self._last_was_prefill = False
        self.steps_done = 0
        self.last_success: float | None = None
        """Monotonic time of the last step that succeeded; None once the engine failed at one."""

    async def run(
        self, request: StepRequest, meanwhile: Callable[[], None] | None = None
    ) -> StepDone:
        """Compute a step; raises the error that the engine's status stands for.

        ``meanwhile`` is called on the loop while the engine computes, this step or, if that has to
        wait, the one before: work that needn't be done before the step costs no time there.
        """
        self._require_open()
        if len(self._waiting) >= self._max_queued:
            raise ResourceExhaustedError(f"{self._max_queued} steps wait for this node already")
        waiting = _Waiting(request, time.perf_counter_ns(), self._loop.create_future(), meanwhile)
        self._waiting.append(waiting)
        self._start()
        if meanwhile is not None and any(each is waiting for each in self._waiting):
            waiting.meanwhile = None
            meanwhile()
        done = await waiting.done
        if not done.result.status.ok:
            raise error_from(done.result.status)
        return done

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run another of the engine's operations on its thread, between steps."""
        self._require_open()
        return await asyncio.wrap_future(self._thread.submit(function, *args, **kwargs))

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Like :meth:`call`, without waiting for it; an error is logged. Nothing once closed."""
        if not self._closed:
            self._thread.submit(function, *args, **kwargs).add_done_callback(_log_failure)

    def note_success(self) -> None:
        """A step of the engine succeeded now."""
        self.last_success = self._loop.time()

    def close(self) -> None:
        """Take no more work; a step that runs is left to end by itself."""
        self._closed = True
        self._thread.shutdown(wait=False, cancel_futures=True)
        for waiting in self._waiting:
            waiting.done.cancel()
        self._waiting.clear()

    def _require_open(self) -> None:
        if self._closed:
            raise NodeNotReadyError("the node is shutting down")

    def _start(self) -> None:
        self._waiting = [waiting for waiting in self._waiting if not waiting.done.done()]
        if self._running or self._closed or not self._waiting:
            return
        choice = choose_step(
            [waiting.request for waiting in self._waiting],
            min(MAX_DECODE_ROWS, self._engine.capabilities().exact_decode_rows),
            last_was_prefill=self._last_was_prefill,
        )
        chosen = [self._waiting[index] for index in choice.indices]
        taken = set(choice.indices)
        self._waiting = [w for index, w in enumerate(self._waiting) if index not in taken]
        self._last_was_prefill = choice.prefill
        self._running = True
        started = time.perf_counter_ns()
        future = self._thread.submit(self._execute, chosen)
        future.add_done_callback(lambda done: self._hand_over(chosen, started, done))

    def _execute(self, chosen: list[_Waiting]) -> list[StepResult]:
        """On the engine's thread; the loop's turn comes when the engine computes in native code."""
        for waiting in chosen:
            if waiting.meanwhile is not None:
                with contextlib.suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(waiting.meanwhile)
        return self._engine.execute([waiting.request for waiting in chosen])

    def _hand_over(
        self, chosen: list[_Waiting], started: int, future: Future[list[StepResult]]
    ) -> None:
        """Bring a step's end from the engine's thread to the loop, unless that has ended before."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._finish, chosen, started, future)

    def _finish(
        self, chosen: list[_Waiting], started: int, future: Future[list[StepResult]]
    ) -> None:
        self._running = False
        if not future.cancelled():
            failure = future.exception()
            if failure is None and len(future.result()) != len(chosen):
                failure = ValueError(f"{len(future.result())} results of {len(chosen)} steps")
            if failure is None:
                self._deliver(chosen, started, future.result())
            else:
                self._break(chosen, failure)
        else:
            for waiting in chosen:
                waiting.done.cancel()
        self._start()

    def _break(self, chosen: list[_Waiting], failure: BaseException) -> None:
        LOGGER.error("the engine broke its contract", exc_info=failure)
        self.last_success = None
        for waiting in chosen:
            if not waiting.done.done():
                waiting.done.set_exception(InternalError(f"the engine broke: {failure}"))

    def _deliver(self, chosen: list[_Waiting], started: int, results: list[StepResult]) -> None:
        for waiting, result in zip(chosen, results, strict=True):
            if result.status.ok:
                self.steps_done += 1
                self.note_success()
            elif result.status.code in BROKEN:
                self.last_success = None
            if not waiting.done.done():
                waiting.done.set_result(StepDone(result, started - waiting.arrived))


def _log_failure(future: Future[object]) -> None:
    if not future.cancelled() and future.exception() is not None:
        LOGGER.error("an engine operation failed", exc_info=future.exception())
