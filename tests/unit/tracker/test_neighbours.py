from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.messages import MAX_NEIGHBOURS
from meshnet.tracker.neighbours import FRESH_SECONDS, TURN_SECONDS, Neighbours
from meshnet.tracker.observed import Observed
from tests.support.clusters import beat, layers, work


def node(number: int) -> NodeId:
    return NodeId(f"{number:016x}")


def observed_of(*held: LayerRange, now: float = 0.0) -> Observed:
    """Nodes that serve these layers, numbered in order."""
    observed = Observed(now)
    for number, each in enumerate(held):
        observed.heard(node(number), beat(work=[work(each)]), now)
    return observed


def stated(_node: NodeId, address: Address) -> Address | None:
    return address


def told(neighbours: Neighbours, number: int, observed: Observed, now: float) -> set[str]:
    found = neighbours.of(node(number), observed, now, stated)
    assert found is not None
    assert len(found) <= MAX_NEIGHBOURS
    return {each.node_id for each in found}


def test_those_before_and_behind_in_a_chain_are_measured_and_the_head_by_the_tail():
    observed = observed_of(layers(0, 2), layers(2, 4), layers(4, 6))
    neighbours = Neighbours()
    assert {node(1), node(2)} <= told(neighbours, 0, observed, 0.0)
    assert {node(0), node(2)} <= told(neighbours, 1, observed, 0.0)
    assert {node(0), node(1)} <= told(neighbours, 2, observed, 0.0)


def test_of_many_replicas_few_are_measured():
    observed = observed_of(*[layers(0, 2)] * 40, *[layers(2, 4)] * 40)
    assert 2 <= len(told(Neighbours(), 0, observed, 0.0)) <= MAX_NEIGHBOURS


def test_in_time_everyone_has_its_turn():
    observed = observed_of(*[layers(0, 4)] * 12)
    neighbours, seen = Neighbours(), set[str]()
    for turn in range(12):
        now = turn * TURN_SECONDS
        for number in range(12):
            observed.heard(node(number), beat(work=[work(layers(0, 4))]), now)
        seen |= told(neighbours, 3, observed, now)
    assert seen == {node(number) for number in range(12)} - {node(3)}


def test_a_machine_is_told_now_and_then():
    observed, neighbours = observed_of(layers(0, 2), layers(2, 4)), Neighbours()
    assert told(neighbours, 0, observed, 0.0) == {node(1)}
    assert neighbours.of(node(0), observed, FRESH_SECONDS / 2, stated) is None
    for number, held in enumerate((layers(0, 2), layers(2, 4))):
        observed.heard(node(number), beat(work=[work(held)]), FRESH_SECONDS)
    assert told(neighbours, 0, observed, FRESH_SECONDS) == {node(1)}


def test_only_nodes_that_can_be_reached_are_measured_over_the_relay_if_need_be():
    observed = observed_of(layers(0, 2), layers(2, 4), layers(2, 4))
    ways = {node(1): Address("relay:1"), node(2): None}
    found = Neighbours().of(node(0), observed, 0.0, lambda other, _: ways[other])
    assert found is not None
    assert [(each.node_id, each.address) for each in found] == [(node(1), "relay:1")]


def test_a_machine_that_holds_nothing_measures_by_turns_and_the_silent_arent_measured():
    observed = observed_of(layers(0, 4))
    observed.heard(node(9), beat(), 0.0)
    assert told(Neighbours(), 9, observed, 0.0) == {node(0)}
    assert Neighbours().of(node(9), observed, 100.0, stated) == ()
