"""What a loaded model's steps may share without changing a bit, and whether its cache can go back.

libllama picks its kernels by the number of rows, and some add up in another order. With F32, F16 or
BF16 matrices (a mixture of experts has some always) two rows together differ from each of them
alone; with Q4_K four do; with Q4_1 or Q8_0 none. Several rows of ONE sequence also choose the
kernel of the attention itself, and there it matters how far the cache is filled: without flash
attention, rows that equal single steps at the start of a context can differ further on; with it,
from the 257th position on, where a row that is alone in its batch has its sum cut up by threads
(``ggml_compute_forward_flash_attn_ext_f16``). It depends on the build and the machine too, so it is
measured, behind ``DEPTH`` positions where the context has them.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshnet.domain.errors import EngineError
from meshnet.engine.base import LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows

LOGGER = logging.getLogger(__name__)
PROBE_VERSION = 2
"""Grows when the same model may be found exact in other steps; what was remembered is void then."""
PROBE_SECONDS = 60.0
"""What measuring may take, the step that runs then included last."""
MAX_EXACT_TOKENS = 32
"""More rows of one session than this are never taken together."""
DEPTH = 272
LONE_ROW_DEPTH = 256
"""From this position on, with flash attention, a lone row is computed in another way."""
FEW_ROWS = (2, 3)
"""Counts that some kernels still treat as single rows."""
GROUPS = 2
"""Of each count of sessions, so many batches are compared, since sums can be equal by chance."""
WINDOW_DRAWS = 6
"""So often the largest number of rows of one session is compared, with other inputs each time.
Where the attention differs, what follows rounds most of it away: of 32 rows through four layers of
SmolLM2-135M all were equal in two of five cases, of two rows in nearly all. So either all numbers
hold, or not even two rows are trusted."""
WINDOWS = (*FEW_ROWS, 4, 8, 16, MAX_EXACT_TOKENS)
SINGLES = (1, 4, 16, MAX_EXACT_TOKENS)
"""So many rows of a sequence are computed alone at a time."""
LEAST_PIECES = (2, 4, 8)
"""Fewest rows of a prompt's piece that are tried where a single row differs. Often it alone has a
kernel of its own, and all other numbers share one."""

Shape = tuple[int, int]
"""Sequences, and rows of each."""


@dataclass(frozen=True, slots=True)
class Exactness:
    """What was found; see ``EngineCapabilities``, which has the same first four."""

    sessions: int
    step_tokens: int
    pieces: tuple[int, int] | None
    rollback: bool
    complete: bool = True
    """Whether there was time for all of it; what is missing counts as not exact."""


def measure_exactness(
    context: LlamaContext, request: LoadRequest, seconds: float = PROBE_SECONDS
) -> Exactness:
    """Try numbers of rows until one differs from single steps.

    For a context that is new: it uses the sequences, and leaves them empty. What isn't proven after
    ``seconds`` isn't relied upon; the step that runs then is the last one.
    """
    probe = _Probe(context, request, time.monotonic() + seconds)
    found = Exactness(sessions=1, step_tokens=1, pieces=None, rollback=False)
    try:
        for proven in _findings(probe, context.max_rows, request):
            found = proven
    except _TimeOverError:
        LOGGER.info("after %g s of trying which steps are exact, the rest is left open", seconds)
        found = replace(found, complete=False)
    probe.leave()
    return found


def depth_of_probe(context_length: int) -> int:
    """Behind how many positions rows are compared, of a context with so many.

    The rest is room for the rows that are compared. Any context that reaches so far is measured
    behind ``LONE_ROW_DEPTH`` at least.
    """
    depth = min(DEPTH, max(context_length // 2, context_length - MAX_EXACT_TOKENS))
    return max(depth, LONE_ROW_DEPTH) if context_length > LONE_ROW_DEPTH else depth


def _findings(probe: _Probe, max_rows: int, request: LoadRequest) -> Iterator[Exactness]:
    """What is proven by and by."""
    limits = request.limits
    rollback = limits.context_length < 3 or probe.goes_back()
    found = Exactness(sessions=1, step_tokens=1, pieces=None, rollback=rollback)
    yield found
    if rollback:
        probe.fill(depth_of_probe(limits.context_length))
    elif request.recipe.flash_attention and limits.context_length > LONE_ROW_DEPTH:
        # Sequences that can't go back could be compared only at their start.
        return
    few = (count for count in FEW_ROWS if count < limits.max_sessions)
    for count in (*few, limits.max_sessions):
        starts = range(0, limits.max_sessions - count + 1, count)[:GROUPS]
        if not all(probe.exact((count, 1), start) for start in starts):
            break
        found = replace(found, sessions=count)
        yield found
    if not rollback:
        return
    room = min(MAX_EXACT_TOKENS, max_rows, limits.context_length - probe.depth)
    shapes = [
        shape
        for count in (*(count for count in WINDOWS if count < room), room)
        for shape in _shapes(count, limits.max_sessions)
    ]
    if probe.holds(room, WINDOW_DRAWS) and all(map(probe.exact, shapes)):
        yield replace(found, step_tokens=room, pieces=(1, room))
    else:
        yield replace(found, pieces=probe.even_pieces(room))


class _TimeOverError(Exception):
    """The time is over."""


def _shapes(count: int, max_sessions: int) -> Iterator[Shape]:
    """Ways to make up ``count`` rows of sessions with several each."""
    yield 1, count
    if count % 2 == 0 and count > 2 and max_sessions > 1:
        yield 2, count // 2


def _cut(rows: int, sizes: Sequence[int]) -> list[int]:
    """Pieces of these sizes in turn; the last one takes what would be less than the smallest."""
    made: list[int] = []
    turn = itertools.cycle(sizes)
    while rows:
        size = next(turn)
        made.append(size if rows - size >= min(sizes) else rows)
        rows -= made[-1]
    return made


class _Probe:
    """Computes rows that depend on sequence and position alone."""

    def __init__(self, context: LlamaContext, request: LoadRequest, until: float) -> None:
        self._context = context
        self._until = until
        self._head = request.shard_start == 0
        self._context_length = request.limits.context_length
        self._alone: dict[int, list[bytes]] = {}
        self._filled: set[int] = set()
        self._finite = True
        self.depth = 0

    def goes_back(self) -> bool:
        """Whether a cache that was cut back goes on as if it had never been longer.

        A recurrent state holds no earlier positions: libllama refuses to cut it.
        """
        expected = [self._compute(self._rows(0, position, 1)) for position in range(3)]
        self._context.truncate(0, 0)
        self._compute(self._rows(0, 0, 1))
        self._compute(self._rows(0, 1, 1, shift=1))
        try:
            self._context.truncate(0, 1)
        except EngineError:
            self._context.truncate(0, 0)
            return False
        made = [self._compute(self._rows(0, position, 1)) for position in (1, 2)]
        self._context.truncate(0, 0)
        return made == expected[1:] or not self._finite

    def fill(self, depth: int) -> None:
        """Let the rows that are compared come behind so many others."""
        self.depth = depth
        size = self._context.max_rows
        for start in range(0, depth, size):
            self._compute(self._rows(0, start, min(size, depth - start), outputs=0))
        self._filled.add(0)

    def exact(self, shape: Shape, first: int = 0) -> bool:
        """Whether rows of so many sequences, from ``first`` on, are together what each is alone."""
        sequences, count = range(first, first + shape[0]), shape[1]
        alone = [row for sequence in sequences for row in self._singles(sequence, count)]
        made = self._compute(*(self._rows(each, self.depth, count) for each in sequences))
        for sequence in sequences:
            self._context.truncate(sequence, self.depth)
        return made == b"".join(alone)

    def holds(self, count: int, draws: int) -> bool:
        """Whether so many rows of one sequence equal single steps, for several inputs."""
        return all(self._same(count, shift) for shift in range(1, 1 + draws))

    def _same(self, count: int, shift: int) -> bool:
        alone = [
            self._compute(self._rows(0, self.depth + index, 1, shift=shift))
            for index in range(count)
        ]
        self._context.truncate(0, self.depth)
        together = self._compute(self._rows(0, self.depth, count, shift=shift))
        self._context.truncate(0, self.depth)
        return together == b"".join(alone)

    def even_pieces(self, rows: int) -> tuple[int, int] | None:
        """Fewest and most rows of steps whose borders change nothing; None if all borders do."""
        whole = self._run((rows,))
        for least in LEAST_PIECES:
            turns = ((least,), (least, least + 1), (rows - least, least))
            if least < rows and all(self._run(_cut(rows, turn)) == whole for turn in turns):
                return least, rows
        return None

    def leave(self) -> None:
        """Empty the sequences."""
        for sequence in self._filled | set(self._alone) | {0}:
            self._context.truncate(sequence, 0)
        if not self._finite:
            self._context.clear()

    def _run(self, sizes: Sequence[int]) -> bytes:
        """Consecutive rows of the first sequence, computed in steps of these sizes."""
        made, position = b"", self.depth
        for size in sizes:
            made += self._compute(self._rows(0, position, size))
            position += size
        self._context.truncate(0, self.depth)
        return made

    def _singles(self, sequence: int, count: int) -> list[bytes]:
        """The first rows behind the depth, each computed alone."""
        if self.depth and sequence not in self._filled:
            self._context.copy(0, sequence)
            self._filled.add(sequence)
        if len(self._alone.get(sequence, ())) < count:
            wanted = next(size for size in SINGLES if size >= count)
            positions = range(self.depth, min(self.depth + wanted, self._context_length))
            self._alone[sequence] = [self._compute(self._rows(sequence, p, 1)) for p in positions]
            self._context.truncate(sequence, self.depth)
        return self._alone[sequence][:count]

    def _rows(
        self,
        sequence: int,
        position: int,
        count: int,
        *,
        shift: int = 0,
        outputs: int | None = None,
    ) -> Rows:
        """``count`` rows from ``position`` on; ``shift`` gives others instead."""
        wanted = 0 if self._context.taps else count if outputs is None else outputs
        seeds = [(sequence, position + i, shift) for i in range(count)]
        if self._head:
            n_vocab = self._context.n_vocab
            tokens = tuple((17 * s + 5 * p * p + 3 * (p + d) + 1) % n_vocab for s, p, d in seeds)
            return Rows(sequence, position, tokens, outputs=wanted)
        width = self._context.n_embd
        values = [np.random.default_rng(seed).standard_normal(width, np.float32) for seed in seeds]
        return Rows(sequence, position, embeddings=np.stack(values), outputs=wanted)

    def _compute(self, *parts: Rows) -> bytes:
        """The bytes of the output rows, part after part; raises :class:`_TimeOverError` past it."""
        if time.monotonic() > self._until:
            raise _TimeOverError
        made = self._context.decode(parts)
        self._finite = self._finite and bool(np.isfinite(made).all())
        return made.tobytes()
