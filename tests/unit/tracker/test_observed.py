import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.leases import Policy
from meshnet.tracker.measurements import LinkReport
from meshnet.tracker.messages import LoadReport, Phase
from meshnet.tracker.observed import (
    LINK_RATE,
    LINK_SECONDS,
    UNMEASURED_STEP_SECONDS,
    Observed,
)
from meshnet.tracker.state import Share
from tests.support.clusters import MODEL, OTHER, RECIPE, beat, digest_of, layers, work

A, B, C = NodeId("a"), NodeId("b"), NodeId("c")
WHOLE = layers(0, 4)
HELD = Share(MODEL, WHOLE)


def test_a_node_is_live_until_its_lease_is_over():
    observed = Observed(0.0, Policy(lease_seconds=8.0))
    assert not observed.is_live(A, 0.0)
    observed.heard(A, beat(), 100.0)
    assert observed.is_live(A, 108.0)
    assert not observed.is_live(A, 108.1)
    assert observed.silent_seconds(A, 103.0) == 3.0
    assert observed.silent_seconds(B, 103.0) == 103.0


def test_only_what_is_ready_and_stays_is_served():
    observed = Observed(0.0)
    for said in (
        work(WHOLE, phase=Phase.STARTING),
        work(WHOLE, phase=Phase.FAILED),
        work(WHOLE, leaving=True),
    ):
        observed.heard(A, beat(work=[said]), 1.0)
        assert not observed.ranked(MODEL)
        assert observed.recipe_of(A, MODEL, WHOLE, 1.0) is None
    observed.heard(A, beat(work=[work(WHOLE), work(layers(0, 2), phase=Phase.FETCHING)]), 2.0)
    assert observed.recipe_of(A, MODEL, WHOLE, 2.0) == RECIPE
    assert observed.recipe_of(A, MODEL, layers(0, 2), 2.0) is None
    assert observed.recipe_of(A, OTHER, WHOLE, 2.0) is None
    assert observed.recipe_of(A, MODEL, WHOLE, 20.0) is None


def test_an_agent_that_was_started_again_begins_anew_and_its_old_one_counts_no_more():
    observed = Observed(0.0)
    observed.heard(A, beat(work=[work(WHOLE)], incarnation=3), 1.0)
    observed.erred(A, 1.0)
    observed.heard(A, beat(incarnation=4), 2.0)
    assert not observed.ranked(MODEL)
    assert not observed.is_avoided(A, 2.0)
    observed.heard(A, beat(work=[work(WHOLE)], incarnation=3), 3.0)
    assert not observed.ranked(MODEL)
    assert observed.silent_seconds(A, 3.0) == 1.0


def test_a_node_that_errs_is_avoided_and_then_tried_by_one_session():
    observed = Observed(0.0, Policy(first_avoid_seconds=2.0, most_avoid_seconds=60.0))
    observed.heard(A, beat(work=[work(WHOLE)]), 10.0)
    observed.erred(A, 10.0)
    assert observed.is_avoided(A, 11.9)
    assert not observed.is_avoided(A, 12.0)
    observed.took([A], 12.0)
    assert observed.is_avoided(A, 13.9)
    observed.erred(A, 13.0)
    assert observed.is_avoided(A, 16.9)
    observed.worked([A])
    assert not observed.is_avoided(A, 13.0)
    observed.took([A], 13.0)
    assert not observed.is_avoided(A, 13.0)


def test_sessions_that_were_given_to_a_node_count_until_it_says_how_many_it_has():
    observed = Observed(0.0)
    load = LoadReport(open_sessions=1, max_sessions=3, queued_steps=2, step_seconds=0.1)
    observed.heard(A, beat(work=[work(WHOLE)], load=load), 1.0)

    def expected() -> float:
        ((seconds, _),) = observed.ranked(MODEL)[RECIPE][WHOLE]
        return seconds

    assert expected() == pytest.approx(0.4)
    observed.took([A], 1.0)
    assert expected() == pytest.approx(0.5)
    observed.took([A], 1.0)
    assert expected() > 1000, "it has no place left"
    observed.heard(A, beat(work=[work(WHOLE)], load=load), 3.0)
    assert expected() == pytest.approx(0.4)


def test_a_nodes_speed_is_remembered_while_it_serves_the_same_layers():
    observed = Observed(0.0)

    def expected(span: LayerRange, step: float) -> float:
        observed.heard(A, beat(work=[work(span)], load=LoadReport(step_seconds=step)), 1.0)
        ((seconds, _),) = observed.ranked(MODEL)[RECIPE][span]
        return seconds

    assert expected(WHOLE, 0.0) == UNMEASURED_STEP_SECONDS
    assert expected(WHOLE, 0.1) == pytest.approx(0.1)
    assert expected(WHOLE, 0.0) == pytest.approx(0.1)
    assert 0.1 < expected(WHOLE, 0.2) < 0.2
    assert expected(layers(0, 2), 0.0) == UNMEASURED_STEP_SECONDS


def test_links_are_half_of_both_round_trips():
    observed = Observed(0.0)
    assert observed.link_seconds(A, B) == LINK_SECONDS
    for node, round_trip in ((A, 0.105), (B, 0.045), (C, 0.003)):
        observed.heard(node, beat(round_trip=round_trip), 1.0)
    assert observed.link_seconds(A, B) == pytest.approx(0.07)
    assert observed.link_seconds(C, C) == LINK_SECONDS
    assert observed.link_seconds(B, A) == pytest.approx(0.07)
    planned = observed.planned_links([A, B, C])
    exact = [[observed.link_seconds(one, other) for other in (A, B, C)] for one in (A, B, C)]
    ratios = (planned / np.array(exact))[~np.eye(3, dtype=bool)]
    assert ((ratios > 0.7) & (ratios < 1.42)).all()
    assert not planned.diagonal().any()


def test_plans_follow_a_round_trip_only_when_it_has_doubled_or_halved():
    observed = Observed(0.0)
    links = set()
    for turn in range(50):
        for node in (A, B):
            observed.heard(node, beat(round_trip=0.06 if turn % 2 else 0.09), float(turn))
        links.add(observed.planned_links([A, B]).tobytes())
    assert len(links) == 1


def test_what_is_forgotten_or_over_leaves_nothing_behind():
    observed = Observed(0.0)
    for node in (A, B):
        observed.heard(node, beat(work=[work(WHOLE)], round_trip=0.1), 1.0)
    assert observed.link_seconds(A, B) > LINK_SECONDS
    observed.forget(A)
    assert observed.sweep(5.0) == ()
    assert observed.link_seconds(A, B) == LINK_SECONDS
    assert observed.sweep(100.0) == (B,)
    assert not observed.ranked(MODEL)
    observed.heard(B, beat(work=[work(WHOLE)]), 101.0)
    assert observed.recipe_of(B, MODEL, WHOLE, 101.0) == RECIPE


def test_a_node_that_cannot_get_ready_is_blocked_though_it_tries_again_in_between():
    observed, now = Observed(0.0, Policy(failing_seconds=60.0)), 0.0
    for phase in (Phase.FAILED, Phase.FETCHING, Phase.STARTING) * 7:
        observed.heard(A, beat(work=[work(WHOLE, phase=phase)]), now, HELD)
        assert not observed.is_blocked(A, now) or now > 60
        now += 4.0
    assert observed.is_blocked(A, now)
    observed.heard(A, beat(work=[work(WHOLE)]), now, HELD)
    assert not observed.is_blocked(A, now)
    observed.heard(A, beat(work=[work(WHOLE, phase=Phase.FAILED)]), now + 1, HELD)
    assert not observed.is_blocked(A, now + 1), "it was ready: failing begins anew"


def test_only_the_layers_that_it_is_told_to_hold_make_a_node_good_or_bad():
    observed, now = Observed(0.0, Policy(failing_seconds=60.0, blocked_seconds=600.0)), 0.0
    old, new = layers(0, 2), layers(2, 4)
    said = [work(old), work(new, phase=Phase.FAILED)]
    for _ in range(32):
        observed.heard(A, beat(work=said), now, Share(MODEL, new))
        observed.heard(B, beat(work=said), now, Share(MODEL, old))
        now += 2.0
    assert observed.is_blocked(A, now)
    assert not observed.is_blocked(B, now)
    observed.heard(A, beat(work=said), now, None)
    assert observed.is_blocked(A, now), "being told nothing is no cure"


def test_other_layers_are_a_new_chance_before_a_node_is_blocked():
    observed = Observed(0.0, Policy(failing_seconds=60.0))
    for now, span in ((0.0, WHOLE), (50.0, layers(0, 2)), (70.0, layers(0, 2))):
        observed.heard(A, beat(work=[work(span, phase=Phase.FAILED)]), now, Share(MODEL, span))
        assert not observed.is_blocked(A, now)


def test_the_silence_of_a_machine_that_just_joined_counts_from_then():
    observed = Observed(0.0)
    observed.joined(A, 90_000.0)
    assert observed.silent_seconds(A, 90_001.0) == 1.0
    assert observed.silent_seconds(B, 90_001.0) == 90_001.0
    observed.heard(A, beat(), 90_002.0)
    assert observed.silent_seconds(A, 90_005.0) == 3.0
    observed.joined(A, 180_000.0)  # it was away, and joins again
    assert observed.snapshot().silent_seconds(A, 180_001.0) == 1.0


def test_a_time_in_which_nobody_listened_is_nobodys_silence_but_the_deads():
    observed = Observed(0.0, Policy(lease_seconds=8.0))
    for node, heard_at in ((A, 100.0), (B, 94.0), (C, 90.0)):
        observed.heard(node, beat(), heard_at)
    observed.excuse(100.0, 130.0)
    assert [observed.is_live(node, 137.0) for node in (A, B, C)] == [True, True, False]
    assert observed.silent_seconds(NodeId("never"), 137.0) == 137.0


def test_what_was_served_once_leaves_nothing_behind():
    observed = Observed(0.0)
    for letter in "0123456789abcdef":
        observed.heard(A, beat(work=[work(WHOLE, digest_of(letter))]), 1.0)
    observed.heard(A, beat(), 2.0)
    assert observed._ranked == {}


said = st.tuples(
    st.sampled_from(["heard", "took", "erred", "worked", "forget", "sweep"]),
    st.sampled_from([A, B, C]),
    st.sampled_from([layers(0, 2), layers(2, 4), WHOLE, None]),
    st.integers(0, 3),
    st.floats(0, 5),
)


@given(st.lists(said, max_size=40))
def test_the_order_is_that_of_the_figures_whatever_comes_in(happened):
    observed, now = Observed(0.0), 0.0
    for what, node, held, sessions, passed in happened:
        now += passed
        if what == "heard":
            served = [] if held is None else [work(held, MODEL if sessions else OTHER)]
            load = LoadReport(open_sessions=sessions, step_seconds=passed / 10)
            observed.heard(node, beat(work=served, load=load), now)
        elif what == "sweep":
            observed.sweep(now)
        elif what == "erred":
            observed.erred(node, now)
        elif what == "forget":
            observed.forget(node)
        elif what == "took":
            observed.took([node], now)
        else:
            observed.worked([node])
        require_ordered(observed, now)


def require_ordered(observed: Observed, now: float) -> None:
    places = []
    for digest in (MODEL, OTHER):
        for ranges in observed.ranked(digest).values():
            for span, ranked in ranges.items():
                assert ranked == sorted(ranked)
                places += [(node, digest, span) for _, node in ranked]
    assert len({node for node, _, _ in places}) == len(places)
    for node in (A, B, C):
        record = observed.record(node)
        if record is not None and record.serving is not None and observed.is_live(node, now):
            span = layers(record.serving.start, record.serving.end)
            assert (node, record.serving.model, span) in places


def link(other: NodeId, trip: float, rate: int = 0) -> LinkReport:
    return LinkReport(node_id=other, round_trip_seconds=trip, bytes_per_second=rate)


def test_a_measured_link_counts_more_than_the_ways_to_the_tracker():
    observed, far, near = Observed(0.0), NodeId("1" * 16), NodeId("2" * 16)
    for node in (far, near):
        observed.heard(node, beat(round_trip=0.2), 1.0)
    assert observed.link_seconds(far, near) > 0.1
    observed.heard(far, beat(links=[link(near, 0.0415, 10**6)]), 2.0)
    for one, other in ((far, near), (near, far)):
        assert observed.link_seconds(one, other) == pytest.approx(0.02)
        took = 10_000 / 1e6 - 10_000 / LINK_RATE
        assert observed.link_seconds(one, other, 10_000) == pytest.approx(0.02 + took)
        hop = observed.hop(one, other)
        assert (hop.latency_seconds, hop.bytes_per_second) == (0.0415 / 2, 1e6)
    planned = observed.planned_links([far, near, NodeId("3" * 16)], 10_000)
    assert planned[0, 1] == planned[1, 0] == pytest.approx(0.03, rel=0.5)
    assert planned[0, 2] > planned[0, 1]
    # A heartbeat that says nothing of links leaves them as they were; an empty one doesn't.
    observed.heard(far, beat(), 3.0)
    assert observed.link_seconds(far, near) == pytest.approx(0.02)
    observed.heard(far, beat(links=[]), 4.0)
    assert observed.link_seconds(far, near) > 0.1


def test_links_of_a_local_network_are_alike_however_they_were_measured():
    observed = Observed(0.0)
    nodes = [NodeId(digit * 16) for digit in "123"]
    observed.heard(nodes[0], beat(links=[link(nodes[1], 0.0008, 10**9)]), 1.0)
    observed.heard(nodes[1], beat(links=[link(nodes[2], 0.0014, 2 * 10**8)]), 1.0)
    observed.heard(nodes[2], beat(), 1.0)
    planned = observed.planned_links(nodes, 16_384)
    assert set(planned[~np.eye(3, dtype=bool)]) == {LINK_SECONDS}
