"""A deterministic engine without a model, for tests of everything around an engine.

Its arithmetic makes mistakes visible. A row is four integers below a prime, carried as float32
(exact below 2**24). Each layer mixes in its own number, the row's position, and a running sum over
every row it saw before in that session. So a skipped or repeated layer, a wrong order, a stale or
foreign cache and a wrong position each change the token.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import (
    CacheMissError,
    EngineError,
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    ResourceExhaustedError,
    status_of,
)
from meshnet.domain.frames import SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheResult, LifecycleState
from meshnet.domain.status import OK
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    HealthResult,
    LoadRequest,
    LoadResult,
    MetricsResult,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenOutput,
)
from meshnet.engine.ledger import SessionLedger
from meshnet.engine.sampling import sample
from meshnet.engine.tokenizer import ByteTokenizer

PRIME = 65521
N_EMBD = 4
HANG_SECONDS = 3600.0

Row = tuple[int, ...]


class FaultKind(Enum):
    """What can be made to go wrong at a step."""

    DELAY = "delay"
    MEMORY_PRESSURE = "memory_pressure"
    MALFORMED_OUTPUT = "malformed_output"
    EXCEPTION = "exception"
    HARD_EXIT = "hard_exit"
    HANG = "hang"
    WRONG_OUTPUT = "wrong_output"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault: at engine step ``at_step`` (0 is the first), and every ``every`` steps after it.

    ``seconds`` is for delays; ``every`` 0 means once.
    """

    kind: FaultKind
    at_step: int
    every: int = 0
    seconds: float = 0.0

    def due(self, step: int) -> bool:
        """Whether the fault strikes at ``step``."""
        if self.every and step >= self.at_step:
            return (step - self.at_step) % self.every == 0
        return step == self.at_step


@dataclass(slots=True)
class _Cache:
    """Running sums after each position, one list a layer."""

    sums: dict[int, list[int]] = field(default_factory=dict)

    def truncate(self, position: int) -> None:
        for sums in self.sums.values():
            del sums[position:]


class FixtureEngine(ShardEngine):
    """See the module's text. ``faults`` strike by the number of steps run since load."""

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        step_seconds: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._faults = tuple(faults)
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._capabilities: EngineCapabilities | None = None
        self._ledger = SessionLedger(1, 1)
        self._caches: dict[int, _Cache] = {}
        self._metrics = MetricsResult()

    def load(self, request: LoadRequest) -> LoadResult:
        """Takes any range; no file is read."""
        limits = request.limits
        self._ledger = SessionLedger(limits.max_sessions, limits.context_length)
        self._caches = {}
        self._capabilities = EngineCapabilities(
            request.shard_start,
            request.shard_end,
            request.total_layers,
            n_embd=N_EMBD,
            n_vocab=ByteTokenizer().n_vocab,
            limits=limits,
            exact_decode_rows=limits.max_sessions,
        )
        return LoadResult(self._capabilities)

    def capabilities(self) -> EngineCapabilities:
        """See the base class."""
        if self._capabilities is None:
            raise NodeNotReadyError("no shard is loaded yet")
        return self._capabilities

    def prefill(self, request: PrefillRequest) -> StepResult:
        """See the base class."""
        return self._step(request)

    def decode(self, request: DecodeRequest) -> StepResult:
        """See the base class."""
        return self._step(request)

    def cancel(self, key: SessionKey) -> None:
        """See the base class."""
        slot = self._ledger.cancel(key)
        if slot is not None:
            self._caches.pop(slot.number, None)

    def release(self, key: SessionKey) -> None:
        """See the base class."""
        slot = self._ledger.release(key)
        if slot is not None:
            self._caches.pop(slot.number, None)

    def health(self) -> HealthResult:
        """See the base class."""
        loaded = self._capabilities is not None
        return HealthResult(LifecycleState.READY if loaded else LifecycleState.LOADING)

    def metrics(self) -> MetricsResult:
        """See the base class."""
        return replace(
            self._metrics,
            open_sessions=self._ledger.open_sessions,
            cancelled_sessions=self._ledger.cancelled_sessions,
        )

    def _step(self, request: StepRequest) -> StepResult:
        started = time.perf_counter_ns()
        try:
            capabilities = self.capabilities()
            rows = _rows_in(request, capabilities)
            for old in self._ledger.superseded(request.key):
                self.release(old)
            admission = self._ledger.admit(request)
        except MeshnetError as error:
            return self._refused(request, error)
        if isinstance(admission, StepResult):
            self._count(duplicates=1)
            return replace(admission, duplicate=True)
        try:
            output = self._compute(rows, request, admission.slot.number)
        except MeshnetError as error:
            self._ledger.roll_back(request, admission)
            return self._refused(request, error)
        past_len = request.position + len(rows)
        nanos = time.perf_counter_ns() - started
        result = StepResult(
            OK, output, CacheResult(hit=True, past_len=past_len), engine_nanos=nanos
        )
        self._ledger.commit(request, result)
        self._count(rows=len(rows), engine_nanos=nanos)
        return result

    def _compute(
        self, rows: list[Row], request: StepRequest, slot: int
    ) -> BoundaryBundle | TokenOutput:
        fault = self._strike()
        capabilities = self.capabilities()
        cache = self._caches.setdefault(slot, _Cache())
        cache.truncate(request.position)
        rows = _mixed(rows, request.position, capabilities, cache)
        if fault is FaultKind.WRONG_OUTPUT:
            rows = [tuple((value + 1) % PRIME for value in row) for row in rows]
        if fault is FaultKind.MALFORMED_OUTPUT:
            return _malformed(capabilities)
        return _output(rows, request, capabilities)

    def _strike(self) -> FaultKind | None:
        """Run the step's delay and the fault that is due, if it isn't one of the output."""
        step = self._metrics.steps
        self._count(steps=1)
        if self._step_seconds:
            self._sleep(self._step_seconds)
        fault = next((fault for fault in self._faults if fault.due(step)), None)
        if fault is None:
            return None
        if fault.kind is FaultKind.DELAY:
            self._sleep(fault.seconds)
        elif fault.kind is FaultKind.HANG:
            self._sleep(HANG_SECONDS)
        elif fault.kind is FaultKind.HARD_EXIT:
            os._exit(134)
        elif fault.kind is FaultKind.EXCEPTION:
            raise EngineError(f"the fixture was told to fail at step {step}")
        elif fault.kind is FaultKind.MEMORY_PRESSURE:
            raise ResourceExhaustedError(f"the fixture was told to be out of memory at step {step}")
        return fault.kind

    def _refused(self, request: StepRequest, error: MeshnetError) -> StepResult:
        past_len = self._ledger.past_len(request.key)
        self._count(cache_misses=int(isinstance(error, CacheMissError)))
        hit = past_len == request.expectation.expected_past_len
        return StepResult(status_of(error), None, CacheResult(hit=hit, past_len=past_len))

    def _count(self, **added: int) -> None:
        totals = {name: getattr(self._metrics, name) + value for name, value in added.items()}
        self._metrics = replace(self._metrics, **totals)


def _rows_in(request: StepRequest, capabilities: EngineCapabilities) -> list[Row]:
    if capabilities.is_head:
        if request.input is not None:
            raise InvalidArgumentError("input", "a head takes token ids, not a boundary")
        if min(request.token_ids) < 0 or max(request.token_ids) >= capabilities.n_vocab:
            raise InvalidArgumentError("token_ids", f"ids must be 0 to {capabilities.n_vocab - 1}")
        return [
            tuple((token * 31 + i) % PRIME for i in range(N_EMBD)) for token in request.token_ids
        ]
    if request.input is None:
        raise InvalidArgumentError("token_ids", "only a head takes token ids")
    tensor = request.input.tensors[0]
    if len(request.input.tensors) != 1 or tensor.name != RESIDUAL:
        raise InvalidArgumentError("tensors", f"one tensor named {RESIDUAL!r} is expected")
    if tensor.dtype is not DType.FLOAT32 or tensor.shape[1:] != (N_EMBD,):
        raise InvalidArgumentError("shape", f"{tensor.shape} where (rows, {N_EMBD}) is expected")
    values = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
    if not np.isfinite(values).all():
        raise InvalidArgumentError("input", "it has values that aren't finite numbers")
    return [tuple(int(value) for value in row) for row in values]


def _mixed(
    rows: list[Row], position: int, capabilities: EngineCapabilities, cache: _Cache
) -> list[Row]:
    for layer in LayerRange(capabilities.shard_start, capabilities.shard_end):
        sums = cache.sums.setdefault(layer, [])
        made = []
        for offset, row in enumerate(rows):
            past = sums[-1] if sums else 0
            mixed = tuple(
                (value * 257 + (layer + 1) * 7919 + (position + offset) * 104729 + past + i) % PRIME
                for i, value in enumerate(row)
            )
            sums.append((past * 31 + sum(mixed)) % PRIME)
            made.append(mixed)
        rows = made
    return rows


def _output(
    rows: list[Row], request: StepRequest, capabilities: EngineCapabilities
) -> BoundaryBundle | TokenOutput:
    if not capabilities.is_tail:
        data = np.array(rows, np.float32).tobytes()
        shape = (len(rows), N_EMBD)
        return BoundaryBundle((EngineTensor(RESIDUAL, DType.FLOAT32, shape, data),))
    position = request.position + len(rows)
    logits = _logits(rows[-1], capabilities.n_vocab)
    chosen = sample(logits, request.choice.history, request.choice.params, position)
    return TokenOutput(chosen.token_id, None, chosen.logprob, chosen.top_logprobs)


def _logits(row: Row, n_vocab: int) -> NDArray[np.float32]:
    """Scattered logits, printable ASCII alone, so that the text can be read."""
    ids = np.arange(n_vocab, dtype=np.uint64)
    seed = np.uint64(sum(value * PRIME**i for i, value in enumerate(row)) % 2**61)
    mixed = (ids + np.uint64(1)) * np.uint64(2654435761) * (seed | np.uint64(1))
    logits = ((mixed >> np.uint64(40)).astype(np.float32)) / np.float32(2**22)
    logits[:32] = -np.inf
    logits[127:] = -np.inf
    return logits


def _malformed(capabilities: EngineCapabilities) -> BoundaryBundle | TokenOutput:
    if capabilities.is_tail:
        return TokenOutput(2**31 - 1)
    return BoundaryBundle((EngineTensor("not-the-residual", DType.FLOAT32, (1, 1), bytes(4)),))
