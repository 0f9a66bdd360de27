"""What the tracker bears from machines, from clocks, and from itself."""

import pytest
from cryptography import x509

from meshnet.domain.errors import (
    NodeNotReadyError,
    ResourceExhaustedError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Digest, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.pace import APART_SECONDS, BURST
from meshnet.transport.certificates import CERTIFICATE_DAYS, Role, new_key, public_key_of
from tests.support.tracked import Cluster, joining, spans
from tests.support.trackers import DIGEST, MACHINE, MemoryStore


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(MemoryStore())


@pytest.fixture
def secret(cluster: Cluster) -> str:
    return cluster.service.issue_token(msg.TokenRequest()).secret


def name_of(cluster: Cluster, node: NodeId) -> str:
    return next(it.name for it in cluster.service.status().machines if it.node_id == node)


def said(name: str | None = None, work: tuple[msg.WorkReport, ...] = ()) -> msg.HeartbeatRequest:
    return msg.HeartbeatRequest(incarnation=1, machine=MACHINE, name=name, work=work)


def test_a_machine_that_joins_an_old_tracker_stays_and_keeps_its_name(cluster, secret):
    cluster.wait(10.0)
    cluster.now += 30 * 3600
    fresh = cluster.service.issue_token(msg.TokenRequest()).secret
    node = cluster.join("one", fresh)
    cluster.service.tick()
    assert name_of(cluster, node) == "one"
    cluster.beat(node)
    assert name_of(cluster, node) == "one"


def test_a_machine_that_was_forgotten_comes_back_under_its_name(cluster, secret):
    node = cluster.join("one", secret)
    cluster.service.heartbeat(node, said("one"))
    cluster.wait(10.0)  # it is gone, and would be though the tracker then stood still
    cluster.now += cluster.service.observed.policy.forget_seconds
    cluster.service.tick()
    assert cluster.service.state.members == {}
    assert cluster.service.observed.record(node) is None
    cluster.service.heartbeat(node, said("one"))
    assert name_of(cluster, node) == "one"


def test_a_known_machine_may_be_called_otherwise(cluster, secret):
    node = cluster.join("one", secret)
    cluster.service.heartbeat(node, said("desk"))
    assert name_of(cluster, node) == "desk"
    count = len(cluster.store.events)
    for name in ("desk", None):
        cluster.service.heartbeat(node, said(name))
    assert len(cluster.store.events) == count
    key = public_key_of(new_key())
    own, _ = cluster.service.admit(key, "here", Role.NODE)
    cluster.service.admit(key, "there", Role.NODE)
    assert name_of(cluster, own) == "there"


def test_no_two_machines_have_the_same_name(cluster, secret):
    nodes = [cluster.join("box", secret) for _ in range(2)]
    nodes.append(cluster.join("other", secret))
    names = [name_of(cluster, node) for node in nodes]
    assert names == ["box", f"box-{nodes[1][:4]}", "other"]
    cluster.service.heartbeat(nodes[2], said(str(nodes[0])))
    assert name_of(cluster, nodes[2]) == f"{nodes[0]}-{nodes[2][:4]}", "an id is taken, too"
    cluster.service.remove(nodes[0])
    cluster.service.heartbeat(nodes[1], said("box"))
    assert name_of(cluster, nodes[1]) == "box"


def test_a_token_does_not_let_one_machine_speak_for_anothers_key(cluster, secret):
    victim = new_key()
    node = NodeId(cluster.service.join(joining(victim, "victim", secret)).node_id)
    mine = joining(new_key(), "mine", secret)
    public = public_key_of(victim).decode()
    for forged in (
        mine.model_copy(update={"public_key": public}),
        joining(victim, "victim", secret).model_copy(update={"name": "renamed"}),
        joining(victim, "victim", "another secret").model_copy(update={"secret": secret}),
        mine.model_copy(update={"proof": "00" * 70}),
    ):
        with pytest.raises(UnauthenticatedError, match="signature"):
            cluster.service.join(forged)
    assert [it.name for it in cluster.service.status().machines] == ["victim"]
    assert name_of(cluster, node) == "victim"


def test_a_tracker_that_stood_still_takes_nobody_for_gone_because_of_it(cluster, secret):
    nodes = [cluster.join(name, secret) for name in ("a", "b", "c")]
    cluster.settle(*nodes)
    cluster.wait(4.0, *nodes)
    before = cluster.service.status()
    cluster.now += 30.0
    # The first to be heard again may be heard before anything is planned.
    cluster.beat(nodes[0], cluster.beat(nodes[0]).assignment)
    assert cluster.service.tick() == ()
    assert spans(cluster.service.status()) == spans(before)
    assert {it.state for it in cluster.service.status().machines} == {msg.MachineState.READY}
    assert cluster.service.route(DIGEST)
    cluster.wait(9.0, nodes[0])
    gone = [it.node_id for it in cluster.service.status().machines if it.state == "down"]
    assert sorted(gone) == sorted(nodes[1:]), "who stays silent is gone all the same"


def test_the_wall_clock_of_the_moment_decides_certificates_and_tokens(cluster, secret):
    cluster.ahead = 5 * 365 * 86_400.0  # the network's time came after the start
    with pytest.raises(UnauthenticatedError, match="time is over"):
        cluster.join("late", secret)
    made = cluster.service.issue_token(msg.TokenRequest(seconds=60))
    assert made.expires_unix == int(cluster.now + cluster.ahead) + 60
    cluster.ahead += 10.0
    key = new_key()
    reply = cluster.service.join(joining(key, "one", made.secret))
    certificate = x509.load_pem_x509_certificate(reply.certificate.encode())
    issued = certificate.not_valid_before_utc.timestamp()
    assert issued == pytest.approx(cluster.now + cluster.ahead - 3600, abs=2)
    node = NodeId(reply.node_id)
    cluster.beat(node)
    cluster.ahead -= 40.0  # set back: no lease is over or longer for it
    assert cluster.service.observed.is_live(node, cluster.service.now)


def test_work_for_models_that_nobody_offers_is_not_kept(cluster, secret):
    node = cluster.join("one", secret)
    for letter in "0123456789":
        cluster.now += 1.0
        work = msg.WorkReport(
            model="sha256:" + letter * 64,
            start=0,
            end=6,
            epoch=1,
            phase=msg.Phase.READY,
            address="a:1",
            recipe="r",
        )
        cluster.service.heartbeat(node, said(work=(work,)))
        assert not cluster.service.observed.ranked(Digest(work.model))
    with pytest.raises(NodeNotReadyError):
        cluster.service.route(DIGEST)


def test_heartbeats_beyond_a_burst_are_refused_and_those_of_others_are_not(cluster, secret):
    one, other = cluster.join("one", secret), cluster.join("other", secret)
    for _ in range(BURST):
        cluster.beat(one)
    with pytest.raises(ResourceExhaustedError, match=str(one)):
        cluster.beat(one)
    cluster.beat(other)
    for _ in range(3 * BURST):
        cluster.now += APART_SECONDS + 1e-6
        cluster.beat(one)


def test_machines_are_told_who_was_removed_while_certificates_last(cluster, secret):
    one, other = cluster.join("one", secret), cluster.join("other", secret)
    assert cluster.beat(one).removed == ()
    cluster.service.remove(other)
    cluster.restart()
    assert cluster.beat(one).removed == (other,)
    cluster.ahead += CERTIFICATE_DAYS * 86_400 + 1
    assert cluster.beat(one).removed == ()
    with pytest.raises(UnauthenticatedError, match="removed"):
        cluster.beat(other)
