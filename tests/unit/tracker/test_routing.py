import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import ModelNotFoundError, NodeNotReadyError
from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange, require_chain
from meshnet.tracker.events import NodeDrained, NodeJoined, NodeRemoved, Placed, Seat
from meshnet.tracker.messages import LoadReport
from meshnet.tracker.observed import Observed
from meshnet.tracker.routing import Route, missing_layers, route_for
from meshnet.tracker.state import ClusterState, apply, apply_all
from tests.support.clusters import MODEL, OTHER, RECIPE, beat, layers, offered, work

NOW = 1000.0
Held = dict[str, tuple[int, int]]


def serving(held: Held, count: int = 8) -> tuple[ClusterState, Observed]:
    """Nodes that hold what they are told to, all of them idle and alike."""
    seats = tuple(Seat(NodeId(name), layers(*span)) for name, span in held.items())
    joined = [NodeJoined(seat.node_id, seat.node_id) for seat in seats]
    state = apply_all(ClusterState(), [*joined, offered(count), Placed(MODEL, 3, seats)])
    observed = Observed(NOW)
    for seat in seats:
        say(observed, seat.node_id, seat.layers)
    return state, observed


def say(
    observed: Observed,
    name: str,
    held: LayerRange,
    step: float = 0.01,
    now: float = NOW,
    recipe: str = RECIPE,
    sessions: int = 0,
    round_trip: float = 0.0,
) -> None:
    load = LoadReport(step_seconds=step, open_sessions=sessions, max_sessions=4)
    said = beat(work=[work(held, recipe=recipe)], load=load, round_trip=round_trip)
    observed.heard(NodeId(name), said, now)


def names(route: Route) -> list[str]:
    return [str(node) for node in route.node_ids]


def test_a_route_names_epoch_recipe_and_hops_head_first():
    state, observed = serving({"b": (4, 8), "a": (0, 4)})
    route = route_for(state, observed, MODEL, NOW)
    assert names(route) == ["a", "b"]
    assert [hop.layers for hop in route.hops] == [layers(0, 4), layers(4, 8)]
    assert {hop.address for hop in route.hops} == {"127.0.0.1:1"}
    assert (route.epoch, route.recipe) == (3, RECIPE)


def test_the_quicker_and_the_less_busy_of_two_holders_is_chosen():
    state, observed = serving({"a": (0, 4), "b": (0, 4), "c": (4, 8)})
    say(observed, "b", layers(0, 4), step=0.004)
    assert names(route_for(state, observed, MODEL, NOW)) == ["b", "c"]
    say(observed, "b", layers(0, 4), step=0.004, sessions=3)
    assert names(route_for(state, observed, MODEL, NOW)) == ["a", "c"]


def test_sessions_that_start_at_once_are_spread():
    state, observed = serving({"a": (0, 8), "b": (0, 8), "c": (0, 8)})
    chosen = []
    for _ in range(9):
        route = route_for(state, observed, MODEL, NOW)
        observed.took(route.node_ids, NOW)
        chosen += names(route)
    assert sorted(chosen) == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_slow_links_are_kept_out_of_the_chain():
    state, observed = serving({"a": (0, 4), "b": (0, 4), "c": (4, 8), "d": (4, 8)})
    for name, held in (("a", layers(0, 4)), ("c", layers(4, 8))):
        say(observed, name, held, round_trip=0.06)
    assert names(route_for(state, observed, MODEL, NOW)) == ["b", "d"]


def test_a_node_past_its_lease_is_in_no_chain_and_its_layers_are_missing():
    state, observed = serving({"a": (0, 4), "b": (4, 8)})
    say(observed, "a", layers(0, 4), now=NOW + 20)
    with pytest.raises(NodeNotReadyError, match=r"no node is ready with layers \[4, 8\)") as caught:
        route_for(state, observed, MODEL, NOW + 20)
    assert caught.value.details["missing"] == "[4, 8)"
    assert missing_layers(state, observed, MODEL, NOW + 20) == (layers(4, 8),)


def test_a_node_that_erred_is_avoided_while_there_is_another_and_probed_again():
    state, observed = serving({"a": (0, 8), "b": (0, 8)})
    observed.forget(NodeId("a"))
    say(observed, "a", layers(0, 8), step=0.001)
    observed.erred(NodeId("a"), NOW)
    assert names(route_for(state, observed, MODEL, NOW)) == ["b"]
    later = NOW + observed.policy.first_avoid_seconds
    assert names(route_for(state, observed, MODEL, later)) == ["a"]
    observed.took([NodeId("a")], later)
    assert names(route_for(state, observed, MODEL, later)) == ["b"], "one session tries it"
    observed.worked([NodeId("a")])
    assert names(route_for(state, observed, MODEL, later)) == ["a"]


def test_a_node_that_erred_is_chosen_where_there_is_no_other():
    state, observed = serving({"a": (0, 8)})
    observed.erred(NodeId("a"), NOW)
    assert names(route_for(state, observed, MODEL, NOW)) == ["a"]
    with pytest.raises(NodeNotReadyError):
        route_for(state, observed, MODEL, NOW, avoid=[NodeId("a")])


def test_a_drained_node_is_chosen_only_until_another_is_ready():
    state, observed = serving({"a": (0, 8), "b": (0, 8)})
    observed.forget(NodeId("b"))
    state = apply(state, NodeDrained(NodeId("a")))
    assert names(route_for(state, observed, MODEL, NOW)) == ["a"]
    say(observed, "b", layers(0, 8), step=5.0)
    observed.erred(NodeId("b"), NOW)
    assert names(route_for(state, observed, MODEL, NOW)) == ["b"]


def test_nodes_of_different_recipes_share_no_chain():
    state, observed = serving({"a": (0, 4), "b": (4, 8)})
    say(observed, "b", layers(4, 8), recipe="other")
    with pytest.raises(NodeNotReadyError, match="not by nodes of one recipe"):
        route_for(state, observed, MODEL, NOW)
    assert missing_layers(state, observed, MODEL, NOW) == ()


def test_a_node_that_is_told_to_hold_other_layers_is_chosen_only_until_others_are_ready():
    state, observed = serving({"a": (0, 8), "b": (0, 8)})
    observed.forget(NodeId("b"))
    moved = (Seat(NodeId("a"), layers(0, 4)), Seat(NodeId("b"), layers(0, 8)))
    state = apply(state, Placed(MODEL, 4, moved))
    route = route_for(state, observed, MODEL, NOW)
    assert (names(route), route.epoch) == (["a"], 4)
    say(observed, "b", layers(0, 8), step=5.0)
    assert names(route_for(state, observed, MODEL, NOW)) == ["b"]


def test_a_removed_node_is_in_no_chain_though_it_serves_on():
    state, observed = serving({"a": (0, 8)})
    removed = apply(state, NodeRemoved(NodeId("a")))
    with pytest.raises(NodeNotReadyError):
        route_for(removed, observed, MODEL, NOW)
    assert missing_layers(removed, observed, MODEL, NOW) == (layers(0, 8),)


def test_a_model_that_isn_t_offered_is_said_not_to_be_there():
    state, observed = serving({"a": (0, 8)})
    with pytest.raises(ModelNotFoundError):
        route_for(state, observed, OTHER, NOW)


def test_of_two_models_each_has_its_own_chain():
    state, observed = serving({"a": (0, 8), "b": (0, 8)})
    state = apply_all(
        state, [offered(4, OTHER), Placed(OTHER, 4, (Seat(NodeId("b"), layers(0, 4)),))]
    )
    observed.heard(NodeId("b"), beat(work=[work(layers(0, 4), OTHER)]), NOW)
    assert names(route_for(state, observed, MODEL, NOW)) == ["a"]
    assert names(route_for(state, observed, OTHER, NOW)) == ["b"]


spans = st.sampled_from([(0, 2), (0, 4), (2, 4), (2, 6), (4, 6), (4, 8), (6, 8), (0, 8)])


@given(
    st.dictionaries(st.sampled_from("abcde"), spans),
    st.data(),
)
def test_a_route_has_no_gap_and_no_node_past_its_lease_and_none_is_quicker(held, data):
    state, observed = serving(held)
    now = NOW + 10
    fresh = {}
    for name, span in held.items():
        if data.draw(st.booleans(), label=f"{name} is live"):
            step = data.draw(st.sampled_from([0.001, 0.01, 0.1]), label=f"step of {name}")
            observed.forget(NodeId(name))
            round_trip = data.draw(st.sampled_from([0.0, 0.008, 0.06]), label=f"way to {name}")
            say(observed, name, layers(*span), step, now, round_trip=round_trip)
            fresh[name] = (span, step)
    best = quickest(fresh, observed)
    try:
        route = route_for(state, observed, MODEL, now)
    except NodeNotReadyError as error:
        assert math.isinf(best)
        gap = missing_layers(state, observed, MODEL, now)
        covered = {layer for span, _ in fresh.values() for layer in range(*span)}
        assert {layer for span in gap for layer in span} == set(range(8)) - covered
        assert all(str(span) in error.message for span in gap)
    else:
        require_chain([hop.layers for hop in route.hops], 8)
        assert set(names(route)) <= set(fresh)
        assert route.seconds == pytest.approx(best)


def quickest(fresh: dict[str, tuple[tuple[int, int], float]], observed: Observed) -> float:
    """The time of the best chain, by trying all."""
    best = math.inf
    for count in range(1, len(fresh) + 1):
        for order in itertools.permutations(fresh, count):
            edges = [0, *(fresh[name][0][1] for name in order)]
            starts = [fresh[name][0][0] for name in order]
            if starts != edges[:-1] or edges[-1] != 8:
                continue
            seconds = sum(fresh[name][1] for name in order)
            if count > 1:
                ring = [*order, order[0]]
                seconds += sum(
                    observed.link_seconds(NodeId(a), NodeId(b)) for a, b in itertools.pairwise(ring)
                )
            best = min(best, seconds)
    return best
