"""A tail keeps as many tokens as the penalties look at, and no more."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.sampling import SamplingParams
from meshnet.node.history import TokenHistory, recent

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
