"""Reading a model's weights from whoever has them: several pieces at once, in order.

Holders are asked by their tiers, and those of one tier share the work. One that fails, or gives
bytes that don't have the hash they should, isn't asked again; another goes on where it broke off.
As long as none fails, a tensor comes from one holder, so that it is known whose bytes were wrong.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from meshnet.domain.errors import (
    CancelledError,
    MeshnetError,
    ModelFileError,
    NodeUnreachableError,
)
from meshnet.model.gguf import TensorInfo
from meshnet.model.gguf_cursor import file_error
from meshnet.model.holders import Holder, Segment, pieces
from meshnet.model.progress import Watch
from meshnet.model.sources import Patience
from meshnet.model.weights import Weights

_LOOK_SECONDS: Final = 0.1
"""How often it is looked whether the fetch is still wanted."""
_FIND_SECONDS: Final = 2.0
"""How often it is asked for holders that were found meanwhile."""
_SMALL: Final = 64 << 10
"""A tensor of up to so many bytes isn't worth a request of its own."""
_Came = tuple[Segment, Holder, memoryview]


class FetchedWeights(Weights):
    """Weights from holders that ``open_holders`` opens on the given stack.

    It is called again now and then, to open those that were found meanwhile.
    Besides what the base class says, :meth:`stream` raises
    :class:`~meshnet.domain.errors.NodeUnreachableError` when nobody is left who can be reached, and
    :class:`~meshnet.domain.errors.CancelledError` once the fetch is stopped.
    """

    def __init__(
        self,
        open_holders: Callable[[ExitStack], Sequence[Holder]],
        patience: Patience,
        stop: threading.Event,
        watch: Watch,
    ) -> None:
        self._open, self._patience, self._stop = open_holders, patience, stop
        self._watch = watch
        self._stack, self._opened, self._aborting = ExitStack(), ExitStack(), ExitStack()
        self._look_at = 0.0
        self._lock = threading.Lock()
        self._holders: list[Holder] = []
        self._errors: list[MeshnetError] = []
        self._given: dict[str, list[Holder]] = {}
        """Who gave of a tensor what was read already."""
        self._chosen: dict[str, Holder] = {}
        """Whom to ask for a tensor."""
        self._coming: Counter[Holder] = Counter()
        """Bytes that are asked for and aren't here yet, and all that were ever asked for."""
        self._asked: Counter[Holder] = Counter()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._opened = stack.enter_context(ExitStack())
            self._pool = stack.enter_context(
                ThreadPoolExecutor(self._patience.parallel, "meshnet-fetch")
            )
            # First of all on the way out, since the pool waits for its threads.
            self._aborting = stack.enter_context(ExitStack())
            self._find_holders()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def stream(self, tensors: Sequence[TensorInfo], skip: int) -> Generator[memoryview, None, None]:
        """As in the base class; asks ahead for as many pieces as may come at once."""
        waiting: deque[Future[list[_Came]]] = deque()
        coming = pieces(tensors, skip, self._patience.piece_bytes)
        try:
            while True:
                if time.monotonic() >= self._look_at:
                    self._find_holders()
                while len(waiting) < self._patience.parallel and (piece := next(coming, None)):
                    waiting.append(self._pool.submit(self._fetch, piece))
                if not waiting:
                    return
                for segment, holder, content in self._result(waiting.popleft()):
                    given = self._given.setdefault(segment.tensor.name, [])
                    if holder not in given:
                        given.append(holder)
                    yield content
        finally:
            for future in waiting:
                future.cancel()

    def _find_holders(self) -> None:
        """Take in those that are new; called by the thread that reads alone."""
        found = self._open(self._opened)
        for holder in found:
            self._aborting.callback(holder.abort)
        with self._lock:
            self._holders += found
        self._look_at = time.monotonic() + _FIND_SECONDS

    def _result(self, coming: Future[list[_Came]]) -> list[_Came]:
        while not wait([coming], _LOOK_SECONDS).done:
            if self._stop.is_set():
                raise CancelledError("fetching was stopped")
        return coming.result()

    def distrust(self, tensor: TensorInfo) -> None:
        """Ask those no more who gave it; if several did, the first of them, until one is at fault.

        Raises :class:`~meshnet.domain.errors.ModelFileError` when nobody else has it.
        """
        given = self._given.pop(tensor.name)
        problem = "what came isn't what the model's manifest says"
        self._drop(given[0], file_error(given[0].name, tensor.name, problem))
        with self._lock:
            if self._choose(tensor) is None:
                raise self._failure(tensor)

    def require_unchanged(self) -> None:
        """Nothing to check: each answer was compared with the first one as it came."""

    def _fetch(self, piece: tuple[Segment, ...]) -> list[_Came]:
        """The piece's bytes, from one holder or from several."""
        found: list[_Came] = []
        left = piece
        while left:
            holder, run = self._deal(left)
            try:
                came = holder.fetch(run)
            finally:
                with self._lock:
                    self._coming[holder] -= sum(map(len, run))
            found += ((segment, holder, content) for segment, content in came.pieces)
            left = _rest(left, [segment for segment, _ in came.pieces])
            if came.error is not None:
                self._drop(holder, came.error)
        return found

    def _deal(self, left: Sequence[Segment]) -> tuple[Holder, list[Segment]]:
        """Whom to ask next, and for how many of the segments."""
        with self._lock:
            holder = self._choose(left[0].tensor)
            if holder is None:
                raise self._failure(left[0].tensor)
            run = []
            for segment in left:
                if self._choose(segment.tensor, holder) is not holder:
                    break
                self._chosen[segment.tensor.name] = holder
                run.append(segment)
            length = sum(map(len, run))
            self._coming[holder] += length
            self._asked[holder] += length
        return holder, run

    def _choose(self, tensor: TensorInfo, wish: Holder | None = None) -> Holder | None:
        """Whom to ask for a tensor, with the lock held: a small one as the one before it."""
        chosen = self._chosen.get(tensor.name)
        if chosen is not None and chosen in self._holders:
            return chosen
        able = [holder for holder in self._holders if holder.has(tensor)]
        first = min((holder.tier for holder in able), default=0)
        best = [holder for holder in able if holder.tier == first]
        if wish in best and tensor.size <= _SMALL:
            return wish
        return min(best, key=lambda it: (self._coming[it], self._asked[it]), default=None)

    def _drop(self, holder: Holder, error: MeshnetError) -> None:
        with self._lock:
            if holder not in self._holders:
                return
            self._holders.remove(holder)
            self._errors.append(error)
        self._watch.dropped(holder.name, error)

    def _failure(self, tensor: TensorInfo) -> MeshnetError:
        return joined(self._errors, f"nobody gives {tensor.name}")


def _rest(asked: Sequence[Segment], came: Sequence[Segment]) -> tuple[Segment, ...]:
    """What is still to come of the segments that were asked for."""
    left = tuple(asked[len(came) :])
    if came and came[-1].stop < asked[len(came) - 1].stop:
        return (replace(asked[len(came) - 1], start=came[-1].stop), *left)
    return left


def joined(errors: Sequence[MeshnetError], told: str) -> MeshnetError:
    """One error for those of all who were asked; ``told`` says for what."""
    if len(errors) == 1:
        return errors[0]
    reasons = "; ".join(error.message for error in errors)
    message = told + (f": {reasons}" if reasons else "")
    if errors and not any(error.retryable for error in errors):
        return ModelFileError(message)
    return NodeUnreachableError(message)
