"""``LlamaShardEngine``: a slice of a GGUF model on an unmodified libllama."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import (
    EngineError,
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    status_of,
)
from meshnet.domain.ids import SessionKey
from meshnet.domain.lifecycle import LifecycleState
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
)
from meshnet.engine.choice import choose
from meshnet.engine.ledger import Admission, CacheSlot, SessionLedger
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.exactness import MAX_EXACT_TOKENS
from meshnet.engine.llamacpp.findings import known_exactness
from meshnet.engine.llamacpp.grammars import LlamaGrammars, grammars_of
from meshnet.engine.llamacpp.loading import KEY_PREFIX
from meshnet.engine.llamacpp.tap import all_finite

MAX_SESSIONS = 256
"""``LLAMA_MAX_SEQ`` of ``llama-cparams.h``."""
Made = Output | MeshnetError
"""What came of a step's rows; an error is that step's own and leaves its neighbours alone."""


@dataclass(frozen=True, slots=True)
class _Planned:
    """An admitted step with its place in the caller's list."""

    index: int
    request: StepRequest
    admission: Admission
    rows: Rows


class LlamaShardEngine(ShardEngine):
    """Sessions are libllama sequences, each with a KV stream of its own.

    ``notes`` is a folder that remembers what is exact in a file; without it every load measures.
    """

    def __init__(self, notes: Path | None = None) -> None:
        self._notes = notes
        self._context: LlamaContext | None = None
        self._capabilities: EngineCapabilities | None = None
        self._ledger = SessionLedger(1, 1)
        self._grammars: LlamaGrammars | None = None
        self._failure: MeshnetError | None = None
        self._spoilt = False

    def load(self, request: LoadRequest) -> LoadResult:
        """Load a slice, or a whole model as the only shard.

        Raises ``EngineError`` if libllama refuses the file, ``InvalidArgumentError`` if the file
        holds other layers than asked for or can't run on the seam's boundary, and for more sessions
        than ``MAX_SESSIONS``.
        """
        if request.recipe.boundary_dtype is not DType.FLOAT32:
            raise InvalidArgumentError("boundary_dtype", "libllama gives and takes float32")
        sessions = request.limits.max_sessions
        if sessions > MAX_SESSIONS:
            raise InvalidArgumentError(
                "max_sessions", f"{sessions} are more than the {MAX_SESSIONS} that libllama keeps"
            )
        outputs = max(MAX_EXACT_TOKENS, sessions)
        context = LlamaContext(request, max_outputs=outputs)
        try:
            _require_same_layers(context, request)
            _require_room(context.weight_bytes, request.limits.memory_bytes)
            exact = known_exactness(context, request, self._notes)
        except MeshnetError:
            context.close()
            raise
        self.close()
        limits = request.limits
        self._context = context
        self._grammars = grammars_of(context, request)
        self._ledger = SessionLedger(
            limits.max_sessions, limits.context_length, rollback=exact.rollback
        )
        self._capabilities = EngineCapabilities(
            request.shard_start,
            request.shard_end,
            request.total_layers,
            n_embd=context.n_embd,
            n_vocab=0 if context.taps else context.n_vocab,
            limits=limits,
            exact_sessions=exact.sessions,
            exact_step_tokens=exact.step_tokens,
            exact_pieces=exact.pieces,
            supports_rollback=exact.rollback,
            supports_grammar=self._grammars is not None,
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
        else is being served, nor on how many tokens are verified at once.
        """
        if len(requests) > 1 and not _independent(requests):
            return [result for request in requests for result in self.execute([request])]
        results = self._results(requests)
        if self._spoilt:
            # Values that aren't finite stay in a freed cache and would reach its next session.
            self._loaded().clear()
            self._ledger.release_all()
            self._spoilt = False
        return [results[index] for index in range(len(requests))]

    def _results(self, requests: Sequence[StepRequest]) -> dict[int, StepResult]:
        """By the requests' indices."""
        results: dict[int, StepResult] = {}
        decodes: list[_Planned] = []
        chunks: list[_Planned] = []
        for index, request in enumerate(requests):
            try:
                planned = self._plan(index, request)
            except MeshnetError as error:
                results[index] = self._ledger.refused(request, error)
                continue
            if isinstance(planned, StepResult):
                results[index] = planned
            elif isinstance(request, PrefillRequest):
                chunks.append(planned)
            else:
                decodes.append(planned)
        for batch in (*self._packed(decodes), *([chunk] for chunk in chunks)):
            results.update(self._run(batch))
        return results

    def cancel(self, key: SessionKey) -> None:
        """See the base class."""
        self._free(key, self._ledger.cancel(key))

    def release(self, key: SessionKey) -> None:
        """See the base class."""
        self._free(key, self._ledger.release(key))

    def _free(self, key: SessionKey, slot: CacheSlot | None) -> None:
        if slot is not None and self._context is not None:
            self._context.truncate(slot.number, 0)
        if self._grammars is not None:
            self._grammars.release(key)

    def health(self) -> HealthResult:
        """See the base class."""
        if self._context is None:
            return HealthResult(LifecycleState.LOADING)
        if self._failure is not None:
            return HealthResult(LifecycleState.FAILED, status_of(self._failure))
        return HealthResult(LifecycleState.READY)

    def metrics(self) -> MetricsResult:
        """See the base class."""
        return self._ledger.metrics()

    def close(self) -> None:
        """Free the model; the engine can load again."""
        if self._context is not None:
            self._context.close()
            self._context = None
            self._capabilities = None
        if self._grammars is not None:
            self._grammars.close()
            self._grammars = None

    def _loaded(self) -> LlamaContext:
        if self._context is None:
            raise NodeNotReadyError("no shard is loaded yet")
        return self._context

    def _plan(self, index: int, request: StepRequest) -> _Planned | StepResult:
        capabilities, context = self.capabilities(), self._loaded()
        embeddings = _embeddings(request, capabilities, context.n_vocab)
        if self._grammars is not None and request.choice.params.grammar:
            self._grammars.begin()
        if request.rows > context.max_rows:
            raise InvalidArgumentError(
                "rows", f"{request.rows} rows in a step; at most {context.max_rows}"
            )
        admission = self._ledger.admit(request)
        if isinstance(admission, StepResult):
            return admission
        for cleared in admission.cleared:
            # At once, since another step of the list may have been given the slot.
            context.truncate(cleared, 0)
        rows = Rows(
            admission.slot.number,
            request.position,
            request.token_ids,
            embeddings,
            outputs=request.choices if capabilities.is_tail else 0,
        )
        return _Planned(index, request, admission, rows)

    def _packed(self, planned: Sequence[_Planned]) -> list[list[_Planned]]:
        """The steps in few batches that are exact. A batch's steps have equally many rows each.

        libllama would interleave the rows of longer and shorter steps.
        """
        if len(planned) == 1:
            return [list(planned)]
        batches: list[list[_Planned]] = []
        for rows, steps in itertools.groupby(sorted(planned, key=_row_count), key=_row_count):
            held, same = self.capabilities(), list(steps)
            size = held.exact_sessions if rows == 1 else max(1, held.exact_step_tokens // rows)
            batches += [same[start : start + size] for start in range(0, len(same), size)]
        return batches

    def _run(self, batch: list[_Planned]) -> dict[int, StepResult]:
        # Rows of a batch come back in the order of their sequences.
        batch.sort(key=lambda planned: planned.rows.sequence)
        started = time.perf_counter_ns()
        try:
            for planned in batch:
                self._prepare(planned)
            output = self._decode(batch)
        except MeshnetError as error:
            self._failure = error
            for planned in batch:
                self.release(planned.request.key)
            return {planned.index: StepResult(status_of(error)) for planned in batch}
        made = self._made(batch, output)
        nanos = time.perf_counter_ns() - started
        self._ledger.note_step(nanos)
        results = {
            planned.index: self._settled(planned, outcome, nanos)
            for planned, outcome in zip(batch, made, strict=True)
        }
        self._failure = next((fault for fault in made if isinstance(fault, EngineError)), None)
        self._spoilt = self._spoilt or self._failure is not None
        return results

    def _prepare(self, planned: _Planned) -> None:
        """Make the sequence's cache what the step needs."""
        context, admission, sequence = self._loaded(), planned.admission, planned.rows.sequence
        if admission.copied is not None:
            context.copy(admission.copied, sequence)
        if admission.truncate:
            context.truncate(sequence, planned.request.position)

    def _decode(self, batch: list[_Planned]) -> NDArray[np.float32]:
        """A boundary row or a row of logits for each of the batch's rows that has one."""
        context, (first, *others) = self._loaded(), batch
        limit = self.capabilities().exact_step_tokens
        if others or isinstance(first.request, PrefillRequest) or first.rows.count <= limit:
            return context.decode([planned.rows for planned in batch])
        pieces = first.rows.pieces(limit)
        return np.concatenate([context.decode([piece]).copy() for piece in pieces])

    def _made(self, batch: list[_Planned], output: NDArray[np.float32]) -> list[Made]:
        tail = self.capabilities().is_tail
        made: list[Made] = []
        start = 0
        for planned in batch:
            end = start + (planned.rows.outputs if tail else planned.rows.count)
            rows = output[start:end]
            made.append(_chosen(planned.request, rows, self._grammars) if tail else _boundary(rows))
            start = end
        return made

    def _settled(self, planned: _Planned, made: Made, nanos: int) -> StepResult:
        """Enter a computed step in the ledger, or take it back."""
        if not isinstance(made, MeshnetError):
            return self._ledger.commit(planned.request, made, nanos)
        start = self._ledger.roll_back(planned.request, planned.admission)
        self._loaded().truncate(planned.rows.sequence, start)
        return self._ledger.refused(planned.request, made)


def _independent(requests: Sequence[StepRequest]) -> bool:
    """Whether the steps can share a batch: none builds on another one's."""
    names = {request.key.session_id for request in requests}
    forks = any(request.expectation.source is not None for request in requests)
    return len(names) == len(requests) and not forks


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
    if not all_finite(tensor.data):
        raise InvalidArgumentError("input", "it has values that aren't finite numbers")
    return np.frombuffer(tensor.data, np.float32).reshape(tensor.shape)


def _row_count(planned: _Planned) -> int:
    return planned.rows.count


def _boundary(rows: NDArray[np.float32]) -> BoundaryBundle | EngineError:
    data = rows.tobytes()
    if not all_finite(data):
        return EngineError(
            "the layers gave values that aren't finite; the model's file or its computation is at "
            "fault"
        )
    return BoundaryBundle((EngineTensor(RESIDUAL, DType.FLOAT32, rows.shape, data),))


def _chosen(
    request: StepRequest, logits: NDArray[np.float32], grammars: LlamaGrammars | None
) -> Made:
    try:
        return choose(request, list(logits), grammars)
    except MeshnetError as error:
        return error
