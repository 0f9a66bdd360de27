"""When a generation ends, decided from values alone."""

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.node.head import verdict

END = 9


def spec(limit: int | None = None) -> GenerationSpec:
    return GenerationSpec((1, 2, 3), max_new_tokens=limit, end_ids=frozenset({END}))


def test_an_ending_token_stops_even_where_a_limit_is_reached_too():
    assert verdict(spec(1), 4, GeneratedToken(3, END), 0) is FinishReason.STOP


def test_the_limit_counts_the_token_itself():
    assert verdict(spec(2), 100, GeneratedToken(3, 5), 0) is None
    assert verdict(spec(2), 100, GeneratedToken(4, 5), 1) is FinishReason.LENGTH


def test_the_last_position_of_the_context_may_be_filled():
    assert verdict(spec(), 6, GeneratedToken(4, 5), 1) is None
    assert verdict(spec(), 6, GeneratedToken(5, 5), 2) is FinishReason.LENGTH


@given(
    prompt=st.integers(1, 40),
    room=st.integers(1, 40),
    limit=st.none() | st.integers(1, 50),
    tokens=st.lists(st.integers(0, END), min_size=100, max_size=100),
)
def test_a_loop_over_verdicts_ends_where_the_first_rule_says(prompt, room, limit, tokens):
    wanted = GenerationSpec((1,) * prompt, max_new_tokens=limit, end_ids=frozenset({END}))
    context = prompt + room
    reported, reason = 0, None
    for position, token in enumerate(tokens, start=prompt):
        reason = verdict(wanted, context, GeneratedToken(position, token), reported)
        reported += reason is not FinishReason.STOP
        if reason is not None:
            break
    most = room if limit is None else min(room, limit)
    ending = tokens.index(END) if END in tokens else len(tokens)
    assert reported == min(ending, most)
    assert reason is (FinishReason.STOP if ending < most else FinishReason.LENGTH)
