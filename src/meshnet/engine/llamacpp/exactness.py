"""How many sessions' rows may share a decode batch without changing a bit of any of them.

libllama picks its kernels by the number of rows, and some add up in another order. With F32, F16 or
BF16 matrices (a mixture of experts has some always) two rows together differ from each of them
alone; with Q4_K four do; with Q4_1 or Q8_0 none. It depends on the build and the machine too, so it
is measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshnet.engine.llamacpp.context import LlamaContext, Rows

FEW_ROWS = (2, 3)
"""Counts that some kernels still treat as single rows."""
GROUPS = 2
"""Of each count, so many batches are compared, since sums can be equal by chance."""


def exact_decode_rows(context: LlamaContext, max_sessions: int, *, head: bool) -> int:
    """The most rows, ``max_sessions`` or a few, that together equal each alone.

    For a context that is new: it uses the sequences, and leaves them empty.
    """
    rows = _rows(context, max_sessions, head=head)
    alone = [_computed(context, [row]) for row in rows]
    exact = 1
    for count in (*(few for few in FEW_ROWS if few < max_sessions), max_sessions):
        starts = range(0, max_sessions - count + 1, count)[:GROUPS]
        if any(
            _computed(context, rows[start : start + count])
            != b"".join(alone[start : start + count])
            for start in starts
        ):
            break
        exact = count
    if not np.isfinite(np.frombuffer(b"".join(alone), np.float32)).all():
        context.clear()
    return exact


def _rows(context: LlamaContext, count: int, *, head: bool) -> list[Rows]:
    """The first row of ``count`` sequences, each another one."""
    outputs = 0 if context.taps else 1
    if head:
        return [Rows(i, 0, ((i + 1) % context.n_vocab,), outputs=outputs) for i in range(count)]
    draw = np.random.default_rng(0)
    values = draw.standard_normal((count, 1, context.n_embd), np.float32)
    return [Rows(i, 0, embeddings=values[i], outputs=outputs) for i in range(count)]


def _computed(context: LlamaContext, rows: Sequence[Rows]) -> bytes:
    made = context.decode(rows).tobytes()
    for row in rows:
        context.truncate(row.sequence, 0)
    return made
