"""A prompt's chunk computed in several steps of the engine, and put together again.

Allowed where the engine's ``exact_pieces`` covers chunk and pieces: their bits are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.domain.tensors import BoundaryBundle, EngineTensor
from meshnet.engine.base import PrefillRequest, StepRequest, StepResult


def piece_of(request: StepRequest, start: int, rows: int) -> StepRequest:
    """Rows ``[start, start + rows)`` of a chunk as a step of its own; the chunk itself if all.

    A piece's step number is negative, and so never one of the session's own.
    """
    if start == 0 and rows == request.rows:
        return request
    position = request.position + start
    expectation = CacheExpectation(CacheMode.EXACT, position) if start else request.expectation
    return PrefillRequest(
        request.key,
        position,
        expectation,
        -(request.idempotency_step * MAX_CHUNK_TOKENS + start) - 1,
        request.token_ids[start : start + rows],
        None if request.input is None else _rows_of(request.input, start, rows),
        request.choice,
    )


def joined(results: Sequence[StepResult]) -> StepResult:
    """The chunk's result from its pieces', in order: all rows, or the choice after the last."""
    last = results[-1]
    if len(results) == 1 or not last.status.ok:
        return last
    output = last.output
    if isinstance(output, BoundaryBundle):
        output = _concatenated([result.boundary() for result in results])
    nanos = sum(result.engine_nanos for result in results)
    return replace(last, output=output, engine_nanos=nanos)


def _rows_of(bundle: BoundaryBundle, start: int, rows: int) -> BoundaryBundle:
    tensors = []
    for tensor in bundle.tensors:
        width = len(tensor.data) // tensor.shape[0]
        data = memoryview(tensor.data)[start * width : (start + rows) * width]
        tensors.append(replace(tensor, shape=(rows, *tensor.shape[1:]), data=bytes(data)))
    sideband = bundle.token_id_sideband
    return replace(
        bundle,
        tensors=tuple(tensors),
        token_id_sideband=sideband[start : start + rows] if sideband else sideband,
    )


def _concatenated(bundles: Sequence[BoundaryBundle]) -> BoundaryBundle:
    made: list[EngineTensor] = []
    for parts in zip(*(bundle.tensors for bundle in bundles), strict=True):
        rows = sum(part.shape[0] for part in parts)
        data = b"".join(part.data for part in parts)
        made.append(replace(parts[0], shape=(rows, *parts[0].shape[1:]), data=data))
    return replace(bundles[0], tensors=tuple(made))
