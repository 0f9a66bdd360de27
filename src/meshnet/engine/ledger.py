"""Which sessions an engine holds, and whether a step may run: rules every engine obeys.

Pure bookkeeping: an engine asks :meth:`SessionLedger.admit` before a step, prepares the slot as the
:class:`Admission` says, and says :meth:`SessionLedger.commit` after it, or
:meth:`SessionLedger.roll_back` if the step failed; the ledger never touches a cache itself. It also
keeps the counts and makes the results that are the same on every engine.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import TypeVar

from meshnet.domain.errors import (
    CacheMissError,
    CancelledError,
    ContextLengthError,
    MeshnetError,
    ResourceExhaustedError,
    StaleEpochError,
    status_of,
)
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheMode, CacheResult
from meshnet.domain.status import OK
from meshnet.engine.base import MetricsResult, Output, StepRequest, StepResult

REMEMBERED_STEPS = 8
REMEMBERED_ENDINGS = 1024

K = TypeVar("K")
V = TypeVar("V")


@dataclass(slots=True)
class CacheSlot:
    """One session's place in the engine: a sequence number and how much of it is filled."""

    number: int
    past_len: int = 0
    results: OrderedDict[int, StepResult] = field(default_factory=OrderedDict)
    """The last results by idempotency step."""


@dataclass(frozen=True, slots=True)
class Admission:
    """A step that may run now: on which slot, and what to do to the caches before.

    In this order: empty the slots ``cleared``, copy the cache of slot ``copied``, drop positions.
    """

    slot: CacheSlot
    truncate: bool
    """Drop positions from the request's position on before computing."""
    opened: bool
    """Whether the slot was taken for this step."""
    cleared: tuple[int, ...] = ()
    """Slots of older epochs of the session, which this step ends; they are free now."""
    copied: int | None = None
    """The slot whose whole cache is to be copied into this one; None for no copy."""


class SessionLedger:
    """Slots of at most ``max_sessions`` sessions with ``context_length`` positions each.

    ``rollback`` says whether a cache can be cut back.
    """

    def __init__(self, max_sessions: int, context_length: int, *, rollback: bool = True) -> None:
        self._context_length = context_length
        self._rollback = rollback
        self._free = list(range(max_sessions))
        self._slots: dict[SessionKey, CacheSlot] = {}
        self._epochs: OrderedDict[RouteSessionId, int] = OrderedDict()
        self._cancelled: OrderedDict[SessionKey, None] = OrderedDict()
        self._counts: Counter[str] = Counter()

    @property
    def open_sessions(self) -> int:
        """Sessions that hold a slot."""
        return len(self._slots)

    def metrics(self) -> MetricsResult:
        """All counts since the ledger was made."""
        positions = sum(slot.past_len for slot in self._slots.values())
        return MetricsResult(open_sessions=len(self._slots), positions=positions, **self._counts)

    def past_len(self, key: SessionKey) -> int:
        """Positions the session's cache holds; 0 for an unknown session."""
        slot = self._slots.get(key)
        return slot.past_len if slot is not None else 0

    def admit(self, request: StepRequest) -> Admission | StepResult:
        """Decide on a step: run it, or answer a repeated one with its first result.

        Raises ``StaleEpochError``, ``CancelledError``, ``CacheMissError``, ``ContextLengthError``
        or ``ResourceExhaustedError``; the ledger is as before then.
        """
        self._refuse_ended(request.key)
        slot = self._slots.get(request.key)
        if slot is not None and request.idempotency_step in slot.results:
            self._counts["duplicates"] += 1
            return replace(slot.results[request.idempotency_step], duplicate=True)
        held = self._required_len(request)
        if request.position + request.rows > self._context_length:
            raise ContextLengthError(
                f"positions up to {request.position + request.rows} exceed the context of "
                f"{self._context_length}"
            )
        truncate = request.position < held
        if slot is not None:
            return Admission(slot, truncate, opened=False)
        return self._open(request, truncate=truncate)

    def commit(self, request: StepRequest, output: Output, engine_nanos: int) -> StepResult:
        """Record that an admitted step ran: the cache now ends after its last row."""
        slot = self._slots[request.key]
        slot.past_len = request.position + request.rows
        cache = CacheResult(hit=True, past_len=slot.past_len)
        result = StepResult(OK, output, cache, engine_nanos=engine_nanos)
        slot.results[request.idempotency_step] = result
        while len(slot.results) > REMEMBERED_STEPS:
            slot.results.popitem(last=False)
        self._counts["rows"] += request.rows
        return result

    def roll_back(self, request: StepRequest, admission: Admission) -> int:
        """Take an admitted step back that failed; returns from which position on to clear the slot.

        A slot that was taken for the step is given back; another one ends before the step's rows,
        or is given back as well if its cache can't be cut there.
        """
        if admission.opened or not self._rollback:
            self._close(request.key)
            return 0
        admission.slot.past_len = min(admission.slot.past_len, request.position)
        return request.position

    def refused(self, request: StepRequest, error: MeshnetError) -> StepResult:
        """The result of a step that wasn't admitted, or was taken back."""
        past_len = self.past_len(request.key)
        self._counts["cache_misses"] += isinstance(error, CacheMissError)
        hit = past_len == request.expectation.expected_past_len
        return StepResult(status_of(error), None, CacheResult(hit=hit, past_len=past_len))

    def note_step(self, engine_nanos: int) -> None:
        """Count a step of the engine, which may have served several requests."""
        self._counts["steps"] += 1
        self._counts["engine_nanos"] += engine_nanos

    def release_all(self) -> None:
        """Give all slots back, as when their caches are lost; their sessions' next steps miss."""
        for key in list(self._slots):
            self._close(key)

    def cancel(self, key: SessionKey) -> CacheSlot | None:
        """Refuse the session's further steps; returns the slot to clear, if it had one."""
        slot = self._close(key)
        if key not in self._cancelled:
            self._counts["cancelled_sessions"] += slot is not None
            _remember(self._cancelled, key, None)
        return slot

    def release(self, key: SessionKey) -> CacheSlot | None:
        """Forget the session; returns the slot to clear, if it had one."""
        self._cancelled.pop(key, None)
        return self._close(key)

    def _refuse_ended(self, key: SessionKey) -> None:
        """An open epoch counts however long ago it began."""
        held = [open_key.route_epoch for open_key in self._slots if _same_name(open_key, key)]
        newest = max([self._epochs.get(key.session_id, key.route_epoch), *held])
        if key.route_epoch < newest:
            raise StaleEpochError(
                f"session {key.session_id} is at epoch {newest}; a step of epoch "
                f"{key.route_epoch} is refused"
            )
        if key in self._cancelled:
            raise CancelledError(f"session {key} was cancelled")

    def _required_len(self, request: StepRequest) -> int:
        """Positions of the cache that the step goes on from; raises ``CacheMissError``."""
        expectation = request.expectation
        own = self._slots.get(request.key)
        source = self._slots.get(expectation.source) if expectation.source is not None else own
        past_len = source.past_len if source is not None else 0
        new = expectation.mode in (CacheMode.FRESH, CacheMode.FORK)
        known = expectation.mode is CacheMode.FRESH or source is not None
        if new is (own is not None) or not known or not expectation.met_by(past_len):
            raise CacheMissError(_missed(request, own, past_len))
        if past_len > request.position and not self._rollback:
            raise CacheMissError(
                f"session {expectation.source or request.key} holds {past_len} positions, and this "
                f"model's cache can't be cut back to {request.position}"
            )
        return past_len

    def _open(self, request: StepRequest, *, truncate: bool) -> Admission:
        """A slot for a new session, in place of its older epochs; a fork of one takes its slot."""
        key, source = request.key, request.expectation.source
        old = [held for held in self._slots if _same_name(held, key) and held != source]
        inherited = source is not None and _same_name(source, key)
        if not self._free and not old and not inherited:
            raise ResourceExhaustedError(
                f"all {len(self._slots)} sessions of this shard are in use"
            )
        cleared = tuple(slot.number for slot in map(self._close, old) if slot is not None)
        copied: int | None = None
        if source is not None and inherited:
            slot = CacheSlot(self._slots.pop(source).number)
        else:
            slot = CacheSlot(self._free.pop(0))
            copied = self._slots[source].number if source is not None else None
        self._slots[key] = slot
        _remember(self._epochs, key.session_id, key.route_epoch)
        return Admission(slot, truncate, opened=True, cleared=cleared, copied=copied)

    def _close(self, key: SessionKey) -> CacheSlot | None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            # Lowest numbers first: neighbouring sequences share one graph in libllama.
            self._free.append(slot.number)
            self._free.sort()
        return slot


def _same_name(one: SessionKey, other: SessionKey) -> bool:
    return one.session_id == other.session_id


def _missed(request: StepRequest, own: CacheSlot | None, past_len: int) -> str:
    expectation = request.expectation
    wanted = f"the step expects {expectation.expected_past_len} ({expectation.mode.value})"
    if expectation.source is not None and own is None:
        return f"session {expectation.source} holds {past_len} positions, but {wanted}"
    return f"session {request.key} holds {own.past_len if own else 0} positions, but {wanted}"


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > REMEMBERED_ENDINGS:
        table.popitem(last=False)
