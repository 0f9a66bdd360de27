"""What the tracker answers the gateway's process."""

import pytest
from pydantic import ValidationError

from meshnet.domain.ids import Address, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.asking import MAX_RELAYED, MAX_TOLD, RelayRequest, RouteReply, RouteRequest
from meshnet.tracker.desk import answer_relay, answer_route
from meshnet.tracker.measurements import RunReport
from meshnet.tracker.reach import Reach
from tests.support.tracked import Cluster
from tests.support.trackers import DIGEST, MemoryStore


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(MemoryStore())


def joined(cluster: Cluster, *names: str) -> list[NodeId]:
    secret = cluster.service.issue_token(msg.TokenRequest()).secret
    nodes = [cluster.join(name, secret) for name in names]
    cluster.settle(*nodes)
    return nodes


def test_a_chain_is_told_with_its_nodes_addresses_and_layers(cluster):
    nodes = joined(cluster, "one", "two")
    reply = answer_route(cluster.service, RouteRequest(model=DIGEST))
    assert tuple(it.hop() for it in reply.hops) == cluster.service.route(DIGEST).hops
    assert {it.node_id for it in reply.hops} == set(nodes)
    assert answer_route(cluster.service, RouteRequest()) == RouteReply()


def test_missing_layers_are_an_answer_that_names_them(cluster):
    reply = answer_route(cluster.service, RouteRequest(model=DIGEST))
    assert (reply.hops, "[0, 6)" in reply.problem) == ((), True)


def test_what_became_of_a_chain_counts_before_the_next_one_is_chosen(cluster):
    one, two, three = joined(cluster, "one", "two", "three")
    told = RouteRequest(model=DIGEST, took=(one,), erred=(two,), worked=(three,))
    answer_route(cluster.service, told)
    record = cluster.service.observed.record(one)
    assert record is not None
    assert record.taken == 1
    assert cluster.service.observed.is_avoided(two, cluster.now)


def test_the_relay_hears_who_may_wait_and_who_is_no_member_any_more(cluster):
    one, two = joined(cluster, "one", "two")
    cluster.service.reach = Reach(Address("10.0.0.1:7701"), [one])
    stranger = NodeId("f" * 16)
    request = RelayRequest(waiting=(one,), carried=(one, stranger))
    reply = answer_relay(cluster.service, request)
    assert (reply.admitted, reply.members) == ((one,), (one,))
    assert two not in reply.admitted


def test_too_much_is_refused_by_its_name():
    node = "a" * 16
    for wrong in (
        {"took": (node,) * (MAX_TOLD + 1)},
        {"erred": ("nobody",)},
        {"model": "sha256:abc"},
        {"waiting": ()},
    ):
        with pytest.raises(ValidationError, match=next(iter(wrong))):
            RouteRequest.model_validate(wrong)
    with pytest.raises(ValidationError, match="waiting"):
        RelayRequest(waiting=(node,) * (MAX_RELAYED + 1))


def test_how_long_generations_took_stands_in_the_status_beside_what_was_predicted(cluster):
    nodes = joined(cluster, "one", "two")
    route = [hop.node_id for hop in cluster.service.route(DIGEST).hops]
    assert set(route) == set(nodes)
    run = RunReport(
        model=DIGEST,
        nodes=tuple(route),
        prompt_tokens=9,
        tokens=21,
        first_seconds=1.0,
        rest_seconds=4.0,
    )
    answer_route(cluster.service, RouteRequest(runs=(run, run)))
    (model,) = cluster.service.status().models
    assert model.ran is not None
    assert model.predicted is not None
    assert (model.ran.runs, model.ran.token_seconds) == (2, 0.2)
    assert model.ran.predicted_token_seconds == model.predicted.predicted_token_seconds > 0
