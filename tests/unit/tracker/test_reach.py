"""When a node goes over the relay, and when it does no more."""

import pytest

from meshnet.domain.ids import Address, NodeId
from meshnet.tracker.messages import Way
from meshnet.tracker.reach import (
    CHECK_SECONDS,
    DOUBT_SECONDS,
    PATIENCE_SECONDS,
    Place,
    Reach,
    looked,
)

NODE, OWN, RELAY = NodeId("aa"), Address("10.0.0.2:7000"), Address("10.0.0.1:7701")


@pytest.fixture
def reach() -> Reach:
    known = Reach(RELAY)
    known.stated(NODE, OWN, 0.0)
    return known


def look(reach: Reach, now: float, *, answered: bool) -> None:
    assert reach.due(now) == ((NODE, OWN),)
    assert reach.due(now) == ()
    reach.looked(NODE, OWN, answered=answered, now=now)


def test_a_node_that_answers_is_reached_at_its_address(reach):
    assert reach.way(NODE) is Way.UNKNOWN
    assert reach.out_of_reach == {NODE}
    look(reach, 0.0, answered=True)
    assert (reach.way(NODE), reach.relay_of(NODE)) == (Way.DIRECT, None)
    assert reach.address(NODE, OWN) == OWN
    assert not reach.out_of_reach


def test_one_that_does_not_goes_over_the_relay_once_it_waits_there(reach):
    look(reach, 0.0, answered=False)
    assert reach.relayed == {NODE}
    assert (reach.way(NODE), reach.relay_of(NODE)) == (Way.NONE, RELAY)
    assert reach.out_of_reach == {NODE}
    reach.wait_at_relay({NODE}, 0.0)
    assert reach.way(NODE) is Way.RELAYED
    assert reach.address(NODE, OWN) == RELAY
    assert not reach.out_of_reach


def test_one_whose_connections_are_all_taken_has_a_moment_to_make_new_ones(reach):
    look(reach, 0.0, answered=False)
    reach.wait_at_relay({NODE}, 10.0)
    reach.wait_at_relay((), 10.5)
    assert reach.way(NODE) is Way.RELAYED
    reach.wait_at_relay((), 10.0 + PATIENCE_SECONDS)
    assert reach.way(NODE) is Way.NONE
    reach.wait_at_relay({NODE}, 30.0)
    assert reach.way(NODE) is Way.RELAYED


def test_one_that_waited_before_the_tracker_was_started_again_has_it_too():
    reach = Reach(RELAY, {NODE}, 100.0)
    reach.stated(NODE, OWN, 100.0)
    reach.wait_at_relay((), 100.5)
    assert reach.way(NODE) is Way.RELAYED
    reach.wait_at_relay((), 100.0 + PATIENCE_SECONDS)
    assert reach.way(NODE) is Way.NONE


def test_the_relay_is_given_up_as_soon_as_the_address_works_again(reach):
    look(reach, 0.0, answered=False)
    reach.wait_at_relay({NODE}, 0.0)
    look(reach, 2 * CHECK_SECONDS, answered=True)
    assert reach.way(NODE) is Way.DIRECT
    assert (reach.relayed, reach.relay_of(NODE)) == (frozenset(), None)
    assert reach.address(NODE, OWN) == OWN


def test_an_address_that_worked_is_given_up_only_when_it_fails_again_soon(reach):
    look(reach, 0.0, answered=True)
    later = 2 * CHECK_SECONDS
    look(reach, later, answered=False)
    assert reach.way(NODE) is Way.DIRECT
    assert reach.due(later + DOUBT_SECONDS / 2) == ()
    look(reach, later + DOUBT_SECONDS, answered=False)
    assert reach.way(NODE) is Way.NONE


def next_look(reach: Reach, after: float) -> float:
    """When it is due again, to half a second."""
    return next(at for at in (after + step / 2 for step in range(200)) if reach.due(at))


def test_one_that_nobody_can_reach_is_looked_at_again_soon_and_then_less_often(reach):
    at, times = next_look(reach, 0.0), []
    for _ in range(5):
        reach.looked(NODE, OWN, answered=False, now=at)
        times.append(next_look(reach, at) - at)
        at += times[-1]
    assert times[:3] == [2 * DOUBT_SECONDS, 4 * DOUBT_SECONDS, 8 * DOUBT_SECONDS]
    assert times[3] == times[4] > 0.8 * CHECK_SECONDS
    reach.looked(NODE, OWN, answered=True, now=at)
    assert reach.way(NODE) is Way.DIRECT


def test_one_that_waits_at_the_relay_is_looked_at_as_often_as_ever(reach):
    reach.wait_at_relay({NODE}, 0.0)
    look(reach, 0.0, answered=False)
    assert next_look(reach, 0.0) > 0.8 * CHECK_SECONDS


def test_another_address_is_tried_at_once_and_what_was_said_of_the_old_one_is_nothing(reach):
    look(reach, 0.0, answered=False)
    other = Address("10.0.0.2:7001")
    reach.stated(NODE, other, 1.0)
    assert reach.way(NODE) is Way.UNKNOWN
    reach.looked(NODE, OWN, answered=True, now=1.0)
    assert reach.way(NODE) is Way.UNKNOWN
    assert reach.due(1.0) == ((NODE, other),)


def test_stating_the_same_again_changes_nothing(reach):
    look(reach, 0.0, answered=True)
    reach.stated(NODE, OWN, 5.0)
    assert reach.way(NODE) is Way.DIRECT
    assert reach.due(5.0) == ()


def test_a_node_whose_worker_says_nothing_for_a_moment_is_reached_as_before(reach):
    look(reach, 0.0, answered=False)
    reach.stated(NODE, None, 1.0)
    reach.stated(NODE, OWN, 2.0)
    assert reach.relay_of(NODE) == RELAY
    assert reach.due(2.0) == ()


def test_a_node_that_is_no_member_any_more_is_not_tried(reach):
    look(reach, 0.0, answered=False)
    reach.forget(NODE)
    assert reach.due(1e6) == ()
    assert (reach.relayed, reach.out_of_reach) == (frozenset(), frozenset())


def test_a_look_that_nothing_is_heard_of_comes_again(reach):
    assert reach.due(0.0)
    assert reach.due(2 * CHECK_SECONDS) == ((NODE, OWN),)


def test_nodes_do_not_fall_into_step():
    due = [looked(Place(OWN, 0.0), answered=True, now=0.0, apart=it).due_at for it in (0.0, 1.0)]
    assert due == pytest.approx([0.8 * CHECK_SECONDS, 1.2 * CHECK_SECONDS])


def test_without_a_relay_every_address_is_taken_as_it_is():
    reach = Reach()
    reach.stated(NODE, OWN, 0.0)
    assert reach.due(0.0) == ()
    assert (reach.way(NODE), reach.address(NODE, OWN)) == (Way.DIRECT, OWN)


def test_who_waits_at_the_relay_when_a_tracker_begins_stays_until_its_address_answers():
    reach = Reach(RELAY, [NODE])
    assert reach.relayed == {NODE}
    reach.stated(NODE, OWN, 0.0)
    assert (reach.way(NODE), reach.relay_of(NODE)) == (Way.RELAYED, RELAY)
    look(reach, 0.0, answered=True)
    assert (reach.way(NODE), reach.relayed) == (Way.DIRECT, set())
    reach.stated(NODE, Address("10.0.0.2:7001"), 1.0)
    assert reach.way(NODE) is Way.UNKNOWN


def test_links_are_measured_by_the_way_that_chains_take(reach):
    assert reach.way_to(NODE, OWN) is None
    look(reach, 0.0, answered=True)
    assert reach.way_to(NODE, OWN) == OWN
    reach = Reach(RELAY, [NODE])
    reach.stated(NODE, OWN, 0.0)
    assert reach.way_to(NODE, OWN) == RELAY
