"""Which sessions an engine holds, and whether a step may run: rules every engine obeys.

Pure bookkeeping: an engine asks :meth:`SessionLedger.admit` before a step and says
:meth:`SessionLedger.commit` after it, or :meth:`SessionLedger.roll_back` if the step failed; the
ledger never touches a cache itself.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TypeVar

from meshnet.domain.errors import (
    CacheMissError,
    CancelledError,
    ContextLengthError,
    ResourceExhaustedError,
    StaleEpochError,
)
from meshnet.domain.frames import SessionKey
from meshnet.domain.ids import RouteSessionId
from meshnet.domain.lifecycle import CacheMode
from meshnet.engine.base import StepRequest, StepResult

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
    """A step that may run now: on which slot, and what of the slot's cache to drop first."""

    slot: CacheSlot
    truncate: bool
    """Drop positions from the request's position on before computing."""
    opened: bool
    """Whether the slot was taken for this step."""


class SessionLedger:
    """Slots of at most ``max_sessions`` sessions with ``context_length`` positions each."""

    def __init__(self, max_sessions: int, context_length: int) -> None:
        self._context_length = context_length
        self._free = list(range(max_sessions))
        self._slots: dict[SessionKey, CacheSlot] = {}
        self._epochs: OrderedDict[RouteSessionId, int] = OrderedDict()
        self._cancelled: OrderedDict[SessionKey, None] = OrderedDict()
        self.cancelled_sessions = 0

    @property
    def open_sessions(self) -> int:
        """Sessions that hold a slot."""
        return len(self._slots)

    def past_len(self, key: SessionKey) -> int:
        """Positions the session's cache holds; 0 for an unknown session."""
        slot = self._slots.get(key)
        return slot.past_len if slot is not None else 0

    def superseded(self, key: SessionKey) -> list[SessionKey]:
        """Open sessions of the same name with an older epoch: release them before ``key`` runs."""
        return [
            held
            for held in self._slots
            if _same_name(held, key) and held.route_epoch < key.route_epoch
        ]

    def admit(self, request: StepRequest) -> Admission | StepResult:
        """Decide on a step: run it, or answer a repeated one with its first result.

        Raises ``StaleEpochError``, ``CancelledError``, ``CacheMissError``, ``ContextLengthError``
        or ``ResourceExhaustedError``; the ledger is as before then.
        """
        key = request.key
        newest = self._newest(key)
        if key.route_epoch < newest:
            raise StaleEpochError(
                f"session {key.session_id} is at epoch {newest}; a step of epoch "
                f"{key.route_epoch} is refused"
            )
        if key in self._cancelled:
            raise CancelledError(f"session {key} was cancelled")
        slot = self._slots.get(key)
        if slot is not None and request.idempotency_step in slot.results:
            return slot.results[request.idempotency_step]
        past_len = slot.past_len if slot is not None else None
        if not _met(request, past_len):
            raise CacheMissError(
                f"session {key} holds {past_len or 0} positions, but the step expects "
                f"{request.expectation.expected_past_len} ({request.expectation.mode.value})"
            )
        if request.position + request.rows > self._context_length:
            raise ContextLengthError(
                f"positions up to {request.position + request.rows} exceed the context of "
                f"{self._context_length}"
            )
        opened = slot is None
        if slot is None:
            slot = self._open(key)
        return Admission(slot, truncate=request.position < slot.past_len, opened=opened)

    def commit(self, request: StepRequest, result: StepResult) -> None:
        """Record that an admitted step ran: the cache now ends after its last row."""
        slot = self._slots[request.key]
        slot.past_len = request.position + request.rows
        slot.results[request.idempotency_step] = result
        while len(slot.results) > REMEMBERED_STEPS:
            slot.results.popitem(last=False)

    def roll_back(self, request: StepRequest, admission: Admission) -> int:
        """Take an admitted step back that failed; returns from which position on to clear the slot.

        A slot that was taken for the step is given back; another one ends before the step's rows.
        """
        if admission.opened:
            self._close(request.key)
            return 0
        admission.slot.past_len = min(admission.slot.past_len, request.position)
        return request.position

    def release_all(self) -> None:
        """Give all slots back, as when their caches are lost; their sessions' next steps miss."""
        for key in list(self._slots):
            self._close(key)

    def cancel(self, key: SessionKey) -> CacheSlot | None:
        """Refuse the session's further steps; returns the slot to clear, if it had one."""
        slot = self._close(key)
        if key not in self._cancelled:
            self.cancelled_sessions += slot is not None
            _remember(self._cancelled, key, None)
        return slot

    def release(self, key: SessionKey) -> CacheSlot | None:
        """Forget the session; returns the slot to clear, if it had one."""
        self._cancelled.pop(key, None)
        return self._close(key)

    def _newest(self, key: SessionKey) -> int:
        """The session's newest epoch that ran; an open one counts however long ago it began."""
        held = [open_key.route_epoch for open_key in self._slots if _same_name(open_key, key)]
        return max([self._epochs.get(key.session_id, key.route_epoch), *held])

    def _open(self, key: SessionKey) -> CacheSlot:
        if not self._free:
            raise ResourceExhaustedError(
                f"all {len(self._slots)} sessions of this shard are in use"
            )
        slot = CacheSlot(self._free.pop(0))
        self._slots[key] = slot
        _remember(self._epochs, key.session_id, key.route_epoch)
        return slot

    def _close(self, key: SessionKey) -> CacheSlot | None:
        slot = self._slots.pop(key, None)
        if slot is not None:
            # Lowest numbers first: neighbouring sequences share one graph in libllama.
            self._free.append(slot.number)
            self._free.sort()
        return slot


def _same_name(one: SessionKey, other: SessionKey) -> bool:
    return one.session_id == other.session_id


def _met(request: StepRequest, past_len: int | None) -> bool:
    if request.expectation.mode is CacheMode.FRESH:
        return past_len is None and request.position == 0
    return past_len is not None and request.expectation.met_by(past_len)


def _remember(table: OrderedDict[K, V], key: K, value: V) -> None:
    table[key] = value
    table.move_to_end(key)
    while len(table) > REMEMBERED_ENDINGS:
        table.popitem(last=False)
