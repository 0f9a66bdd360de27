"""Steps of several rows: what a request may say, and how each row is chosen."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import EngineError, InvalidArgumentError
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.status import OK
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepResult, TokenChoice, TokenOutput
from meshnet.engine.choice import choose

KEY = SessionKey(RouteSessionId("a"), 0)
PENALISED = SamplingParams(temperature=0.8, seed=4, repeat_penalty=1.5, penalty_last_n=-1)
VOCABULARY = 12

tokens = st.integers(0, VOCABULARY - 1)


def decode(position: int, fed: tuple[int, ...], choice: TokenChoice) -> DecodeRequest:
    return DecodeRequest(
        KEY, position, CacheExpectation(CacheMode.EXACT, position), 0, fed, None, choice
    )


@given(
    st.integers(1, 500),
    st.lists(tokens, min_size=1, max_size=6).map(tuple),
    st.lists(tokens, min_size=2, max_size=5).map(tuple),
    st.integers(0, 2**32),
)
def test_rows_together_are_chosen_as_rows_alone(position, history, fed, seed):
    logits = list(np.random.default_rng(seed).standard_normal((len(fed), VOCABULARY), np.float32))
    together = choose(decode(position, fed, TokenChoice(PENALISED, history, fed[1:])), logits)
    alone = tuple(
        choose(
            decode(position + i, fed[i : i + 1], TokenChoice(PENALISED, history + fed[1 : i + 1])),
            logits[i : i + 1],
        )
        for i in range(len(fed))
    )
    assert together == alone


def test_a_prompt_is_chosen_after_once_for_the_position_behind_it():
    fresh = CacheExpectation(CacheMode.FRESH)
    prompt = PrefillRequest(KEY, 0, fresh, 0, (1, 2, 3), None, TokenChoice(PENALISED, (1, 2, 3)))
    row = [np.random.default_rng(0).standard_normal(VOCABULARY).astype(np.float32)]
    single = decode(2, (3,), TokenChoice(PENALISED, (1, 2, 3)))
    assert choose(prompt, row) == choose(single, row)


@pytest.mark.parametrize("proposed", [(1,), (1, 2, 3)])
def test_as_many_tokens_are_proposed_as_rows_follow_the_first(proposed):
    with pytest.raises(InvalidArgumentError, match="proposed"):
        decode(5, (1, 2, 3), TokenChoice(proposed=proposed))


def test_what_is_proposed_may_be_left_out_where_no_choice_looks_at_it():
    assert decode(5, (1, 2, 3), TokenChoice()).choices == 3
    with pytest.raises(InvalidArgumentError, match="proposed"):
        decode(5, (1, 2, 3), TokenChoice(PENALISED, (1,)))


def test_a_session_isnt_forked_from_itself():
    fork = CacheExpectation(CacheMode.FORK, 3, KEY)
    with pytest.raises(InvalidArgumentError, match="source"):
        PrefillRequest(KEY, 3, fork, 0, (1,))


def test_a_result_gives_its_tokens_or_says_that_there_are_none():
    one, two = TokenOutput(1), TokenOutput(2)
    assert StepResult(OK, one).tokens() == (one,)
    assert StepResult(OK, (one, two)).tokens() == (one, two)
    row = EngineTensor(RESIDUAL, DType.FLOAT32, (1, 1), bytes(4))
    with pytest.raises(EngineError, match="no token"):
        StepResult(OK, BoundaryBundle((row,))).tokens()
    with pytest.raises(EngineError, match="no token"):
        StepResult(OK, (one, two)).token()
    with pytest.raises(InvalidArgumentError, match="output"):
        StepResult(OK, ())
