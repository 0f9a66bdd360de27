"""Which of the waiting steps the engine runs next. Pure: values in, values out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.engine.base import PrefillRequest, StepRequest


@dataclass(frozen=True, slots=True)
class Choice:
    """Indices into the waiting list, in arrival order."""

    indices: tuple[int, ...]
    prefill: bool


def choose_step(
    waiting: Sequence[StepRequest], max_decode_rows: int, *, last_was_prefill: bool
) -> Choice:
    """All decode steps that fit, as one step; or else the oldest prefill chunk, alone.

    Prefill and decode take turns when both wait, so that a long prompt delays another session's
    token by one chunk at most, and a stream of tokens can't starve a prompt.
    """
    decodes: list[int] = []
    rows = 0
    first_prefill: int | None = None
    for index, request in enumerate(waiting):
        if isinstance(request, PrefillRequest):
            first_prefill = index if first_prefill is None else first_prefill
        elif rows + request.rows <= max_decode_rows or not decodes:
            decodes.append(index)
            rows += request.rows
    if first_prefill is not None and (not decodes or not last_was_prefill):
        return Choice((first_prefill,), prefill=True)
    return Choice(tuple(decodes), prefill=False)
