"""A tail keeps as many tokens as the penalties look at, and no more."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.sampling import SamplingParams
from meshnet.node.session import TokenHistory, recent

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
    assert TokenHistory(SamplingParams(), tokens).choice().history == ()


@given(TOKENS, TOKENS, st.integers(-1, 12))
def test_a_history_continued_at_the_tail_looks_like_the_whole_one(prompt, made, last):
    params = SamplingParams(presence_penalty=0.5, penalty_last_n=last)
    history = TokenHistory(params, recent(prompt, params))
    history.tokens += made if params.needs_history else []
    assert history.choice().history == tuple(recent(prompt + made, params))
