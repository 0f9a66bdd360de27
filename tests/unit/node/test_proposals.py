"""What prompt lookup proposes: the same as a slow search through the whole text."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from meshnet.node.proposals import LENGTHS, PromptLookup

FEW = st.lists(st.integers(0, 3), max_size=60)


def propose(log: Sequence[int], count: int) -> tuple[int, ...]:
    """The ``count`` tokens that came after the log's end where it occurred last; none if nowhere.

    Where the copy reaches the end of the log it goes on with its own beginning, so that a text with
    a period is continued with it.
    """
    source = _source(log)
    if source is None:
        return ()
    copied = list(log)
    for index in range(source, source + count):
        copied.append(copied[index])
    return tuple(copied[len(log) :])


def _source(log: Sequence[int]) -> int | None:
    for length in LENGTHS:
        ending = list(log[-length:])
        for start in range(len(log) - length - 1, -1, -1):
            if list(log[start : start + length]) == ending:
                return start + length
    return None


def test_the_text_after_the_last_occurrence_is_proposed():
    assert propose([1, 2, 7, 1, 2, 8, 9, 1, 2], 3) == (8, 9, 1)


def test_a_longer_match_counts_more_than_a_later_one():
    assert propose([5, 6, 1, 2, 7, 0, 1, 2, 8, 5, 6, 1, 2], 1) == (7,)


def test_a_period_is_continued_for_as_long_as_wanted():
    assert propose([9, 1, 2, 3, 1, 2, 3], 7) == (1, 2, 3, 1, 2, 3, 1)


def test_a_text_without_repetition_proposes_nothing():
    assert propose(range(20), 3) == ()
    assert propose([], 3) == ()


@given(FEW, st.integers(0, 12))
def test_a_proposal_goes_on_as_the_text_once_did(log, count):
    proposed = propose(log, count)
    assert len(proposed) in (0, count)
    if proposed:
        whole = [*log, *proposed]
        shortest = log[-min(LENGTHS) :]
        starts = [
            start
            for start in range(len(log) - len(shortest))
            if log[start : start + len(shortest)] == shortest
        ]
        after = [start + len(shortest) for start in starts]
        assert any(whole[at : at + count] == list(proposed) for at in after)


@given(FEW, st.integers(0, 12), st.data())
def test_the_index_says_the_same_a_token_at_a_time(log, count, data):
    lookup = PromptLookup()
    cut = data.draw(st.integers(0, len(log)))
    lookup.extend(log[:cut])
    for token in log[cut:]:
        lookup.guess(())
        lookup.extend((token,))
    pending: list[int] = []
    while len(pending) < count and (guess := lookup.guess(pending)) is not None:
        pending.append(guess)
    assert tuple(pending) == propose(log, count)


@given(FEW, st.integers(1, 12), st.integers(0, 12))
def test_guesses_go_on_where_they_were_when_some_came_true(log, count, true):
    lookup = PromptLookup()
    lookup.extend(log)
    pending: list[int] = []
    while len(pending) < count and (guess := lookup.guess(pending)) is not None:
        pending.append(guess)
    came = min(true, len(pending) - 1)
    if came < 1:
        return
    for token in pending[:came]:
        lookup.extend((token,))
    following = lookup.guess(pending[came:])
    assert (*pending, following) == propose(log, len(pending) + 1)
