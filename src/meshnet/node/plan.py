"""What waits for the engine, and what the choice of its next step goes by."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from meshnet.domain.ids import SessionKey
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.engine.base import PrefillRequest, StepRequest, StepResult
from meshnet.node.groups import Away, most_decode_rows
from meshnet.node.schedule import Ready, StepCosts, Turn

REMEMBERED_ENDS = 64
"""Sessions that ended last. Their steps that nothing was learnt from yet are no more than that."""


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step's result and how long it waited for the engine."""

    result: StepResult
    queued_nanos: int


@dataclass(slots=True)
class Waiting:
    """A session's step, and who waits for it."""

    request: StepRequest
    arrived: int
    done: asyncio.Future[StepDone]
    meanwhile: Callable[[], None] | None = None
    take: Callable[[asyncio.Future[StepDone]], None] | None = None
    started: int | None = None
    computed: int = 0
    """Rows of a chunk whose pieces ran already."""
    results: list[StepResult] = field(default_factory=list)

    def ready(self, exact_pieces: tuple[int, int] | None) -> Ready:
        """The step as the scheduler sees it."""
        request = self.request
        prefill = isinstance(request, PrefillRequest)
        left = request.rows - self.computed
        least, most = exact_pieces or (1, 0)
        divisible = prefill and least <= request.rows <= most
        return Ready(request.key, left, prefill, least if divisible else 0)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine: whose requests, and their results in the same order."""

    chosen: tuple[Waiting, ...]
    requests: tuple[StepRequest, ...]
    results: tuple[StepResult, ...]
    began: int
    """By ``time.perf_counter_ns``."""
    nanos: int

    @property
    def ended(self) -> float:
        """By ``time.perf_counter``."""
        return (self.began + self.nanos) / 1e9

    @property
    def rows(self) -> int:
        """Of all requests together."""
        return sum(request.rows for request in self.requests)

    @property
    def prefill(self) -> bool:
        """Whether it is a chunk, or a piece of one."""
        return isinstance(self.requests[0], PrefillRequest)


@dataclass(slots=True)
class EnginePlan:
    """What the engine's thread and the loop share; only with its lock held."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    waiting: list[Waiting] = field(default_factory=list)
    errands: list[Callable[[], object]] = field(default_factory=list)
    """Other operations on the engine, for which nobody waits."""
    turn: Turn = field(default_factory=Turn)
    costs: StepCosts = field(default_factory=StepCosts)
    away: Away = field(default_factory=Away)
    talking: dict[SessionKey, float] = field(default_factory=dict)
    """When each session that generates had its last decode step, by ``time.perf_counter``."""
    gone: OrderedDict[SessionKey, float] = field(default_factory=OrderedDict)
    """When sessions ended; the last of them."""
    stages: int = 1
    """Nodes of the chain whose beat this one gives; 1 on those that only follow."""
    decode_rows: int = 1
    """Rows of the last decode step."""
    done: list[Step] = field(default_factory=list)
    """Steps that nothing was learnt from yet."""
    computing: bool = False
    """Whether the engine is at a step."""
    coming: bool = False
    """Whether the engine's thread will look at what waits without being told."""
    closed: bool = False

    def most_rows(self, bound: int, *, prompt: bool) -> int:
        """Of one decode step, at most; ``prompt`` says whether one waits beside."""
        return most_decode_rows(
            bound, len(self.talking), self.stages, self.costs, self.away, prompt=prompt
        )

    def learn(self) -> None:
        """Learn from what the engine computed, which needn't be before the next step but one
        where several kinds of steps wait."""
        # Taken away first: a step that nothing can be learnt from must not come again.
        done, self.done = self.done, []
        for step in done:
            self._learn_from(step)

    def talked_since(self, moment: float) -> None:
        """Only sessions with a decode step since then generate."""
        self.talking = {key: at for key, at in self.talking.items() if at > moment}

    def forget(self, key: SessionKey) -> None:
        """A session has ended; a step of it may still be with the engine."""
        self.talking.pop(key, None)
        self.gone[key] = time.perf_counter()
        while len(self.gone) > REMEMBERED_ENDS:
            self.gone.popitem(last=False)

    def _learn_from(self, step: Step) -> None:
        """A refusal or a repeated answer says nothing."""
        computed = [result.status.ok and not result.duplicate for result in step.results]
        if not step.prefill:
            for waiting, ran in zip(step.chosen, computed, strict=True):
                key = waiting.request.key
                last = self.talking.get(key)
                if ran and last is not None:
                    self.away = self.away.seen(waiting.arrived / 1e9 - last)
                if ran and not self._ended_during(step, key):
                    self.talking[key] = step.ended
        if not all(computed) or step.rows > MAX_CHUNK_TOKENS:
            return
        self.costs = self.costs.seen(step.rows, step.nanos / 1e9)
        if not step.prefill:
            self.decode_rows = step.rows

    def _ended_during(self, step: Step, key: SessionKey) -> bool:
        """Whether a session ended since the step began. Afterwards it may be opened again."""
        return step.ended - step.nanos / 1e9 <= self.gone.get(key, float("-inf"))
