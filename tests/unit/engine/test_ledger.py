"""Rules that the contract suite doesn't reach: what is remembered, and for how long."""

from dataclasses import replace

import pytest

from meshnet.domain.errors import (
    CacheMissError,
    CancelledError,
    ContextLengthError,
    StaleEpochError,
)
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, CacheResult
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepRequest, StepResult, TokenOutput
from meshnet.engine.ledger import (
    REMEMBERED_ENDINGS,
    REMEMBERED_STEPS,
    Admission,
    SessionLedger,
)

TRUNCATE = CacheMode.TRUNCATE
MADE = TokenOutput(1)


def key(name: str, epoch: int = 0) -> SessionKey:
    return SessionKey(RouteSessionId(name), epoch)


def prefill(of: SessionKey, rows: int = 1) -> PrefillRequest:
    return PrefillRequest(of, 0, CacheExpectation(CacheMode.FRESH, 0), 0, (1,) * rows)


def decode(of: SessionKey, position: int) -> DecodeRequest:
    return DecodeRequest(of, position, CacheExpectation(CacheMode.EXACT, position), position, (1,))


def fork(of: SessionKey, source: SessionKey, position: int) -> PrefillRequest:
    expectation = CacheExpectation(CacheMode.FORK, position, source)
    return PrefillRequest(of, position, expectation, 0, (1,))


def run(ledger: SessionLedger, request: StepRequest) -> Admission:
    admission = ledger.admit(request)
    assert isinstance(admission, Admission)
    ledger.commit(request, MADE, 0)
    return admission


def test_a_step_that_ran_long_ago_misses_rather_than_running_again():
    ledger = SessionLedger(1, 100)
    run(ledger, prefill(key("a")))
    for position in range(1, REMEMBERED_STEPS + 2):
        run(ledger, decode(key("a"), position))
    with pytest.raises(CacheMissError):
        ledger.admit(decode(key("a"), 1))
    again = ledger.admit(decode(key("a"), REMEMBERED_STEPS))
    assert isinstance(again, StepResult)
    assert again.duplicate
    assert again.cache_result == CacheResult(hit=True, past_len=REMEMBERED_STEPS + 1)


def test_a_step_may_fill_the_context_but_not_pass_it():
    ledger = SessionLedger(1, 4)
    run(ledger, prefill(key("a"), rows=3))
    run(ledger, decode(key("a"), 3))
    with pytest.raises(ContextLengthError, match="4"):
        ledger.admit(decode(key("a"), 4))


def test_the_lowest_free_place_is_taken_first():
    ledger = SessionLedger(3, 10)
    for name in "abc":
        run(ledger, prefill(key(name)))
    ledger.release(key("c"))
    ledger.release(key("a"))
    assert run(ledger, prefill(key("d"))).slot.number == 0
    assert run(ledger, prefill(key("e"))).slot.number == 2


def test_a_session_cancelled_before_it_ran_is_refused():
    ledger = SessionLedger(1, 10)
    assert ledger.cancel(key("a")) is None
    with pytest.raises(CancelledError):
        ledger.admit(prefill(key("a")))


def test_a_newer_epoch_takes_the_place_of_the_older_ones():
    ledger = SessionLedger(2, 10)
    first = run(ledger, prefill(key("a", 1)))
    admission = run(ledger, prefill(key("a", 2)))
    assert admission.cleared == (first.slot.number,)
    assert ledger.open_sessions == 1


def test_a_step_that_misses_leaves_older_epochs_where_they_are():
    ledger = SessionLedger(1, 10)
    run(ledger, prefill(key("a", 1)))
    with pytest.raises(CacheMissError):
        ledger.admit(decode(key("a", 2), 1))
    run(ledger, decode(key("a", 1), 1))


def test_a_fork_of_its_own_older_epoch_takes_the_cache_over_without_a_copy():
    ledger = SessionLedger(1, 10)
    before = run(ledger, prefill(key("a", 1), rows=4))
    admission = run(ledger, fork(key("a", 2), key("a", 1), 3))
    assert admission.slot.number == before.slot.number
    assert (admission.copied, admission.cleared, admission.truncate) == (None, (), True)
    assert ledger.past_len(key("a", 2)) == 4
    with pytest.raises(StaleEpochError):
        ledger.admit(decode(key("a", 1), 4))


def test_a_fork_copies_and_cuts_only_if_its_source_holds_more():
    ledger = SessionLedger(3, 10)
    source = run(ledger, prefill(key("a"), rows=4))
    cut = run(ledger, fork(key("b"), key("a"), 3))
    whole = run(ledger, fork(key("c"), key("a"), 4))
    assert cut.copied == whole.copied == source.slot.number
    assert (cut.truncate, whole.truncate) == (True, False)
    assert ledger.past_len(key("a")) == 4


def test_a_cache_that_cant_be_cut_back_misses_where_it_would_have_to():
    ledger = SessionLedger(2, 10, rollback=False)
    run(ledger, prefill(key("a"), rows=4))
    with pytest.raises(CacheMissError, match="cut back to 2"):
        ledger.admit(replace(decode(key("a"), 2), expectation=CacheExpectation(TRUNCATE, 2)))
    with pytest.raises(CacheMissError, match="cut back to 3"):
        ledger.admit(fork(key("b"), key("a"), 3))
    run(ledger, fork(key("b"), key("a"), 4))
    run(ledger, replace(decode(key("a"), 4), expectation=CacheExpectation(TRUNCATE, 4)))


def test_a_failed_step_costs_a_cache_that_cant_be_cut_back():
    ledger = SessionLedger(1, 10, rollback=False)
    run(ledger, prefill(key("a"), rows=4))
    admission = ledger.admit(decode(key("a"), 4))
    assert isinstance(admission, Admission)
    assert ledger.roll_back(decode(key("a"), 4), admission) == 0
    assert ledger.open_sessions == 0


def test_a_failed_first_step_gives_its_place_back():
    ledger = SessionLedger(1, 10)
    admission = ledger.admit(prefill(key("a")))
    assert isinstance(admission, Admission)
    assert ledger.roll_back(prefill(key("a")), admission) == 0
    assert ledger.open_sessions == 0
    run(ledger, prefill(key("b")))


def test_a_failed_later_step_leaves_the_session_where_it_was():
    ledger = SessionLedger(1, 10)
    run(ledger, prefill(key("a"), rows=3))
    admission = ledger.admit(decode(key("a"), 3))
    assert isinstance(admission, Admission)
    assert ledger.roll_back(decode(key("a"), 3), admission) == 3
    assert ledger.past_len(key("a")) == 3
    run(ledger, decode(key("a"), 3))


def test_a_failed_step_that_went_back_leaves_the_session_at_its_start():
    ledger = SessionLedger(1, 10)
    run(ledger, prefill(key("a"), rows=5))
    back = DecodeRequest(key("a"), 2, CacheExpectation(CacheMode.TRUNCATE, 2), 9, (1,))
    admission = ledger.admit(back)
    assert isinstance(admission, Admission)
    assert admission.truncate
    ledger.roll_back(back, admission)
    with pytest.raises(CacheMissError):
        ledger.admit(decode(key("a"), 5))
    run(ledger, decode(key("a"), 2))


def test_an_open_session_refuses_older_epochs_however_many_began_since():
    ledger = SessionLedger(2, 10)
    run(ledger, prefill(key("old", 5)))
    for number in range(REMEMBERED_ENDINGS + 1):
        run(ledger, prefill(key(str(number))))
        ledger.release(key(str(number)))
    with pytest.raises(StaleEpochError):
        ledger.admit(prefill(key("old", 4)))


def test_caches_that_are_lost_miss_and_their_places_are_free():
    ledger = SessionLedger(2, 10)
    for name in "ab":
        run(ledger, prefill(key(name)))
    ledger.release_all()
    assert ledger.open_sessions == 0
    with pytest.raises(CacheMissError):
        ledger.admit(decode(key("a"), 1))
    run(ledger, prefill(key("a")))
