"""A tail keeps as many tokens as the penalties look at, and no more."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import EngineCapabilities, EngineLimits
from meshnet.node.history import TokenHistory, recent, require_grammar

TOKENS = st.lists(st.integers(0, 99), max_size=30)


@given(TOKENS, st.integers(-1, 40))
def test_recent_are_the_last_ones(tokens, last):
    params = SamplingParams(repeat_penalty=1.2, penalty_last_n=last)
    kept = recent(tokens, params)
    assert len(kept) == (len(tokens) if last < 0 else min(last, len(tokens)))
    assert kept == tokens[len(tokens) - len(kept) :]


@given(TOKENS)
def test_without_a_penalty_nothing_is_kept(tokens):
    assert recent(tokens, SamplingParams()) == []
    assert TokenHistory(SamplingParams(), tokens).choice(len(tokens)).history == ()


@given(TOKENS, TOKENS, st.integers(-1, 12))
def test_a_history_continued_at_the_tail_looks_like_the_whole_one(prompt, made, last):
    params = SamplingParams(presence_penalty=0.5, penalty_last_n=last)
    history = TokenHistory(params, recent(prompt, params))
    for position, token in enumerate(made, start=len(prompt)):
        history.chosen(position, token)
    end = len(prompt) + len(made)
    assert history.choice(end - 1).history == tuple(recent(prompt + made, params))


@given(TOKENS, TOKENS, st.data())
def test_a_choice_after_an_earlier_position_forgets_what_was_chosen_behind_it(prompt, made, data):
    params = SamplingParams(presence_penalty=0.5, penalty_last_n=data.draw(st.integers(-1, 12)))
    history = TokenHistory(params, prompt)
    for position, token in enumerate(made, start=len(prompt)):
        history.chosen(position, token)
    kept = data.draw(st.integers(0, len(made)))
    choice = history.choice(len(prompt) + kept - 1, (7, 8))
    assert choice.history == tuple(recent(prompt + made[:kept], params))
    assert choice.proposed == (7, 8)
    history.chosen(len(prompt) + kept, 99)
    after = history.choice(len(prompt) + kept)
    assert after.history == tuple(recent([*prompt, *made[:kept], 99], params))


@given(TOKENS, st.lists(st.integers(0, 99), min_size=1, max_size=30), st.data())
def test_a_step_that_comes_again_costs_no_token(prompt, made, data):
    params = SamplingParams(presence_penalty=0.5, penalty_last_n=-1)
    history = TokenHistory(params, prompt)
    for position, token in enumerate(made, start=len(prompt)):
        history.choice(position - 1)
        history.chosen(position, token)
    # It is answered with its first tokens, so that none is chosen anew.
    history.choice(len(prompt) + data.draw(st.integers(0, len(made) - 1)) - 1)
    assert history.choice(len(prompt) + len(made) - 1).history == (*prompt, *made)


@given(TOKENS, TOKENS, st.data())
def test_a_grammar_sees_all_that_was_generated_and_nothing_else(prompt, made, data):
    penalty = data.draw(st.sampled_from([0.0, 0.5]))
    last = data.draw(st.integers(-1, 12))
    params = SamplingParams(grammar="g", presence_penalty=penalty, penalty_last_n=last)
    before = data.draw(st.integers(0, len(prompt)))
    history = TokenHistory(params, recent(prompt, params, before), before)
    for position, token in enumerate(made, start=len(prompt)):
        history.chosen(position, token)
    kept = data.draw(st.integers(0, len(made)))
    choice = history.choice(len(prompt) + kept - 1, (7, 8))
    seen = (*prompt[len(prompt) - before :], *made[:kept])
    assert choice.generated_before(0) == seen
    assert choice.generated_before(2) == (*seen, 7, 8)
    if penalty and last:
        wanted = recent([*prompt, *made[:kept]], replace(params, grammar=""))
        assert list(choice.history)[len(choice.history) - len(wanted) :] == wanted
    # Going back there forgets what was generated behind it.
    history.chosen(len(prompt) + kept, 99)
    assert history.choice(len(prompt) + kept).generated_before(0) == (*seen, 99)


def test_a_tail_that_cant_follow_grammars_refuses_them_and_others_hand_them_on():
    params = SamplingParams(grammar="g")
    limits = EngineLimits()
    tail = EngineCapabilities(1, 2, 2, 4, 9, limits)
    with pytest.raises(InvalidArgumentError, match="grammar"):
        require_grammar(params, tail)
    require_grammar(SamplingParams(), tail)
    require_grammar(params, replace(tail, supports_grammar=True))
    require_grammar(params, EngineCapabilities(0, 1, 2, 4, 0, limits))
