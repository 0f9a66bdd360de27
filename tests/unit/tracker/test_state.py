from dataclasses import replace

import pytest
from hypothesis import given
from pydantic import TypeAdapter

from meshnet.domain.errors import InvalidArgumentError, StaleEpochError
from meshnet.domain.ids import NodeId
from meshnet.tracker.events import (
    Event,
    NodeDrained,
    NodeJoined,
    NodeReincarnated,
    NodeRemoved,
    NodeReported,
    Placed,
    Resources,
    Seat,
    TokenIssued,
)
from meshnet.tracker.leases import Hours
from meshnet.tracker.state import (
    ClusterState,
    apply,
    apply_all,
    assignment_of,
    facts_of,
    require_token,
    seats_of,
)
from tests.support.clusters import MODEL, OTHER, beat, layers, offered
from tests.support.happenings import histories

A, B = NodeId("a"), NodeId("b")
STATE = TypeAdapter(ClusterState)


@given(histories)
def test_any_events_in_any_order_give_a_state_that_holds_together(history: list[Event]):
    state = ClusterState()
    for event in history:
        before = state
        state = apply(state, event)
        assert state.epoch >= before.epoch
        for node, member in state.members.items():
            assert node not in state.removed
            if member.share is not None:
                offer = state.models[member.share.digest]
                assert member.share.layers.end <= offer.total_layers
                assigned = assignment_of(state, node)
                assert assigned is not None
                assert assigned.layers == seats_of(state, assigned.digest)[node]
                assert 0 < assigned.epoch <= state.epoch
        assert all(token.uses >= 0 for token in state.tokens.values())


@given(histories)
def test_a_state_is_read_as_it_was_written(history: list[Event]):
    state = apply_all(ClusterState(), history)
    assert STATE.validate_json(STATE.dump_json(state)) == state


@given(histories, histories)
def test_a_state_isn_t_changed_by_what_comes_later(history: list[Event], later: list[Event]):
    state = apply_all(ClusterState(), history)
    copy = STATE.dump_json(state)
    apply_all(state, later)
    assert STATE.dump_json(state) == copy


def placed(epoch: int, **held: tuple[int, int]) -> Placed:
    return Placed(
        MODEL, epoch, tuple(Seat(NodeId(name), layers(*span)) for name, span in held.items())
    )


def two() -> ClusterState:
    return apply_all(ClusterState(), [NodeJoined(A, "a"), NodeJoined(B, "b"), offered(8)])


def test_a_placement_is_what_nodes_are_told_until_a_newer_one():
    state = apply(two(), placed(1, a=(0, 4), b=(4, 8)))
    assert seats_of(state, MODEL) == {A: layers(0, 4), B: layers(4, 8)}
    told = assignment_of(state, B)
    assert told is not None
    assert (told.layers, told.total_layers, told.epoch) == (layers(4, 8), 8, 1)
    assert apply(state, placed(1, a=(0, 8))) == state
    state = apply(state, placed(2, a=(0, 8)))
    assert assignment_of(state, B) is None


def test_a_node_holds_layers_of_one_model():
    state = apply_all(
        two(),
        [
            offered(4, OTHER),
            placed(1, a=(0, 8)),
            Placed(OTHER, 2, (Seat(A, layers(0, 4)),)),
        ],
    )
    assert seats_of(state, MODEL) == {}
    assert seats_of(state, OTHER) == {A: layers(0, 4)}


def test_a_model_offered_again_keeps_its_epoch_and_its_seats():
    state = apply(two(), placed(3, a=(0, 8)))
    again = apply(state, offered(8))
    assert again == state
    recut = apply(state, offered(6))
    assert (recut.models[MODEL].epoch, seats_of(recut, MODEL)) == (3, {})


def test_a_removed_node_doesn_t_come_back():
    state = apply_all(two(), [NodeRemoved(A), NodeJoined(A, "a")])
    assert A not in state.members
    with pytest.raises(InvalidArgumentError, match="removed"):
        facts_of(state, A, beat())


def test_a_heartbeat_is_written_down_only_where_something_changed_by_enough():
    state = two()
    first = facts_of(state, A, beat(1000, 100.0, incarnation=5))
    assert first == (NodeReincarnated(A, 5), NodeReported(A, Resources(1000, 100.0)))
    state = apply_all(state, first)
    assert facts_of(state, A, beat(950, 109.0, incarnation=5)) == ()
    lent = facts_of(state, A, beat(950, 109.0, incarnation=5, hours="22:00-06:30"))
    assert lent == (NodeReported(A, Resources(950, 109.0, Hours(22 * 60, 6 * 60 + 30))),)
    assert len(facts_of(state, A, beat(1000, 120.0, incarnation=5))) == 1
    with pytest.raises(StaleEpochError):
        facts_of(state, A, beat(incarnation=4))


def test_a_node_that_was_forgotten_is_taken_in_again():
    (joined, *_) = facts_of(ClusterState(), A, beat())
    assert joined == NodeJoined(A, "a")


def test_a_token_is_good_for_its_time_and_its_uses():
    secret, other = "1" * 64, "2" * 64
    state = apply(ClusterState(), TokenIssued("t", secret, 100, 2))
    require_token(state, "t", secret, 99.9)
    for token, digest, now, problem in [
        ("t", other, 0.0, "isn't known"),
        ("u", secret, 0.0, "isn't known"),
        ("t", secret, 100.0, "its time is over"),
    ]:
        with pytest.raises(InvalidArgumentError, match=f"token: .*{problem}"):
            require_token(state, token, digest, now)
    state = apply_all(state, [NodeJoined(A, "a", "t"), NodeJoined(B, "b", "t")])
    with pytest.raises(InvalidArgumentError, match="as often as it may"):
        require_token(state, "t", secret, 0.0)


def test_draining_is_remembered_and_joining_again_doesn_t_end_it():
    state = apply_all(two(), [NodeDrained(A), NodeJoined(A, "renamed")])
    assert (state.members[A].drained, state.members[A].name) == (True, "renamed")


def test_a_model_offered_with_other_figures_replaces_them():
    state = apply(two(), replace(offered(8), name="new"))
    assert state.models[MODEL].name == "new"


@pytest.mark.parametrize("speed", [0.0, -1.0, float("inf"), float("nan")])
def test_resources_that_can_t_be_are_refused(speed: float):
    with pytest.raises(InvalidArgumentError, match="bytes_per_second"):
        Resources(1, speed)
    with pytest.raises(InvalidArgumentError, match="memory_bytes"):
        Resources(-1, 1.0)
