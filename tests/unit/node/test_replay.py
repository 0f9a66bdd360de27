"""Tokens that are computed once more, and how their rows are sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import FingerprintMismatchError, InvalidArgumentError
from meshnet.domain.generation import GeneratedToken, GenerationSpec
from meshnet.node.replay import MOST_STEPS, Replay, replay_plan
from meshnet.node.track import MAX_ROWS_IN_FLIGHT, PLAIN, DecodeTrack


def test_another_token_than_before_isnt_gone_on_with():
    replay = Replay((7, 8))
    replay.confirm(GeneratedToken(3, 7))
    with pytest.raises(FingerprintMismatchError, match="position 4 came out as 9 instead of 8"):
        replay.confirm(GeneratedToken(4, 9))


def test_steps_that_cant_be_taken_back_go_one_after_the_other():
    assert replay_plan(0, 3) is PLAIN


@given(step_tokens=st.integers(1, 32), nodes=st.integers(1, 40))
def test_every_node_has_a_step_where_the_rows_in_flight_allow_it(step_tokens, nodes):
    plan = replay_plan(step_tokens, nodes)
    assert 1 <= plan.rows <= step_tokens
    assert plan.rows * plan.steps <= MAX_ROWS_IN_FLIGHT
    assert plan.steps <= MOST_STEPS
    assert plan.steps >= min(nodes, MOST_STEPS)


@given(
    prompt=st.integers(1, 5),
    tokens=st.lists(st.integers(0, 9), min_size=1, max_size=90),
    step_tokens=st.integers(0, 32),
    nodes=st.integers(1, 5),
    data=st.data(),
)
def test_each_row_is_sent_once_in_steps_of_so_many_rows_whenever_tokens_come_back(
    prompt, tokens, step_tokens, nodes, data
):
    """The tail answers what was sent, some of it at a time; the prompt gives the first token."""
    replay, plan = Replay(tokens), replay_plan(step_tokens, nodes)
    track = DecodeTrack(prompt, prompt + len(tokens) + 5, frozenset())
    answers = [(track.number(), prompt)]
    sent: list[int] = []
    while replay.left:
        step = track.due(plan, replay.left, replay.guess)
        if step is not None:
            assert not step.truncate
            assert len(step.tokens) <= max(step_tokens, 1)
            assert step.position == prompt + len(sent)
            sent += step.tokens
            answers += [(step.number, step.position + 1 + row) for row in range(len(step.tokens))]
        if step is None or data.draw(st.booleans()):
            number, position = answers.pop(0)
            token = GeneratedToken(position, tokens[position - prompt])
            taken = track.take(number, token)
            assert taken is not None and taken.guessed is not False
            replay.confirm(token)
    # The last one's row gives the first new token.
    if len(sent) < len(tokens):
        step = track.due(PLAIN, 0, lambda _: None)
        assert step is not None
        sent += step.tokens
    assert sent == tokens


def test_a_generation_begins_with_a_token_that_wasnt_generated():
    spec = GenerationSpec((1, 2, 3), generated=2)
    assert (spec.asked, spec.replayed) == ((1,), (2, 3))
    assert GenerationSpec((1, 2)).replayed == ()
    with pytest.raises(InvalidArgumentError, match="generated"):
        GenerationSpec((1, 2), generated=2)
