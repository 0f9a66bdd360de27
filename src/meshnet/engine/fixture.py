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
from dataclasses import dataclass, field
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import (
    EngineError,
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    ResourceExhaustedError,
)
from meshnet.domain.ids import SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineCapabilities,
    HealthResult,
    LoadRequest,
    LoadResult,
    MetricsResult,
    Output,
    PrefillRequest,
    ShardEngine,
    StepRequest,
    StepResult,
    TokenOutput,
)
from meshnet.engine.choice import choose
from meshnet.engine.ledger import Admission, SessionLedger
from meshnet.engine.tokenizer import ByteTokenizer

PRIME = 65521
N_EMBD = 4
EXACT_STEP_TOKENS = 32
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


@dataclass(frozen=True, slots=True)
class FaultSchedule:
    """Faults at random steps, the same ones for the same seed.

    Each step has a fault with probability ``rate``, of one of ``kinds``, each equally likely;
    ``seconds`` is for delays. Raises :class:`InvalidArgumentError` for a rate outside 0 to 1, or no
    kinds.
    """

    seed: int
    rate: float
    kinds: tuple[FaultKind, ...]
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise InvalidArgumentError("rate", f"{self.rate} must be 0 to 1")
        if not self.kinds:
            raise InvalidArgumentError("kinds", "a schedule needs at least one kind of fault")

    def at(self, step: int) -> Fault | None:
        """The step's fault, whatever was asked before."""
        draw = np.random.Generator(np.random.Philox(key=self.seed, counter=step))
        if draw.random() >= self.rate:
            return None
        return Fault(self.kinds[draw.integers(len(self.kinds))], step, seconds=self.seconds)


@dataclass(slots=True)
class _Cache:
    """Running sums after each position, one list a layer."""

    sums: dict[int, list[int]] = field(default_factory=dict)

    def truncate(self, position: int) -> None:
        for sums in self.sums.values():
            del sums[position:]

    def copy(self) -> _Cache:
        return _Cache({layer: sums.copy() for layer, sums in self.sums.items()})


class FixtureEngine(ShardEngine):
    """See the module's text. Faults strike by the number of steps run since load."""

    def __init__(
        self,
        faults: Sequence[Fault] | FaultSchedule = (),
        *,
        step_seconds: float = 0.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._faults = faults
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._capabilities: EngineCapabilities | None = None
        self._ledger = SessionLedger(1, 1)
        self._caches: dict[int, _Cache] = {}
        self._steps = 0

    def load(self, request: LoadRequest) -> LoadResult:
        """Takes any range; no file is read."""
        limits = request.limits
        self._ledger = SessionLedger(limits.max_sessions, limits.context_length)
        self._caches = {}
        self._steps = 0
        self._capabilities = EngineCapabilities(
            request.shard_start,
            request.shard_end,
            request.total_layers,
            n_embd=N_EMBD,
            n_vocab=ByteTokenizer().n_vocab,
            limits=limits,
            exact_sessions=limits.max_sessions,
            exact_step_tokens=EXACT_STEP_TOKENS,
            exact_pieces=(1, MAX_CHUNK_TOKENS),
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
        return self._ledger.metrics()

    def _step(self, request: StepRequest) -> StepResult:
        try:
            rows = _rows_in(request, self.capabilities())
            admission = self._ledger.admit(request)
        except MeshnetError as error:
            return self._ledger.refused(request, error)
        if isinstance(admission, StepResult):
            return admission
        started = time.perf_counter_ns()
        cache = self._prepared(admission, request.position)
        try:
            output = self._compute(rows, request, cache)
        except MeshnetError as error:
            cache.truncate(self._ledger.roll_back(request, admission))
            return self._ledger.refused(request, error)
        finally:
            nanos = time.perf_counter_ns() - started
            self._ledger.note_step(nanos)
        return self._ledger.commit(request, output, nanos)

    def _prepared(self, admission: Admission, position: int) -> _Cache:
        """The slot's cache as the step needs it."""
        number = admission.slot.number
        for cleared in admission.cleared:
            self._caches.pop(cleared, None)
        if admission.copied is not None:
            self._caches[number] = self._caches[admission.copied].copy()
        cache = self._caches.setdefault(number, _Cache())
        if admission.truncate:
            cache.truncate(position)
        return cache

    def _compute(self, rows: list[Row], request: StepRequest, cache: _Cache) -> Output:
        fault = self._strike()
        capabilities = self.capabilities()
        rows = _mixed(rows, request.position, capabilities, cache)
        if fault is FaultKind.WRONG_OUTPUT:
            rows = [tuple((value + 1) % PRIME for value in row) for row in rows]
        if fault is FaultKind.MALFORMED_OUTPUT:
            return _malformed(capabilities)
        return _output(rows, request, capabilities)

    def _fault_at(self, step: int) -> Fault | None:
        if isinstance(self._faults, FaultSchedule):
            return self._faults.at(step)
        return next((fault for fault in self._faults if fault.due(step)), None)

    def _strike(self) -> FaultKind | None:
        """Run the step's delay and the fault that is due, if it isn't one of the output."""
        step = self._steps
        self._steps += 1
        if self._step_seconds:
            self._sleep(self._step_seconds)
        fault = self._fault_at(step)
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


def _output(rows: list[Row], request: StepRequest, capabilities: EngineCapabilities) -> Output:
    if not capabilities.is_tail:
        data = np.array(rows, np.float32).tobytes()
        shape = (len(rows), N_EMBD)
        return BoundaryBundle((EngineTensor(RESIDUAL, DType.FLOAT32, shape, data),))
    logits = [_logits(row, capabilities.n_vocab) for row in rows[-request.choices :]]
    return choose(request, logits)


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
