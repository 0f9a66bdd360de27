"""Reading a model's weights from whoever has them: several pieces at once, in order.

Holders are asked in the order they are given. One that fails, or gives bytes that don't have the
hash they should, isn't asked again; the next one goes on where it broke off.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
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
from meshnet.model.sources import Patience
from meshnet.model.weights import Weights

_LOOK_SECONDS: Final = 0.1
"""How often it is looked whether the fetch is still wanted."""
_Came = tuple[Segment, Holder, memoryview]


class FetchedWeights(Weights):
    """Weights from holders that ``open_holders`` opens on the given stack.

    Besides what the base class says, :meth:`stream` raises
    :class:`~meshnet.domain.errors.NodeUnreachableError` when nobody is left who can be reached, and
    :class:`~meshnet.domain.errors.CancelledError` once the fetch is stopped.
    """

    def __init__(
        self,
        open_holders: Callable[[ExitStack], Sequence[Holder]],
        patience: Patience,
        stop: threading.Event,
    ) -> None:
        self._open, self._patience, self._stop = open_holders, patience, stop
        self._stack = ExitStack()
        self._lock = threading.Lock()
        self._holders: list[Holder] = []
        self._errors: list[MeshnetError] = []
        self._given: dict[str, list[Holder]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            self._holders = list(self._open(opened))
            self._pool = opened.enter_context(
                ThreadPoolExecutor(self._patience.parallel, "meshnet-fetch")
            )
            # First of all on the way out, since the pool waits for its threads.
            for holder in self._holders:
                opened.callback(holder.abort)
            self._stack = opened.pop_all()
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
        if self._first(tensor) is None:
            raise self._failure(tensor)

    def require_unchanged(self) -> None:
        """Nothing to check: each answer was compared with the first one as it came."""

    def _fetch(self, piece: tuple[Segment, ...]) -> list[_Came]:
        """The piece's bytes, from one holder or from several."""
        found: list[_Came] = []
        while len(found) < len(piece):
            left = piece[len(found) :]
            holder = self._first(left[0].tensor)
            if holder is None:
                raise self._failure(left[0].tensor)
            run = [left[0]]
            for segment in left[1:]:
                if self._first(segment.tensor) is not holder:
                    break
                run.append(segment)
            try:
                contents = holder.fetch(run)
            except CancelledError:
                raise
            except MeshnetError as error:
                self._drop(holder, error)
            else:
                found += zip(run, [holder] * len(run), contents, strict=True)
        return found

    def _first(self, tensor: TensorInfo) -> Holder | None:
        """Whom to ask for a tensor."""
        with self._lock:
            return next((holder for holder in self._holders if holder.has(tensor)), None)

    def _drop(self, holder: Holder, error: MeshnetError) -> None:
        with self._lock:
            if holder in self._holders:
                self._holders.remove(holder)
                self._errors.append(error)

    def _failure(self, tensor: TensorInfo) -> MeshnetError:
        with self._lock:
            errors = list(self._errors)
        return joined(errors, f"nobody gives {tensor.name}")


def joined(errors: Sequence[MeshnetError], told: str) -> MeshnetError:
    """One error for those of all who were asked; ``told`` says for what."""
    if len(errors) == 1:
        return errors[0]
    reasons = "; ".join(error.message for error in errors)
    message = told + (f": {reasons}" if reasons else "")
    if errors and not any(error.retryable for error in errors):
        return ModelFileError(message)
    return NodeUnreachableError(message)
