import pytest

from meshnet.domain.ids import Address, NodeId
from meshnet.tracker.linkbook import (
    FORGOTTEN_SECONDS,
    RATE_SECONDS,
    ROUND_TRIP_SECONDS,
    TELL_SECONDS,
    LinkBook,
    Question,
    Target,
)
from meshnet.tracker.messages import MAX_LINKS

TRACKER = Target(None, Address("t:1"))


def target(number: int, port: int = 1) -> Target:
    return Target(NodeId(f"{number:016x}"), Address(f"m{number}:{port}"))


def answer(book: LinkBook, now: float, trip: float = 0.002, rate: float = 1e8) -> Question:
    question = book.due(now)
    assert question is not None
    book.measured(question, trip, rate if question.rate else None, now)
    return question


def test_every_link_is_measured_at_once_with_its_rate_and_then_its_round_trip_each_minute():
    book = LinkBook(TRACKER.address)
    book.want([target(1)], 0.0)
    assert [answer(book, 0.0), answer(book, 0.0)] == [
        Question(TRACKER, rate=True),
        Question(target(1), rate=True),
    ]
    assert book.due(ROUND_TRIP_SECONDS - 1) is None
    assert answer(book, ROUND_TRIP_SECONDS) == Question(TRACKER, rate=False)
    assert answer(book, RATE_SECONDS) == Question(target(1), rate=True)


def test_another_way_is_measured_anew_and_believed_at_once():
    book = LinkBook(TRACKER.address)
    answer(book, 0.0, trip=0.001)
    answer(book, 100.0, trip=0.0012)
    (report,) = book.news(100.0) or ()
    assert report.round_trip_seconds == pytest.approx(0.00106)
    assert answer(book, 200.0, trip=0.05) == Question(TRACKER, rate=False)
    assert answer(book, 200.0, trip=0.05, rate=1e6) == Question(TRACKER, rate=True)
    (report,) = book.news(200.0) or ()
    assert (report.round_trip_seconds, report.bytes_per_second) == (0.05, 1_000_000)


def test_only_changes_are_told_and_all_of_it_now_and_then():
    book = LinkBook(TRACKER.address)
    assert book.news(0.0) == ()
    answer(book, 1.0)
    assert len(book.news(1.0) or ()) == 1
    assert book.news(2.0) is None
    assert book.news(1.0 + TELL_SECONDS) is not None
    assert book.news(2.0 + TELL_SECONDS) is None
    book.untold()
    assert book.news(2.0 + TELL_SECONDS) is not None


def test_a_link_over_the_relay_is_another_link_than_the_direct_one():
    book = LinkBook(TRACKER.address)
    book.want([target(1)], 0.0)
    answer(book, 0.0)
    direct = book.due(0.0)
    assert direct is not None
    book.want([target(1, port=9)], 1.0)
    book.measured(direct, 0.001, 1e9, 1.0)
    # What was measured of the direct way says nothing of the other.
    assert [report.node_id for report in book.news(1.0) or ()] == [None]
    assert answer(book, 1.0) == Question(target(1, port=9), rate=True)


def test_a_machine_that_doesnt_answer_isnt_told_of_and_is_tried_again():
    book = LinkBook(TRACKER.address)
    answer(book, 0.0)
    question = answer(book, ROUND_TRIP_SECONDS)
    book.failed(question, ROUND_TRIP_SECONDS)
    assert book.news(ROUND_TRIP_SECONDS) == ()
    assert book.due(ROUND_TRIP_SECONDS + 1) is None
    assert answer(book, 2 * ROUND_TRIP_SECONDS) == Question(TRACKER, rate=True)


def test_there_are_never_more_links_than_a_heartbeat_tells_of():
    book = LinkBook(TRACKER.address)
    for turn in range(50):
        now = turn * 10.0
        book.want([target(number) for number in range(turn, turn + 5)], now)
        while book.due(now) is not None:
            answer(book, now)
        told = [report.node_id for report in book.news(now) or ()]
        assert len(told) <= MAX_LINKS
        assert None in told
        assert {target(number).node_id for number in range(turn, turn + 5)} <= set(told)


def test_what_isnt_wanted_any_more_is_kept_for_a_while_without_being_measured():
    book = LinkBook(TRACKER.address)
    book.want([target(1)], 0.0)
    answer(book, 0.0)
    answer(book, 0.0)
    book.want([], 1.0)
    assert answer(book, ROUND_TRIP_SECONDS) == Question(TRACKER, rate=False)
    assert book.due(ROUND_TRIP_SECONDS) is None
    assert len(book.news(ROUND_TRIP_SECONDS) or ()) == 2
    book.want([], FORGOTTEN_SECONDS + 1)
    assert [it.node_id for it in book.news(FORGOTTEN_SECONDS + 1) or ()] in ([], [None])
