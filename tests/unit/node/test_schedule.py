"""Whose step is next, and how much of it, decided from values alone."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.node.schedule import (
    MOST_DECODES,
    PIECE_OF_DECODE,
    Cut,
    Pace,
    Ready,
    StepCosts,
    Turn,
    choose_step,
    lone_decode,
)


def session(name: int | str) -> SessionKey:
    return SessionKey(RouteSessionId(str(name)), 0)


def decode(name: int | str, rows: int = 1) -> Ready:
    return Ready(session(name), rows)


def chunk(name: int | str, rows: int = 32, least: int = 1) -> Ready:
    return Ready(session(name), rows, prefill=True, least_piece=least)


def test_all_waiting_decodes_form_one_step():
    choice = choose_step([decode(1), decode(2), decode(3, 4)], Turn(), 32, None)
    assert (choice.indices, choice.rows, choice.prefill) == ((0, 1, 2), 6, False)


def test_prefill_and_decode_take_turns():
    waiting = [decode(1), chunk(2), decode(3)]
    assert choose_step(waiting, Turn(decodes=0), 32, None).indices == (0, 2)
    assert choose_step(waiting, Turn(decodes=1), 32, None).indices == (1,)


def test_a_chunk_is_taken_whole_where_nobody_generates_or_its_bits_would_change():
    assert choose_step([chunk(1)], Turn(), 32, None).rows == 32
    assert choose_step([chunk(1)], Turn(), 32, Cut(5)).rows == 5
    assert choose_step([chunk(1, least=0)], Turn(), 32, Cut(5)).rows == 32


def test_no_piece_has_fewer_rows_than_leave_the_bits_alone():
    assert choose_step([chunk(1, 32, least=4)], Turn(), 32, Cut(1)).rows == 4
    assert choose_step([chunk(1, 7, least=4)], Turn(), 32, Cut(1)).rows == 7
    assert choose_step([chunk(1, 8, least=4)], Turn(), 32, Cut(1)).rows == 4


def test_of_one_session_only_the_first_step_may_run():
    waiting = [chunk(1), decode(1), decode(2)]
    assert choose_step(waiting, Turn(decodes=0), 32, None).indices == (2,)
    assert choose_step(waiting[:2], Turn(decodes=0), 32, None).indices == (0,)


@dataclass
class Play:
    """The engine's queue, played step by step; what ran is written down."""

    waiting: list[Ready]
    decode_rows: int
    cut: Cut | None
    turn: Turn = field(default_factory=Turn)
    steps: list[list[Ready]] = field(default_factory=list)

    def step(self) -> None:
        choice = choose_step(self.waiting, self.turn, self.decode_rows, self.cut)
        self.turn = choice.turn
        ran = [self.waiting[index] for index in choice.indices]
        left = [each for i, each in enumerate(self.waiting) if i not in choice.indices]
        if choice.prefill:
            (part,) = ran
            if choice.rows < part.rows:
                left.insert(0, replace(part, rows=part.rows - choice.rows))
            ran = [replace(part, rows=choice.rows)]
        self.waiting = left
        self.steps.append(ran)


entries = st.builds(
    Ready, st.integers(0, 4).map(session), st.integers(4, 40), st.booleans(), st.integers(0, 4)
)
queues = st.lists(entries, min_size=1, max_size=40)


@given(queues, st.integers(1, 40), st.none() | st.integers(1, 9))
def test_everything_runs_once_and_a_sessions_steps_in_their_order(queue, decode_rows, piece_rows):
    play = Play(list(queue), decode_rows, piece_rows and Cut(piece_rows))
    for _ in range(sum(each.rows for each in queue)):
        if play.waiting:
            play.step()
    assert not play.waiting
    for key in {each.session for each in queue}:
        ran = [(e.prefill, e.rows) for step in play.steps for e in step if e.session == key]
        wanted = [(each.prefill, each.rows) for each in queue if each.session == key]
        for prefill, rows in wanted:
            left = rows
            while left:
                assert ran[0][0] is prefill
                left -= ran.pop(0)[1]
        assert not ran


@given(queues, st.integers(1, 40), st.none() | st.integers(1, 9))
def test_a_step_has_one_kind_and_keeps_its_bounds(queue, decode_rows, piece_rows):
    play = Play(list(queue), decode_rows, piece_rows and Cut(piece_rows))
    while play.waiting:
        play.step()
    for step in play.steps:
        assert len({each.prefill for each in step}) == 1
        assert len({each.session for each in step}) == len(step)
        if step[0].prefill:
            assert len(step) == 1
            (part,) = step
            if piece_rows is not None and part.least_piece:
                assert part.least_piece <= part.rows < piece_rows + 2 * part.least_piece
        else:
            assert len(step) == 1 or sum(each.rows for each in step) <= decode_rows


@given(queues, st.integers(1, 32), st.none() | st.integers(1, 9))
def test_two_steps_pass_at_most_before_the_oldest_token_is_computed(queue, rows, piece_rows):
    play = Play([each for each in queue if each.prefill], rows, piece_rows and Cut(piece_rows))
    for _ in range(len(queue)):
        if play.waiting:
            play.step()
    began = len(play.steps)
    play.waiting.append(decode("talker"))
    while play.waiting:
        play.step()
    first = next(i for i, step in enumerate(play.steps) if step[0].session == session("talker"))
    # A piece, and its own step.
    assert first - began <= 1


@given(st.integers(2, 5), st.integers(1, 6), st.booleans())
def test_a_prompt_gets_every_second_step_beside_any_number_of_talkers(talkers, pieces, whole):
    play = Play([], 1, Cut(4))
    play.waiting = [chunk("long", 4 * pieces, least=0 if whole else 1)]
    play.waiting += [decode(each) for each in range(talkers)]
    steps = 0
    while any(each.prefill for each in play.waiting):
        play.step()
        steps += 1
        # The talkers never rest.
        here = {each.session for each in play.waiting}
        play.waiting += [decode(i) for i in range(talkers) if session(i) not in here]
    assert steps <= 2 * (1 if whole else pieces)


@given(st.lists(st.integers(1, 8), min_size=2, max_size=5), st.integers(1, 8))
def test_prompts_take_turns_however_many_chunks_each_has(counts, piece_rows):
    """No prompt is more than one piece ahead of another that has chunks left."""
    play = Play([], 32, Cut(piece_rows))
    play.waiting = [chunk(name, 8) for name, count in enumerate(counts) for _ in range(count)]
    pieces = Counter[SessionKey]()
    while play.waiting:
        left = {each.session for each in play.waiting}
        play.step()
        (part,) = play.steps[-1]
        assert all(pieces[part.session] <= pieces[other] for other in left)
        pieces[part.session] += 1


def test_a_new_prompt_is_served_before_those_that_had_their_turn():
    turn = Turn(served=(session("a"), session("b")))
    waiting = [chunk("a"), chunk("b"), chunk("new")]
    choice = choose_step(waiting, turn, 32, None)
    assert choice.indices == (2,)
    assert choice.turn.served == (session("a"), session("b"), session("new"))
    assert choose_step(waiting[:2], choice.turn, 32, None).indices == (0,)


def test_costs_are_read_between_and_beyond_what_was_measured():
    costs = StepCosts().seen(1, 1.0).seen(5, 3.0)
    assert [costs.seconds(rows) for rows in (1, 3, 5, 6, 11)] == [1.0, 2.0, 3.0, 3.0, 6.0]
    assert StepCosts().seconds(4) is None
    assert StepCosts().seen(4, 2.0).seconds(2) == pytest.approx(1.0)


def test_a_machine_on_which_rows_cost_nothing_is_found_out():
    costs = StepCosts()
    rows = 1
    for _ in range(31):
        costs = costs.seen(rows, 0.01)
        rows = Pace().cut(costs, 1, 1, 32).rows
    assert rows == 32


def test_costs_follow_a_machine_that_becomes_slower():
    costs = StepCosts().seen(2, 1.0)
    costs = costs.seen(2, 30.0)
    assert (costs.seconds(2) or 0) < 2.5, "once may be chance"
    for _ in range(80):
        costs = costs.seen(2, 3.0)
    assert costs.seconds(2) == pytest.approx(3.0, rel=0.05)


@given(
    st.dictionaries(st.integers(1, 32), st.floats(0.001, 1.0), min_size=1, max_size=6),
    st.floats(0.001, 2.0),
)
def test_a_piece_takes_no_longer_than_it_may_by_all_that_is_known(means, budget):
    costs = StepCosts(means)
    rows = costs.rows_within(budget, 32)
    estimate = costs.seconds(rows)
    assert estimate is not None
    assert rows == 1 or estimate <= budget
    assert all((costs.seconds(more) or 0) > budget for more in range(rows + 1, 33))


def test_a_piece_is_as_long_as_a_talkers_step_allows_or_as_the_node_was_told():
    costs = StepCosts().seen(1, 0.010).seen(32, 0.320)
    assert Pace().cut(costs, 4, 1, 32).rows == int(4 * PIECE_OF_DECODE)
    assert Pace(max_gap_seconds=0.1).cut(costs, 4, 1, 32).rows == 10
    assert Pace().cut(StepCosts(), 1, 1, 32).rows == 32


def test_of_pieces_that_must_be_longer_anyway_one_takes_the_rows_along_that_cost_nothing():
    costs = StepCosts({1: 0.013, 2: 0.026, 3: 0.027, 4: 0.036})
    assert Pace().cut(costs, 1, 1, 32).rows == 1
    assert Pace().cut(costs, 1, 2, 32).rows == 3


def test_a_piece_that_takes_too_long_lets_more_tokens_go_first_but_not_for_ever():
    costs = StepCosts({1: 0.01, 32: 0.32})
    assert Pace().cut(costs, 1, 2, 32) == Cut(2, 2)
    assert Pace().cut(costs, 1, 32, 32) == Cut(32, MOST_DECODES)
    waiting = [chunk("long", least=0), decode(1)]
    turn = Turn(decodes=0)
    for _ in range(MOST_DECODES):
        choice = choose_step(waiting, turn, 32, Cut(32, MOST_DECODES))
        assert not choice.prefill
        turn = choice.turn
    assert choose_step(waiting, turn, 32, Cut(32, MOST_DECODES)).prefill
    assert choose_step(waiting[:1], Turn(decodes=0), 32, Cut(32, MOST_DECODES)).prefill


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 32))
def test_a_lone_decode_step_is_chosen_as_if_there_were_a_choice(rows, decodes, limit):
    turn = Turn(decodes, (session("prompt"),))
    assert lone_decode(rows, turn) == choose_step([decode("lone", rows)], turn, limit, None)


def test_where_more_rows_cost_nothing_a_chunk_stays_whole():
    costs = StepCosts().seen(1, 0.020).seen(32, 0.022)
    assert Pace().cut(costs, 1, 1, 32).rows == 32


@pytest.mark.parametrize(
    "changed", [{"max_gap_seconds": -1.0}, {"talking_seconds": 0.0}, {"max_gap_seconds": 1e999}]
)
def test_a_pace_that_cant_be_is_refused(changed):
    with pytest.raises(InvalidArgumentError):
        Pace(**changed)
