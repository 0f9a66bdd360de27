"""A chunk cut into pieces gives the same rows and the same token."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import EngineError, status_of
from meshnet.domain.ids import Digest, RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest, PrefillRequest, StepResult
from meshnet.engine.fixture import FixtureEngine
from meshnet.node.pieces import joined, piece_of

KEY = SessionKey(RouteSessionId("s"), 0)
FRESH = CacheExpectation(CacheMode.FRESH, 0)


def engine(start: int, end: int) -> FixtureEngine:
    made = FixtureEngine()
    recipe = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
    made.load(LoadRequest(None, start, end, 3, recipe, EngineLimits(64, 2)))
    return made


@given(st.lists(st.integers(32, 126), min_size=1, max_size=30), st.data())
def test_pieces_give_what_the_chunk_gives(tokens, data):
    whole = [engine(0, 2), engine(2, 3)]
    cut = [engine(0, 2), engine(2, 3)]
    request = PrefillRequest(KEY, 0, FRESH, 0, token_ids=tuple(tokens))
    for one, other in zip(whole, cut, strict=True):
        expected = one.prefill(request)
        results: list[StepResult] = []
        start = 0
        while start < request.rows:
            rows = data.draw(st.integers(1, request.rows - start))
            results += other.execute([piece_of(request, start, rows)])
            start += rows
        made = joined(results)
        assert made.output == expected.output
        assert made.cache_result == expected.cache_result
        if one is whole[0]:
            request = PrefillRequest(KEY, 0, FRESH, 0, input=expected.boundary())


def test_a_piece_that_is_the_whole_chunk_is_the_chunk():
    request = PrefillRequest(KEY, 0, FRESH, 3, token_ids=(1, 2, 3))
    assert piece_of(request, 0, 3) is request


def test_pieces_have_step_numbers_of_their_own():
    fresh = PrefillRequest(KEY, 0, FRESH, 0, token_ids=(1,) * 128)
    later = PrefillRequest(KEY, 0, FRESH, 1, token_ids=(1,) * 128)
    steps = [piece_of(each, i, 1).idempotency_step for each in (fresh, later) for i in range(128)]
    assert len(set(steps)) == 256
    assert max(steps) < 0


def test_only_the_first_piece_expects_what_the_chunk_does():
    fork = CacheExpectation(CacheMode.FORK, 5, SessionKey(RouteSessionId("other"), 0))
    request = PrefillRequest(KEY, 5, fork, 0, token_ids=(1, 2, 3, 4))
    assert piece_of(request, 0, 2).expectation == fork
    assert piece_of(request, 2, 2).expectation == CacheExpectation(CacheMode.EXACT, 7)


def test_a_piece_that_failed_is_the_chunks_failure():
    good = engine(0, 2).prefill(PrefillRequest(KEY, 0, FRESH, 0, token_ids=(1, 2)))
    failed = StepResult(status_of(EngineError("oh")))
    assert joined([good, failed]) is failed
