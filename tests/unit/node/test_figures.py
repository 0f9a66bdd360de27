"""How a step of the engine is counted."""

from meshnet.domain.errors import CacheMissError, EngineError, status_of
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, CacheResult
from meshnet.domain.status import OK, StatusCode
from meshnet.engine.base import (
    DecodeRequest,
    PrefillRequest,
    StepRequest,
    StepResult,
    TokenOutput,
)
from meshnet.node.figures import NodeFigures

KEY = SessionKey(RouteSessionId("gen-1"), 0)
DONE = StepResult(OK, TokenOutput(1), CacheResult(hit=True, past_len=9))
MS = 10**6


def decode(position: int = 8) -> StepRequest:
    exact = CacheExpectation(CacheMode.EXACT, position)
    return DecodeRequest(KEY, position, exact, 3, token_ids=(1,))


def chunk(rows: int) -> StepRequest:
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    return PrefillRequest(KEY, 0, fresh, 0, token_ids=(1,) * rows)


def test_a_step_counts_once_with_its_rows_and_sessions_and_every_wait():
    figures = NodeFigures()
    figures.stepped([decode()] * 3, [DONE] * 3, [MS, 2 * MS, 3 * MS], 5 * MS)
    steps = figures.decode
    assert (steps.rows.read().count, steps.rows.read().total) == (1, 3)
    assert (steps.sessions.read().count, steps.sessions.read().total) == (1, 3)
    assert abs(steps.seconds.read().total - 0.005) < 1e-9
    assert steps.queued_seconds.read().count == 3
    assert figures.prefill.rows.read().count == 0


def test_a_step_that_holds_a_chunk_is_one_of_prefill():
    figures = NodeFigures()
    figures.stepped([decode(), chunk(16)], [DONE] * 2, [0, 0], MS)
    assert figures.prefill.rows.read().total == 17
    assert figures.decode.rows.read().count == 0


def test_what_a_cache_was_is_counted_by_result():
    figures = NodeFigures()
    again = StepResult(OK, TokenOutput(1), CacheResult(hit=True, past_len=9), duplicate=True)
    missed = StepResult(status_of(CacheMissError("elsewhere")))
    broken = StepResult(status_of(EngineError("broke")))
    figures.stepped([decode()] * 4, [DONE, again, missed, broken], [0] * 4, MS)
    assert (figures.cache_hits, figures.duplicates, figures.cache_misses) == (1, 1, 1)


def test_errors_guesses_and_prompts_are_counted():
    figures = NodeFigures()
    for code in (StatusCode.CANCELLED, StatusCode.CANCELLED, StatusCode.INTERNAL):
        figures.failed(code)
    for right in (True, False, True):
        figures.guessed(right=right)
    for cached in (0, 128, 64):
        figures.began(cached)
    assert figures.errors == {StatusCode.CANCELLED: 2, StatusCode.INTERNAL: 1}
    assert (figures.proposed_tokens, figures.accepted_tokens) == (3, 2)
    assert (figures.prefix_hits, figures.prefix_misses, figures.prefix_tokens) == (2, 1, 192)
