"""The scheduler learns from steps that the engine computed, and from no others."""

import asyncio
import time
from collections.abc import Callable
from unittest.mock import Mock

import pytest

from meshnet.domain.errors import CacheMissError, status_of
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.domain.status import OK
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepRequest, StepResult, TokenOutput
from meshnet.node.groups import Away
from meshnet.node.plan import REMEMBERED_ENDS, EnginePlan, Step, Waiting

KEYS = tuple(SessionKey(RouteSessionId(name), 0) for name in "ab")
DONE = StepResult(OK, TokenOutput(7))
REPEATED = StepResult(OK, TokenOutput(7), duplicate=True)
REFUSED = StepResult(status_of(CacheMissError("other length")))


def learn(plan: EnginePlan, ended: Step) -> None:
    plan.done.append(ended)
    plan.learn()


def decode(key: SessionKey, rows: int) -> StepRequest:
    return DecodeRequest(key, 4, CacheExpectation(CacheMode.EXACT, 4), 1, (7,) * rows)


def prefill(key: SessionKey, rows: int) -> StepRequest:
    return PrefillRequest(key, 0, CacheExpectation(CacheMode.FRESH, 0), 0, (7,) * rows)


def step(requests: list[StepRequest], *results: StepResult, ended: float = 5.0) -> Step:
    """One that took a second, asked for just when it began."""
    began = round((ended - 1) * 1e9)
    chosen = tuple(Waiting(each, began, Mock(spec=asyncio.Future)) for each in requests)
    return Step(chosen, tuple(requests), results, began, 10**9)


def test_a_decode_step_tells_who_generates_and_what_its_rows_take():
    plan = EnginePlan()
    learn(plan, step([decode(key, 2) for key in KEYS], DONE, DONE))
    assert plan.costs.means == {4: 1.0}
    assert plan.decode_rows == 4
    assert plan.talking == dict.fromkeys(KEYS, 5.0)


def test_of_a_session_that_has_ended_no_step_makes_a_talker_again(
    monkeypatch: pytest.MonkeyPatch,
):
    plan = EnginePlan()
    learn(plan, step([decode(key, 1) for key in KEYS], DONE, DONE))
    monkeypatch.setattr(time, "perf_counter", lambda: 10.0)
    plan.forget(KEYS[0])
    # One of them was over when the session ended, the other was with the engine.
    for ended in (9.0, 10.5):
        learn(plan, step([decode(key, 1) for key in KEYS], DONE, DONE, ended=ended))
        assert plan.talking == {KEYS[1]: ended}
    # It may be opened again.
    learn(plan, step([decode(KEYS[0], 1)], DONE, ended=11.5))
    assert plan.talking[KEYS[0]] == 11.5


def test_few_sessions_that_ended_are_remembered():
    plan = EnginePlan()
    for number in range(3 * REMEMBERED_ENDS):
        plan.forget(SessionKey(RouteSessionId(f"s{number}"), 0))
    assert len(plan.gone) == REMEMBERED_ENDS


def test_a_step_that_nothing_can_be_learnt_from_is_tried_once():
    plan = EnginePlan()
    with pytest.raises(ValueError, match="zip"):
        learn(plan, step([decode(key, 1) for key in KEYS], DONE))
    plan.learn()
    assert not plan.done


def test_a_chunk_tells_what_its_rows_take():
    plan = EnginePlan()
    learn(plan, step([prefill(KEYS[0], 30)], DONE))
    assert plan.costs.means == {30: 1.0}
    assert not plan.talking


@pytest.mark.parametrize("other", [REFUSED, REPEATED], ids=["refused", "repeated"])
def test_of_a_step_that_wasnt_computed_whole_its_talkers_alone_are_learned(other):
    plan = EnginePlan()
    learn(plan, step([decode(key, 2) for key in KEYS], DONE, other))
    assert not plan.costs.means
    assert plan.decode_rows == 1
    assert set(plan.talking) == {KEYS[0]}
    learn(plan, step([prefill(KEYS[0], 30)], other))
    assert not plan.costs.means
    learn(plan, step([decode(KEYS[0], 2)], other, ended=9.0))
    assert plan.away == Away()


@pytest.mark.parametrize("made", [decode, prefill])
def test_more_rows_than_any_chunk_has_are_not_remembered(
    made: Callable[[SessionKey, int], StepRequest],
):
    plan = EnginePlan()
    learn(plan, step([made(KEYS[0], MAX_CHUNK_TOKENS + 1)], DONE))
    assert not plan.costs.means
    assert plan.decode_rows == 1
    learn(plan, step([made(KEYS[0], MAX_CHUNK_TOKENS)], DONE))
    assert set(plan.costs.means) == {MAX_CHUNK_TOKENS}


def test_how_long_a_session_is_away_is_seen_from_a_steps_end_to_the_next_ones_arrival():
    plan = EnginePlan()
    learn(plan, step([decode(KEYS[0], 1)], DONE, ended=5.0))
    assert plan.away == Away()
    # It was asked for again at 7.0.
    learn(plan, step([decode(key, 1) for key in KEYS], DONE, DONE, ended=8.0))
    assert plan.away.seconds == pytest.approx(2.0)


def test_a_session_that_was_silent_for_long_generates_no_more():
    plan = EnginePlan()
    learn(plan, step([decode(KEYS[0], 1)], DONE, ended=5.0))
    learn(plan, step([decode(KEYS[1], 1)], DONE, ended=7.0))
    plan.talked_since(6.0)
    assert plan.talking == {KEYS[1]: 7.0}
