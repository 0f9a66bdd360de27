"""What is on its way along the chain, against a model of a chain that computes in any order."""

from collections import deque
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InternalError
from meshnet.domain.generation import GeneratedToken
from meshnet.node.track import MAX_ROWS_IN_FLIGHT, PLAIN, DecodeTrack, NextStep, Plan

PROMPT = 5


def truth(position: int) -> int:
    return position * position % 7


@dataclass
class Chain:
    """A tail that knows the right token after every right row, and checks what it is sent."""

    cache: list[int] = field(default_factory=lambda: [truth(at) for at in range(PROMPT)])
    queued: deque[NextStep] = field(default_factory=deque)

    def send(self, step: NextStep) -> None:
        if step.truncate:
            self.queued.clear()
        self.queued.append(step)

    def compute(self) -> list[tuple[int, GeneratedToken]]:
        step = self.queued.popleft()
        if step.truncate:
            assert step.position <= len(self.cache)
            del self.cache[step.position :]
        assert step.position == len(self.cache), "the cache must be as the step expects it"
        tokens = []
        for row in step.tokens:
            self.cache.append(row)
            at = len(self.cache)
            right = self.cache == [truth(place) for place in range(at)]
            tokens.append((step.number, GeneratedToken(at, truth(at) if right else 99)))
        return tokens


def started(limit: int = 1000, ends: frozenset[int] = frozenset()) -> DecodeTrack:
    track = DecodeTrack(PROMPT, limit, ends)
    step = track.number()
    assert track.take(step, GeneratedToken(PROMPT, truth(PROMPT))) is not None
    return track


PLANS = st.builds(Plan, st.integers(1, 8), st.integers(1, 8))


@given(PLANS, st.data())
def test_whatever_is_guessed_and_in_whatever_order_things_happen_the_tokens_are_right(plan, data):
    limit = PROMPT + 30
    track, chain = started(limit), Chain()
    taken = [truth(PROMPT)]
    coming: deque[tuple[int, GeneratedToken]] = deque()
    stale: list[tuple[int, GeneratedToken]] = []

    def guess(pending):
        at = PROMPT + len(taken) + len(pending)
        return data.draw(st.sampled_from([truth(at), truth(at), truth(at), 98, None]))

    while PROMPT + len(taken) < limit:
        step = track.due(plan, 100, guess) if data.draw(st.booleans()) else None
        if step is not None:
            assert len(step.tokens) <= plan.rows
            assert step.position + len(step.tokens) <= limit
            chain.send(step)
        elif chain.queued and data.draw(st.booleans()):
            coming.extend(chain.compute())
        elif coming:
            number, token = coming.popleft()
            stale.append((number, token))
            if track.take(number, token) is not None:
                assert token.position == PROMPT + len(taken)
                taken.append(token.token_id)
        elif chain.queued:
            coming.extend(chain.compute())
        else:
            step = track.due(plan, 100, guess)
            assert step is not None, "nothing is on its way, so that a step is due"
            chain.send(step)
        if stale and data.draw(st.integers(0, 9)) == 0:
            # What a broken stream may have lost comes again.
            assert all(track.take(*each) is None for each in stale)
    assert taken == [truth(PROMPT + index) for index in range(len(taken))]


def test_without_a_plan_one_row_at_a_time_is_sent():
    track = started()
    step = track.due(PLAIN, 100, lambda _: 1)
    assert step == NextStep(1, PROMPT, (truth(PROMPT),), truncate=False, alone=True)
    assert track.due(PLAIN, 100, lambda _: 1) is None
    assert track.take(1, GeneratedToken(PROMPT + 1, 3)) is not None
    assert track.due(PLAIN, 100, lambda _: 1) == NextStep(2, PROMPT + 1, (3,), False, True)


def test_a_wrong_guess_voids_all_that_was_sent_behind_it():
    track = started()
    plan = Plan(2, 3)
    steps = [track.due(plan, 100, lambda _: 50) for _ in range(4)]
    assert [step and step.tokens for step in steps] == [
        (truth(PROMPT), 50),
        (50, 50),
        (50, 50),
        None,
    ]
    taken = track.take(1, GeneratedToken(PROMPT + 1, 4))
    assert taken is not None
    assert taken.guessed is False
    assert not track.live(3)
    assert track.take(1, GeneratedToken(PROMPT + 2, 6)) is None
    assert track.take(2, GeneratedToken(PROMPT + 3, 6)) is None
    following = track.due(PLAIN, 100, lambda _: None)
    assert following == NextStep(4, PROMPT + 1, (4,), truncate=True, alone=True)


def test_as_many_rows_are_on_their_way_as_a_tail_keeps_tokens_of():
    track = started()
    plan = Plan(32, 32)
    rows = 0
    while (step := track.due(plan, 1000, lambda _: 1)) is not None:
        rows += len(step.tokens)
    assert MAX_ROWS_IN_FLIGHT - 1 <= rows <= MAX_ROWS_IN_FLIGHT


def test_nothing_is_guessed_behind_an_end_or_past_the_last_row():
    track = started(ends=frozenset({9}))
    step = track.due(Plan(8, 8), 100, lambda pending: 9 if len(pending) == 2 else 1)
    assert step is not None
    assert step.tokens == (truth(PROMPT), 1, 1, 9)
    assert track.due(Plan(8, 8), 100, lambda _: 1) is None
    track = started(limit=PROMPT + 3)
    step = track.due(Plan(8, 8), 100, lambda _: 1)
    assert step is not None
    assert len(step.tokens) == 3


def test_no_more_is_guessed_than_the_reader_has_room_for():
    track = started()
    step = track.due(Plan(8, 1), 2, lambda _: 1)
    assert step is not None
    assert len(step.tokens) == 3


@pytest.mark.parametrize(
    ("step", "position"), [(1, PROMPT + 1), (0, PROMPT + 2)], ids=["never sent", "out of turn"]
)
def test_a_token_that_cannot_be_is_told(step, position):
    with pytest.raises(InternalError, match="came back"):
        started().take(step, GeneratedToken(position, 1))
