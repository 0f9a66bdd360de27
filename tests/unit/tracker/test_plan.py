import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.ids import NodeId
from meshnet.tracker.events import (
    ModelWithdrawn,
    NodeDrained,
    NodeForgotten,
    NodeRemoved,
    NodeUndrained,
    Placed,
    TokenIssued,
    TokenRevoked,
)
from meshnet.tracker.leases import Policy
from meshnet.tracker.measurements import SpeedReport
from meshnet.tracker.messages import Phase
from meshnet.tracker.observed import Observed
from meshnet.tracker.placement import Objective
from meshnet.tracker.plan import plan
from meshnet.tracker.speeds import Speed
from meshnet.tracker.state import apply_all
from tests.support.clusters import MODEL, OTHER, Cluster, beat, cluster_of, layers, offered, work


def test_a_model_is_placed_as_soon_as_the_machines_are_enough():
    cluster = cluster_of(("a", 40))
    assert cluster.seats() == {}
    cluster.join("b", 40)
    cluster.until_settled()
    assert sorted(cluster.seats().values()) == [(0, 4), (4, 8)]


def test_the_replacement_of_a_dead_machine_takes_just_its_layers():
    cluster = cluster_of(("a", 30), ("b", 30), ("c", 20))
    before = cluster.seats()
    cluster.join("d", 5)
    cluster.until_settled()
    assert cluster.seats() == before
    cluster.join("e", 35)
    cluster.until_settled()
    held = before["b"]
    others = {name: seat for name, seat in before.items() if name != "b"}
    cluster.lose("b")
    assert cluster.seats() == {**others, "e": held}


def test_nobody_else_moves_where_two_machines_must_share_a_dead_ones_layers():
    cluster = cluster_of(("a", 40), ("b", 40))
    before = cluster.seats()
    cluster.join("c", 20)
    cluster.join("d", 20)
    cluster.until_settled()
    cluster.lose("b")
    seats = cluster.seats()
    assert seats["a"] == before["a"]
    assert {seats["c"], seats["d"]} in ({(0, 2), (2, 4)}, {(4, 6), (6, 8)})


def test_a_second_holder_of_other_layers_takes_those_of_a_dead_machine():
    cluster = cluster_of(("a", 40), ("b", 40), ("c", 40))
    assert sorted(cluster.seats()) == ["a", "b", "c"]
    for name in "abc":
        again = cluster_of(("a", 40), ("b", 40), ("c", 40))
        again.lose(name)
        left = {seat for other, seat in again.seats().items() if other != name}
        assert left == {(0, 4), (4, 8)}


def test_a_machine_that_joins_while_all_layers_are_held_doubles_the_slowest_ones():
    cluster = Cluster()
    cluster.happen(offered(8, objective=Objective.THROUGHPUT))
    cluster.join("quick", 40, 1000.0)
    cluster.join("slow", 40, 100.0)
    cluster.until_settled()
    before = cluster.seats()
    cluster.join("more", 40, 100.0)
    cluster.until_settled()
    assert cluster.seats() == {**before, "more": before["slow"]}


def test_a_machine_that_can_hold_the_whole_model_saves_its_readers_the_links():
    cluster = Cluster()
    cluster.happen(offered(8))
    cluster.join("a", 40, 1e6)
    cluster.join("b", 40, 1e6)
    cluster.until_settled()
    before = cluster.seats()
    cluster.join("c", 100, 1e6)
    cluster.until_settled()
    assert cluster.seats() == {**before, "c": (0, 8)}


def test_all_move_when_a_machine_that_has_room_for_no_range_makes_it_much_better():
    cluster = Cluster(slow={NodeId("a")})
    cluster.happen(offered(8, objective=Objective.THROUGHPUT))
    cluster.join("a", 80, 100.0)
    cluster.until_settled()
    assert cluster.seats() == {"a": (0, 8)}
    cluster.join("b", 50, 100.0)
    cluster.until_settled()
    assert sorted(cluster.seats().values()) == [(0, 4), (4, 8)]


def test_a_machine_that_alone_serves_layers_is_moved_for_no_better_placement():
    cluster = Cluster()
    cluster.happen(offered(8, objective=Objective.THROUGHPUT))
    cluster.join("a", 80, 100.0)
    cluster.until_settled()
    cluster.join("b", 50, 100.0)
    assert cluster.until_settled() == []
    assert cluster.seats() == {"a": (0, 8)}


def test_nobody_moves_for_a_machine_that_makes_it_little_better():
    cluster = Cluster()
    cluster.happen(offered(8, objective=Objective.THROUGHPUT))
    cluster.join("a", 80, 100.0)
    cluster.until_settled()
    cluster.join("b", 15, 100.0)
    assert cluster.until_settled() == []
    assert cluster.seats() == {"a": (0, 8)}


def test_a_drained_machine_keeps_its_layers_until_another_is_ready_with_them():
    cluster = cluster_of(("a", 40), ("b", 40))
    before = cluster.seats()
    cluster.happen(NodeDrained(NodeId("b")))
    assert cluster.until_settled() == []
    cluster.slow.add(NodeId("c"))
    cluster.join("c", 40)
    cluster.until_settled()
    assert cluster.seats() == {**before, "c": before["b"]}
    cluster.slow.clear()
    cluster.until_settled()
    assert cluster.seats() == {"a": before["a"], "c": before["b"]}
    cluster.happen(NodeUndrained(NodeId("b")))
    cluster.until_settled()
    assert sorted(cluster.seats()) == ["a", "b", "c"]


def test_a_removed_machine_holds_nothing_even_where_nobody_can_take_over():
    cluster = cluster_of(("a", 40), ("b", 40))
    before = cluster.seats()
    cluster.machines.pop(NodeId("b"))
    cluster.happen(NodeRemoved(NodeId("b")))
    cluster.until_settled()
    assert cluster.seats() == {"a": before["a"]}


def test_a_silent_machine_that_nobody_can_replace_finds_its_layers_again():
    cluster = cluster_of(("a", 40), ("b", 40))
    before, said = cluster.seats(), cluster.machines[NodeId("b")]
    assert cluster.lose("b") == []
    cluster.machines[NodeId("b")] = said
    assert cluster.until_settled() == []
    assert cluster.seats() == before


def test_a_tracker_that_starts_again_moves_nothing_while_machines_have_yet_to_speak():
    cluster = cluster_of(("a", 40), ("b", 40), ("c", 40))
    cluster.observed = Observed(cluster.now, cluster.policy)
    for passed in (0.0, 4.0, cluster.policy.lease_seconds):
        assert plan(cluster.state, cluster.observed, cluster.now + passed, cluster.now) == ()


def test_a_machine_that_can_t_load_its_layers_is_passed_over_and_tried_again_much_later():
    cluster = cluster_of(("a", 40), ("b", 40))
    held = cluster.seats()["b"]
    failing = beat(40, work=[work(layers(*held), phase=Phase.FAILED)])
    cluster.slow.add(NodeId("b"))
    cluster.machines[NodeId("b")] = failing
    cluster.join("c", 40)
    cluster.until_settled()
    for _ in range(40):
        cluster.turn()
    assert "b" not in cluster.seats()
    assert cluster.seats()["c"] == held
    cluster.machines[NodeId("b")] = beat(40)
    cluster.slow.clear()
    assert cluster.until_settled() == []
    cluster.turn(cluster.policy.blocked_seconds)
    cluster.until_settled()
    assert "b" in cluster.seats()


def test_an_owners_memory_limit_is_kept_when_it_shrinks():
    cluster = cluster_of(("a", 40), ("b", 40))
    cluster.machines[NodeId("b")] = beat(20)
    cluster.until_settled()
    assert "b" not in cluster.seats()
    cluster.join("c", 40)
    cluster.until_settled()
    assert cluster.seats()["c"] != cluster.seats()["a"]


def test_an_owners_hours_are_kept_and_others_are_ready_before_they_end():
    cluster = Cluster(now=20 * 3600.0)
    cluster.happen(offered(4))
    cluster.join("night", 40, hours="19:00-21:00")
    cluster.until_settled()
    assert cluster.seats() == {"night": (0, 4)}
    cluster.join("day", 40, 10.0)
    cluster.until_settled()
    assert cluster.seats() == {"day": (0, 4), "night": (0, 4)}
    cluster.now = 20 * 3600.0 + 51 * 60
    cluster.until_settled()
    assert cluster.seats() == {"day": (0, 4)}
    cluster.die("day")
    cluster.turn(60)
    assert cluster.seats() == {"day": (0, 4)}


def test_an_owners_hours_end_even_where_nobody_can_take_over():
    cluster = Cluster(now=20 * 3600.0)
    cluster.happen(offered(4))
    cluster.join("night", 40, hours="19:00-21:00")
    cluster.until_settled()
    cluster.now = 20 * 3600.0 + 59 * 60
    assert cluster.until_settled() == []
    cluster.turn(90)
    assert cluster.seats() == {}


def test_two_models_share_the_machines():
    cluster = Cluster()
    cluster.happen(offered(8), offered(4, OTHER))
    for name in "abcd":
        cluster.join(name, 40)
    cluster.until_settled()
    assert {(0, 4), (4, 8)} <= set(cluster.seats().values())
    assert (0, 4) in cluster.seats(OTHER).values()
    assert not cluster.seats().keys() & cluster.seats(OTHER).keys()
    cluster.happen(ModelWithdrawn(OTHER))
    cluster.until_settled()
    assert sorted(cluster.seats()) == ["a", "b", "c", "d"]


def test_a_second_model_gets_machines_that_the_first_one_can_spare():
    cluster = cluster_of(("a", 40), ("b", 40), ("c", 40))
    cluster.happen(offered(4, OTHER))
    cluster.until_settled()
    assert sorted(cluster.seats().values()) == [(0, 4), (4, 8)]
    assert sorted(cluster.seats(OTHER).values()) == [(0, 4)]


def test_models_are_packed_closer_where_a_further_one_finds_no_room():
    cluster = Cluster()
    cluster.happen(offered(8, objective=Objective.THROUGHPUT))
    cluster.join("a", 80, 100.0)
    cluster.join("b", 60, 100.0)
    cluster.until_settled()
    assert sorted(cluster.seats()) == ["a", "b"]
    cluster.happen(offered(6, OTHER, Objective.THROUGHPUT))
    cluster.until_settled()
    assert (cluster.seats(), cluster.seats(OTHER)) == ({"a": (0, 8)}, {"b": (0, 6)})


def test_small_changes_of_speed_and_load_change_no_placement():
    cluster = cluster_of(("a", 40), ("b", 40), ("c", 40), ("d", 90))
    settled = len(cluster.placements())
    rng = random.Random(5)
    for turn in range(100):
        for node in list(cluster.machines):
            speed = 1000.0 * (1.2 if turn % 2 else 0.8) * rng.uniform(0.95, 1.05)
            memory = cluster.machines[node].machine.memory_bytes
            cluster.machines[node] = beat(memory, speed, round_trip=rng.uniform(0.001, 0.03))
        cluster.turn()
    assert len(cluster.placements()) == settled


def test_machines_that_were_silent_for_long_are_forgotten_and_stale_tokens_revoked():
    cluster = Cluster(policy=Policy(forget_seconds=100.0))
    cluster.happen(TokenIssued("t", "0" * 64, 1050, 1))
    cluster.join("a", 40)
    cluster.turn()
    cluster.die("a")
    cluster.now += 200
    assert set(cluster.turn()) == {NodeForgotten(NodeId("a")), TokenRevoked("t")}
    assert not cluster.state.members
    cluster.machines[NodeId("a")] = beat(40)
    cluster.turn()
    assert list(cluster.state.members) == ["a"]


def test_epochs_grow_over_all_models_and_withdrawals():
    cluster = Cluster()
    cluster.join("a", 40)
    for _ in range(3):
        cluster.happen(offered(4))
        cluster.until_settled()
        cluster.happen(ModelWithdrawn(MODEL))
    epochs = [placed.epoch for placed in cluster.placements()]
    assert len(epochs) == 3
    assert epochs == sorted(set(epochs))


steps = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.sampled_from("abcdef"), st.sampled_from([5, 20, 40, 80])),
        st.tuples(
            st.sampled_from(["die", "drain", "undrain", "remove", "slow"]),
            st.sampled_from("abcdef"),
            st.just(0),
        ),
        st.tuples(
            st.sampled_from(["offer", "offer other", "withdraw", "wait"]), st.just(""), st.just(0)
        ),
    ),
    max_size=14,
)


@given(steps, st.sampled_from(list(Objective)))
@settings(max_examples=150)
def test_whatever_happens_a_plan_is_done_in_one_go_and_keeps_to_the_machines(actions, objective):
    cluster = Cluster()
    cluster.happen(offered(8, objective=objective))
    for action, name, memory in actions:
        act(cluster, action, name, memory, objective)
        cluster.turn()
        again = plan(cluster.state, cluster.observed, cluster.now, cluster.now)
        assert again == (), "planning again gave something new"
        for placed in cluster.placements()[-2:]:
            assert len({seat.node_id for seat in placed.seats}) == len(placed.seats)
        for digest in cluster.state.models:
            for node, (start, end) in cluster.seats(digest).items():
                resources = cluster.state.members[NodeId(node)].resources
                assert resources is not None
                assert (end - start) * 10 <= resources.memory_bytes
    assert apply_all(Cluster().state, cluster.history) == cluster.state


def act(cluster: Cluster, action: str, name: str, memory: int, objective: Objective) -> None:
    node = NodeId(name)
    if action == "join" and node not in cluster.state.removed:
        cluster.join(name, memory, 1000.0 if name < "d" else 400.0)
    elif action == "die":
        cluster.machines.pop(node, None)
    elif action == "drain":
        cluster.happen(NodeDrained(node))
    elif action == "undrain":
        cluster.happen(NodeUndrained(node))
    elif action == "remove":
        cluster.machines.pop(node, None)
        cluster.happen(NodeRemoved(node))
    elif action == "slow":
        cluster.slow.symmetric_difference_update({node})
    elif action == "offer":
        cluster.happen(offered(8, objective=objective))
    elif action == "offer other":
        cluster.happen(offered(4, OTHER, objective))
    elif action == "withdraw":
        cluster.happen(ModelWithdrawn(OTHER))
    else:
        cluster.now += 10


@pytest.mark.parametrize("count", [2, 3, 4])
def test_one_machine_lost_of_several_alike_costs_at_most_one_move(count):
    names = [f"n{number}" for number in range(count)]
    cluster = cluster_of(*((name, 80 // count + 5) for name in names), layer_count=8)
    before = cluster.seats()
    assert len(before) == count
    cluster.join("spare", 80)
    cluster.until_settled()
    cluster.lose(names[0])
    after = cluster.seats()
    assert all(after[name] == before[name] for name in names[1:])


def test_a_placement_names_each_node_once_and_ranges_that_join():
    cluster = cluster_of(("a", 30), ("b", 30), ("c", 30))
    placed = cluster.placements()[-1]
    assert isinstance(placed, Placed)
    ordered = sorted(seat.layers for seat in placed.seats)
    assert ordered[0].start == 0
    assert ordered[-1].end == 8


def test_layers_are_cut_only_where_the_model_may_be_and_anew_where_that_changes():
    cluster = Cluster()
    model = offered(8)
    cluster.happen(replace(model, shape=replace(model.shape, cuts=(3, 6))))
    for name in "abc":
        cluster.join(name, 30)
    cluster.until_settled()
    assert sorted(cluster.seats().values()) == [(0, 3), (3, 6), (6, 8)]
    cluster.happen(replace(model, shape=replace(model.shape, cuts=(2, 5))))
    cluster.until_settled()
    assert sorted(cluster.seats().values()) == [(0, 2), (2, 5), (5, 8)]


def test_what_was_measured_with_the_model_counts_more_than_the_speed_of_any_weights():
    cluster = Cluster()
    cluster.happen(offered(8))
    for name, generic, measured in (("a" * 16, 1000.0, 10.0), ("b" * 16, 100.0, 500.0)):
        cluster.join(name, 60, generic)
        node, speed = NodeId(name), Speed(measured, measured, chunk_bytes_per_second=measured)
        made = beat(60, generic, speeds=[SpeedReport.of(MODEL, speed)])
        cluster.machines[node] = made
    cluster.until_settled()
    sizes = {name: end - start for name, (start, end) in cluster.seats().items()}
    assert sizes == {"a" * 16: 2, "b" * 16: 6}
