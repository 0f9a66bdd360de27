"""The tracker with a clock and a store of the test's own."""

from collections.abc import Callable

import pytest

from meshnet.domain.errors import (
    InvalidArgumentError,
    NodeNotReadyError,
    StaleEpochError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.tracker import events as ev
from meshnet.tracker import messages as msg
from meshnet.tracker.placement import Demand
from meshnet.tracker.reach import Reach
from meshnet.transport.certificates import (
    Role,
    new_key,
    public_key_of,
)
from tests.support.tracked import Cluster, joining, spans
from tests.support.trackers import DIGEST, OFFER, SHAPE, MemoryStore


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(MemoryStore())


@pytest.fixture
def secret(cluster: Cluster) -> str:
    return cluster.service.issue_token(msg.TokenRequest()).secret


def test_machines_join_get_layers_and_make_a_route(cluster, secret):
    one = cluster.join("one", secret)
    cluster.settle(one)
    with pytest.raises(NodeNotReadyError, match=r"\[0, 6\)"):
        cluster.service.route(DIGEST)
    other = cluster.join("other", secret)
    cluster.settle(one, other)
    route = cluster.service.route(DIGEST)
    assert {hop.node_id for hop in route.hops} == {one, other}
    assert [hop.layers.start for hop in route.hops] == [0, route.hops[0].layers.end]
    (model,) = cluster.service.status().models
    assert (model.ready, model.missing) == (True, ())


def test_a_machine_that_joins_takes_over_the_layers_of_one_that_is_gone(cluster, secret):
    one, other = cluster.join("one", secret), cluster.join("other", secret)
    cluster.settle(one, other)
    before = spans(cluster.service.status())
    cluster.wait(cluster.service.observed.policy.lease_seconds + 1.0, one)
    status = cluster.service.status()
    gone = next(it for it in status.machines if it.node_id == other)
    assert gone.state is msg.MachineState.DOWN
    (model,) = status.models
    assert not model.ready
    assert [(it.start, it.end) for it in model.missing] == [
        (gone.told.start, gone.told.end) if gone.told else before[1]
    ]
    with pytest.raises(NodeNotReadyError):
        cluster.service.route(DIGEST)
    third = cluster.join("third", secret)
    cluster.settle(one, third)
    assert {hop.node_id for hop in cluster.service.route(DIGEST).hops} == {one, third}


def test_a_tracker_that_was_killed_goes_on_where_it_was(cluster, secret):
    one, other = cluster.join("one", secret), cluster.join("other", secret)
    cluster.settle(one, other)
    before = cluster.service.status()
    cluster.restart()
    after = cluster.service.status()
    assert spans(after) == spans(before)
    assert [it.state for it in after.machines] == [msg.MachineState.DOWN] * 2
    cluster.now += 1.0
    # Nobody moves: machines serve what they served, and say so in their next heartbeats.
    for node in (one, other):
        cluster.beat(node, cluster.beat(node).assignment)
    assert cluster.service.tick() == ()
    assert {hop.node_id for hop in cluster.service.route(DIGEST).hops} == {one, other}
    assert cluster.join("third", secret)


def test_tokens_are_good_as_often_and_as_long_as_they_say(cluster):
    made = cluster.service.issue_token(msg.TokenRequest(seconds=60, uses=1))
    cluster.join("one", made.secret)
    with pytest.raises(UnauthenticatedError, match="token"):
        cluster.join("other", made.secret)
    late = cluster.service.issue_token(msg.TokenRequest(seconds=60))
    cluster.now += 60
    with pytest.raises(UnauthenticatedError, match="time is over"):
        cluster.join("other", late.secret)
    revoked = cluster.service.issue_token(msg.TokenRequest())
    cluster.service.revoke_token(revoked.token_id)
    for secret in (revoked.secret, "x" * 24):
        with pytest.raises(UnauthenticatedError, match="isn't known"):
            cluster.join("other", secret)
    with pytest.raises(InvalidArgumentError, match="token_id"):
        cluster.service.revoke_token(revoked.token_id)


def test_secrets_are_not_written_down(cluster, secret):
    cluster.join("one", secret)
    assert secret not in "".join(map(ev.event_to_json, cluster.store.events))


def test_a_removed_machine_is_let_in_no_more(cluster, secret):
    private = new_key()
    key, request = public_key_of(private), joining(private, "one", secret)
    node = NodeId(cluster.service.join(request).node_id)
    cluster.beat(node)
    cluster.service.remove(node)
    attempts: list[Callable[[], object]] = [
        lambda: cluster.beat(node),
        lambda: cluster.service.join(request),
        lambda: cluster.service.renew(node, msg.RenewRequest(public_key=key.decode())),
        lambda: cluster.service.admit(key, "one", Role.NODE),
    ]
    for refused in attempts:
        with pytest.raises(UnauthenticatedError, match="removed"):
            refused()
    assert cluster.service.status().machines == ()


def test_a_certificate_is_renewed_for_the_machine_that_holds_the_key_alone(cluster, secret):
    node = cluster.join("one", secret)
    other = public_key_of(new_key()).decode()
    with pytest.raises(InvalidArgumentError, match="node_id"):
        cluster.service.renew(node, msg.RenewRequest(public_key=other))


def test_an_agent_that_was_started_again_is_the_one_that_counts(cluster, secret):
    node = cluster.join("one", secret)
    cluster.beat(node, incarnation=2)
    with pytest.raises(StaleEpochError, match="started again"):
        cluster.beat(node, incarnation=1)


def test_a_drained_machine_hands_its_layers_to_another(cluster, secret):
    one, other = cluster.join("one", secret), cluster.join("other", secret)
    cluster.settle(one, other)
    cluster.service.drain(other)
    assert cluster.beat(other).drain
    third = cluster.join("third", secret)
    cluster.settle(one, other, third)
    cluster.settle(one, other, third)
    assert {hop.node_id for hop in cluster.service.route(DIGEST).hops} == {one, third}
    assert cluster.beat(other).assignment is None
    cluster.service.undrain(other)
    assert not cluster.beat(other).drain


def test_a_drained_machine_serves_until_the_one_in_its_place_was_reached(cluster, secret):
    reach = cluster.service.reach = Reach(Address("10.0.0.1:7701"))

    def try_addresses() -> None:
        for node, address in reach.due(cluster.service.now):
            reach.looked(node, address, answered=True, now=cluster.service.now)

    one, other = cluster.join("one", secret), cluster.join("other", secret)
    cluster.settle(one, other)
    try_addresses()
    third = cluster.join("third", secret)
    cluster.service.drain(other)
    cluster.settle(one, other, third)
    cluster.settle(one, other, third)
    assert cluster.beat(third).assignment == cluster.beat(other).assignment is not None
    cluster.settle(one, other, third)
    assert {hop.node_id for hop in cluster.service.route(DIGEST).hops} == {one, other}
    try_addresses()
    cluster.settle(one, other, third)
    assert cluster.beat(other).assignment is None
    assert {hop.node_id for hop in cluster.service.route(DIGEST).hops} == {one, third}


def test_unknown_machines_are_told_by_name(cluster, secret):
    cluster.join("one", secret)
    with pytest.raises(InvalidArgumentError, match=r"no machine 'x'; known: .*\(one\)"):
        cluster.service.drain(NodeId("x"))


def test_another_model_takes_the_place_of_the_one_before(cluster):
    offered = ev.ModelOffered(
        Digest("sha256:" + "e" * 64), "other", SHAPE, Demand(1024), msg.Serving()
    )
    cluster.service.offer(offered)
    assert [it.name for it in cluster.service.status().models] == ["other"]
    count = len(cluster.store.events)
    cluster.service.offer(offered)
    assert len(cluster.store.events) == count


def test_models_that_are_offered_together_are_each_held_and_one_left_out_is_withdrawn(
    cluster, secret
):
    digest = Digest("sha256:" + "e" * 64)
    other = ev.ModelOffered(digest, "other", SHAPE, Demand(1024), msg.Serving())
    nodes = [cluster.join(name, secret) for name in ("a", "b", "c", "d")]
    cluster.settle(*nodes)
    count = len(cluster.store.events)
    cluster.service.offer(OFFER, other)
    assert cluster.store.events[count:] == [other]
    cluster.settle(*nodes)
    status = cluster.service.status()
    assert [(it.name, it.ready) for it in status.models] == [("m", True), ("other", True)]
    holders = [
        {it.node_id for it in status.machines if it.told_model == model}
        for model in (DIGEST, digest)
    ]
    assert [len(each) for each in holders] == [2, 2]
    assert not holders[0] & holders[1]
    for model, held in zip((DIGEST, digest), holders, strict=True):
        assert {hop.node_id for hop in cluster.service.route(model).hops} == held
    cluster.service.offer(other)
    assert [it.name for it in cluster.service.status().models] == ["other"]


def test_routes_name_the_relay_for_machines_that_others_cannot_reach(cluster, secret):
    relay = Address("10.0.0.1:7701")
    reach = cluster.service.reach = Reach(relay)
    one, other = cluster.join("one", secret), cluster.join("other", secret)
    cluster.settle(one, other)
    with pytest.raises(NodeNotReadyError, match="no node is ready"):
        cluster.service.route(DIGEST)  # nobody's address was tried yet
    for node, address in reach.due(cluster.service.now):
        reach.looked(node, address, answered=node == one, now=cluster.service.now)
    assert (cluster.beat(one).relay, cluster.beat(other).relay) == (None, relay)
    cluster.settle(one, other)
    with pytest.raises(NodeNotReadyError, match="no node is ready"):
        cluster.service.route(DIGEST)  # it doesn't wait at the relay yet
    reach.wait_at_relay({other}, cluster.service.now)
    route = cluster.service.route(DIGEST)
    assert {hop.node_id: hop.address for hop in route.hops} == {one: f"{one}:7000", other: relay}
    ways = {it.node_id: it.way for it in cluster.service.status().machines}
    assert ways == {one: msg.Way.DIRECT, other: msg.Way.RELAYED}
    cluster.service.remove(other)
    assert reach.relayed == frozenset()
