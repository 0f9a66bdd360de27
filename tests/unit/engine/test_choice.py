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


class Counted:
    """A grammar of tokens that count on from the last one, by two."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, ...]] = []

    def allowed(self, grammar, generated, session):
        assert grammar == "by two"
        self.asked.append(tuple(generated))
        return CountedOn((generated[-1] + 2) % VOCABULARY if generated else 0)


class CountedOn:
    def __init__(self, only: int) -> None:
        self._only = only

    def one(self, token_id):
        return token_id == self._only

    def all(self):
        return np.arange(VOCABULARY) == self._only


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_holds_up_to_the_first_wrong_guess(temperature):
    params = SamplingParams(temperature=temperature, grammar="by two")
    history = (9, 9, 9, 2, 4)
    logits = list(np.random.default_rng(1).standard_normal((4, VOCABULARY)).astype(np.float32))
    grammars = Counted()
    choice = TokenChoice(params, history, (6, 9, 11), generated=2)
    made = choose(decode(7, (4, 6, 9, 11), choice), logits, grammars)
    assert isinstance(made, tuple)
    assert [token.token_id for token in made[:2]] == [6, 8]
    assert grammars.asked == [(2, 4), (2, 4, 6)]
    free = SamplingParams(temperature=temperature)
    alone = choose(decode(9, (9,), TokenChoice(free)), logits[2:3])
    assert made[2] == alone


def test_a_grammar_needs_somebody_who_knows_it():
    choice = TokenChoice(SamplingParams(grammar="g"))
    with pytest.raises(InvalidArgumentError, match="grammar"):
        choose(decode(3, (1,), choice), [np.zeros(VOCABULARY, np.float32)])


def test_no_more_can_have_been_generated_than_is_known():
    with pytest.raises(InvalidArgumentError, match="generated"):
        TokenChoice(SamplingParams(grammar="g"), (1, 2), generated=3)


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
