"""``LlamaShardEngine``: a slice of a GGUF model on an unmodified libllama."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import (
    CacheMissError,
    EngineError,
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    status_of,
)
from meshnet.domain.frames import SessionKey
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
from meshnet.engine.ledger import Admission, SessionLedger
from meshnet.engine.llamacpp.context import KEY_PREFIX, LlamaContext, Rows
from meshnet.engine.llamacpp.exactness import exact_decode_rows
from meshnet.engine.sampling import sample

Made = BoundaryBundle | TokenOutput | MeshnetError
"""What came of a step's rows; an error is that step's own and leaves its neighbours alone."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """An admitted step with its place in the caller's list."""

    index: int
    request: StepRequest
    admission: Admission
    rows: Rows


class LlamaShardEngine(ShardEngine):
    """Sessions are libllama sequences, each with a KV stream of its own."""

    def __init__(self) -> None:
        self._context: LlamaContext | None = None
        self._capabilities: EngineCapabilities | None = None
        self._ledger = SessionLedger(1, 1)
        self._failure: MeshnetError | None = None
        self._spoilt = False
        self._metrics = MetricsResult()

    def load(self, request: LoadRequest) -> LoadResult:
        """Load a slice, or a whole model as the only shard.

        Raises ``EngineError`` if libllama refuses the file, ``InvalidArgumentError`` if the file
        holds other layers than asked for or can't run on the seam's boundary.
        """
        if request.recipe.boundary_dtype is not DType.FLOAT32:
            raise InvalidArgumentError("boundary_dtype", "libllama gives and takes float32")
        context = LlamaContext(request, max_outputs=request.limits.max_sessions)
        try:
            _require_same_layers(context, request)
            _require_room(context.weight_bytes, request.limits.memory_bytes)
            exact = exact_decode_rows(
                context, request.limits.max_sessions, head=request.shard_start == 0
            )
        except MeshnetError:
            context.close()
            raise
        self.close()
        limits = request.limits
        self._context = context
        self._ledger = SessionLedger(limits.max_sessions, limits.context_length)
        self._capabilities = EngineCapabilities(
            request.shard_start,
            request.shard_end,
            request.total_layers,
            n_embd=context.n_embd,
            n_vocab=0 if context.taps else context.n_vocab,
            limits=limits,
            exact_decode_rows=exact,
        )
        return LoadResult(self._capabilities, weight_bytes=context.weight_bytes)

    def capabilities(self) -> EngineCapabilities:
        """See the base class."""
        if self._capabilities is None:
            raise NodeNotReadyError("no shard is loaded yet")
        return self._capabilities

    def prefill(self, request: PrefillRequest) -> StepResult:
        """See the base class."""
        return self.execute([request])[0]

    def decode(self, request: DecodeRequest) -> StepResult:
        """See the base class."""
        return self.execute([request])[0]

    def execute(self, requests: Sequence[StepRequest]) -> list[StepResult]:
        """Run decode steps in batches of as many rows as are exact, and each prefill chunk alone.

        The number of rows selects libllama's kernels, and a session's bits must not depend on who
        else is being served.
        """
        if len({request.key.session_id for request in requests}) < len(requests):
            # Steps of one session build on each other and can't share a batch.
            return [result for request in requests for result in self.execute([request])]
        results: dict[int, StepResult] = {}
        decodes: list[_Planned] = []
        chunks: list[_Planned] = []
        for index, request in enumerate(requests):
            try:
                planned = self._plan(index, request)
            except MeshnetError as error:
                results[index] = self._refused(request, error)
                continue
            if isinstance(planned, StepResult):
                self._count(duplicates=1)
                results[index] = replace(planned, duplicate=True)
            elif isinstance(request, PrefillRequest):
                chunks.append(planned)
            else:
                decodes.append(planned)
        for batch in (*_packed(decodes, self._decode_rows), *([chunk] for chunk in chunks)):
            results.update(self._run(batch))
        if self._spoilt:
            # Values that aren't finite stay in a freed cache and would reach its next session.
            self._loaded().clear()
            self._ledger.release_all()
            self._spoilt = False
        return [results[index] for index in range(len(requests))]

    def cancel(self, key: SessionKey) -> None:
        """See the base class."""
        slot = self._ledger.cancel(key)
        if slot is not None and self._context is not None:
            self._context.truncate(slot.number, 0)

    def release(self, key: SessionKey) -> None:
        """See the base class."""
        slot = self._ledger.release(key)
        if slot is not None and self._context is not None:
            self._context.truncate(slot.number, 0)

    def health(self) -> HealthResult:
        """See the base class."""
        if self._context is None:
            return HealthResult(LifecycleState.LOADING)
        if self._failure is not None:
            return HealthResult(LifecycleState.FAILED, status_of(self._failure))
        return HealthResult(LifecycleState.READY)

    def metrics(self) -> MetricsResult:
        """See the base class."""
        return replace(
            self._metrics,
            open_sessions=self._ledger.open_sessions,
            cancelled_sessions=self._ledger.cancelled_sessions,
        )

    def close(self) -> None:
        """Free the model; the engine can load again."""
        if self._context is not None:
            self._context.close()
            self._context = None
            self._capabilities = None

    @property
    def _decode_rows(self) -> int:
        return 1 if self._capabilities is None else self._capabilities.exact_decode_rows

    def _loaded(self) -> LlamaContext:
        if self._context is None:
            raise NodeNotReadyError("no shard is loaded yet")
        return self._context

    def _plan(self, index: int, request: StepRequest) -> _Planned | StepResult:
        capabilities, context = self.capabilities(), self._loaded()
        embeddings = _embeddings(request, capabilities, context.n_vocab)
        if request.rows > context.max_rows:
            raise InvalidArgumentError(
                "rows", f"{request.rows} rows in a step; at most {context.max_rows}"
            )
        for old in self._ledger.superseded(request.key):
            self.release(old)
        admission = self._ledger.admit(request)
        if isinstance(admission, StepResult):
            return admission
        rows = Rows(
            admission.slot.number,
            request.position,
            request.token_ids,
            embeddings,
            outputs=int(capabilities.is_tail),
        )
        return _Planned(index, request, admission, rows)

    def _run(self, batch: list[_Planned]) -> dict[int, StepResult]:
        context = self._loaded()
        # Rows of a batch come back in the order of their sequences.
        batch.sort(key=lambda planned: planned.rows.sequence)
        started = time.perf_counter_ns()
        try:
            for planned in batch:
                if planned.admission.truncate:
                    context.truncate(planned.rows.sequence, planned.request.position)
            output = context.decode([planned.rows for planned in batch])
        except MeshnetError as error:
            self._failure = error
            for planned in batch:
                self.release(planned.request.key)
            return {planned.index: StepResult(status_of(error)) for planned in batch}
        made = self._made(batch, output)
        nanos = time.perf_counter_ns() - started
        self._count(steps=1, rows=sum(planned.rows.count for planned in batch), engine_nanos=nanos)
        results = {
            planned.index: self._settled(planned, outcome, nanos)
            for planned, outcome in zip(batch, made, strict=True)
        }
        self._failure = next((fault for fault in made if isinstance(fault, EngineError)), None)
        self._spoilt = self._spoilt or self._failure is not None
        return results

    def _made(self, batch: list[_Planned], output: NDArray[np.float32]) -> list[Made]:
        if self.capabilities().is_tail:
            return [
                _choose(planned.request, logits)
                for planned, logits in zip(batch, output, strict=True)
            ]
        made: list[Made] = []
        start = 0
        for planned in batch:
            made.append(_boundary(output[start : start + planned.rows.count]))
            start += planned.rows.count
        return made

    def _settled(self, planned: _Planned, made: Made, nanos: int) -> StepResult:
        """Enter a computed step in the ledger, or take it back."""
        request = planned.request
        if isinstance(made, MeshnetError):
            start = self._ledger.roll_back(request, planned.admission)
            self._loaded().truncate(planned.rows.sequence, start)
            return StepResult(status_of(made))
        past_len = request.position + planned.rows.count
        cache = CacheResult(hit=True, past_len=past_len)
        result = StepResult(OK, made, cache, engine_nanos=nanos)
        self._ledger.commit(request, result)
        return result

    def _refused(self, request: StepRequest, error: MeshnetError) -> StepResult:
        past_len = self._ledger.past_len(request.key)
        self._count(cache_misses=int(isinstance(error, CacheMissError)))
        hit = past_len == request.expectation.expected_past_len
        return StepResult(status_of(error), None, CacheResult(hit=hit, past_len=past_len))

    def _count(self, **added: int) -> None:
        totals = {name: getattr(self._metrics, name) + value for name, value in added.items()}
        self._metrics = replace(self._metrics, **totals)


def _require_room(weight_bytes: int, memory_bytes: int) -> None:
    if memory_bytes and weight_bytes > memory_bytes:
        raise EngineError(
            f"the shard's weights take {weight_bytes} bytes, more than the {memory_bytes} allowed; "
            f"give it fewer layers"
        )


def _require_same_layers(context: LlamaContext, request: LoadRequest) -> None:
    start = context.metadata(f"{KEY_PREFIX}start")
    end = context.metadata(f"{KEY_PREFIX}end")
    held = f"[{start}, {end})" if start is not None else f"[0, {context.n_layer})"
    if held != str(request.layers):
        raise InvalidArgumentError(
            "layers", f"{request.model_path} holds layers {held}, not {request.layers}"
        )
    if context.taps == (request.shard_end == request.total_layers):
        raise InvalidArgumentError(
            "total_layers",
            f"{request.model_path} isn't cut from a model of {request.total_layers} layers",
        )


def _embeddings(
    request: StepRequest, capabilities: EngineCapabilities, n_vocab: int
) -> NDArray[np.float32] | None:
    """The input rows of a middle or tail shard, checked; None on a head."""
    if capabilities.is_head:
        if request.input is not None:
            raise InvalidArgumentError("input", "a head takes token ids, not a boundary")
        if min(request.token_ids) < 0 or max(request.token_ids) >= n_vocab:
            raise InvalidArgumentError("token_ids", f"ids must be 0 to {n_vocab - 1}")
        return None
    if request.input is None:
        raise InvalidArgumentError("token_ids", "only a head takes token ids")
    tensor = request.input.tensors[0]
    width = capabilities.n_embd
    if len(request.input.tensors) != 1 or tensor.name != RESIDUAL:
        raise InvalidArgumentError("tensors", f"one tensor named {RESIDUAL!r} is expected")
    if tensor.dtype is not DType.FLOAT32 or len(tensor.shape) != 2 or tensor.shape[1] != width:
        raise InvalidArgumentError(
            "shape",
            f"{tensor.dtype.value} {tensor.shape} where float32 (rows, {width}) is expected",
        )
    rows = np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)
    if not np.isfinite(rows).all():
        raise InvalidArgumentError("input", "it has values that aren't finite numbers")
    return rows


def _packed(planned: Sequence[_Planned], max_rows: int) -> list[list[_Planned]]:
    """The steps in as few batches as hold them, in their order."""
    batches: list[list[_Planned]] = []
    room = 0
    for step in planned:
        if step.rows.count > room:
            batches.append([])
            room = max_rows
        batches[-1].append(step)
        room -= step.rows.count
    return batches


def _boundary(rows: NDArray[np.float32]) -> BoundaryBundle | EngineError:
    if not np.isfinite(rows).all():
        return EngineError(
            "the layers gave values that aren't finite; the model's file or its computation is at "
            "fault"
        )
    tensor = EngineTensor(RESIDUAL, DType.FLOAT32, rows.shape, rows.tobytes())
    return BoundaryBundle((tensor,))


def _choose(request: StepRequest, logits: NDArray[np.float32]) -> TokenOutput | MeshnetError:
    position = request.position + request.rows
    try:
        chosen = sample(logits, request.choice.history, request.choice.params, position)
    except MeshnetError as error:
        return error
    return TokenOutput(chosen.token_id, None, chosen.logprob, chosen.top_logprobs)
