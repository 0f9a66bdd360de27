"""What changes in a plan only because time passes."""

from meshnet.domain.ids import NodeId
from meshnet.tracker.events import NodeDrained, Placed, TokenIssued, TokenRevoked
from meshnet.tracker.messages import Phase
from meshnet.tracker.plan import plan
from tests.support.clusters import beat, cluster_of, layers, work


def test_a_machine_that_never_gets_ready_is_passed_over_though_it_tries_again_and_again():
    cluster = cluster_of(("a", 40), ("b", 40))
    held = cluster.seats()["b"]
    cluster.slow.add(NodeId("b"))
    cluster.join("c", 40)
    cluster.until_settled()
    for phase in (Phase.FAILED, Phase.FETCHING, Phase.STARTING) * 14:
        cluster.machines[NodeId("b")] = beat(40, work=[work(layers(*held), phase=phase)])
        cluster.turn()
    assert "b" not in cluster.seats()
    assert cluster.seats()["c"] == held


def test_hours_and_tokens_follow_the_wall_clock_and_leases_the_steady_one():
    cluster = cluster_of(("a", 40), ("b", 40))
    cluster.join("night", 40, hours="22:00-06:00")
    cluster.happen(TokenIssued("t", "digest", 30 * 3600, 1))

    def planned(unix: float) -> list[type]:
        return [*map(type, plan(cluster.state, cluster.observed, cluster.now, unix))]

    assert Placed not in planned(12 * 3600.0), "it isn't lent by day"
    assert Placed not in planned(21.95 * 3600.0), "nor yet"
    assert Placed in planned(25 * 3600.0), "it is at night, though no machine's lease is over"
    assert TokenRevoked not in planned(30 * 3600.0 - 1)
    assert TokenRevoked in planned(30 * 3600.0)


def test_a_drained_machine_is_not_forgotten_so_that_it_stays_drained():
    cluster = cluster_of(("a", 40), ("b", 40), ("c", 40))
    cluster.happen(NodeDrained(NodeId("b")))
    cluster.die("b")
    cluster.die("c")
    cluster.turn(cluster.policy.forget_seconds + 1)
    assert set(cluster.state.members) == {"a", "b"}
    assert cluster.state.members[NodeId("b")].drained
