import pytest

from meshnet.domain.ids import NodeId
from meshnet.tracker.measurements import (
    MOST_PREDICTED_SECONDS,
    LinkReport,
    RunReport,
    SpeedReport,
    Told,
)
from meshnet.tracker.observed import LINK_SECONDS
from meshnet.tracker.runs import KEPT, LEAST_TOKENS, Runs, expected
from meshnet.tracker.speeds import Speed
from tests.support.clusters import MODEL, OTHER, Cluster, beat, offered

HEAD, TAIL = "a" * 16, "b" * 16
MEASURED = Speed(100.0, 100.0, 0.1, 1.0, 10.0, 0.2)


def cluster_of_two(speed: Speed | None = MEASURED) -> Cluster:
    """A model of four layers of ten bytes, two on each machine."""
    cluster = Cluster()
    cluster.happen(offered(4))
    for name in (HEAD, TAIL):
        cluster.join(name, 20)
        if speed is not None:
            said = cluster.machines[NodeId(name)]
            speeds = [SpeedReport.of(MODEL, speed)]
            links = [LinkReport(node_id=TAIL, round_trip_seconds=0.02)] if name == HEAD else None
            made = beat(20, speeds=speeds, links=links)
            cluster.machines[NodeId(name)] = said.model_copy(
                update={"machine": made.machine, "links": made.links}
            )
    cluster.until_settled()
    assert cluster.seats() == {HEAD: (0, 2), TAIL: (2, 4)}
    return cluster


def run(**changes: object) -> RunReport:
    values: dict[str, object] = {
        "model": MODEL,
        "nodes": (HEAD, TAIL),
        "prompt_tokens": 32,
        "tokens": 11,
        "first_seconds": 5.0,
        "rest_seconds": 7.0,
    }
    return RunReport.model_validate(values | changes)


def test_a_chain_is_predicted_from_its_machines_speeds_and_links():
    cluster = cluster_of_two()
    nodes = [NodeId(HEAD), NodeId(TAIL)]
    found = expected(cluster.state, cluster.observed, MODEL, nodes, 32)
    assert found is not None
    assert found.token_seconds == pytest.approx(2 * 0.3 + 2 * 0.01, rel=1e-3)
    assert found.first_seconds == pytest.approx(2 * 2.2 + 4 * 0.01, rel=1e-2)


def test_machines_that_werent_measured_are_predicted_without_a_first_token():
    cluster = cluster_of_two(None)
    nodes = [NodeId(HEAD), NodeId(TAIL)]
    found = expected(cluster.state, cluster.observed, MODEL, nodes, 32)
    assert found is not None
    assert found.token_seconds == pytest.approx(0.04 + 2 * LINK_SECONDS, rel=1e-3)
    assert found.first_seconds is None


def test_what_generations_took_stands_beside_what_was_predicted():
    cluster, runs = cluster_of_two(), Runs()
    for first, rest in ((5.0, 7.0), (4.0, 6.0), (50.0, 70.0)):
        report = run(first_seconds=first, rest_seconds=rest)
        runs.note(report, cluster.state, cluster.observed)
    status = runs.status(MODEL)
    assert status is not None
    assert (status.runs, status.token_seconds, status.first_seconds) == (3, 0.7, 5.0)
    assert status.predicted_token_seconds == pytest.approx(0.62, rel=1e-3)
    assert status.predicted_first_seconds == pytest.approx(4.44, rel=1e-2)
    assert runs.status(OTHER) is None


def test_a_prompt_that_was_cached_says_nothing_of_first_tokens():
    cluster, runs = cluster_of_two(), Runs()
    runs.note(run(cached_tokens=32), cluster.state, cluster.observed)
    status = runs.status(MODEL)
    assert status is not None
    assert (status.first_seconds, status.predicted_first_seconds) == (0.0, 0.0)


def test_a_machine_of_odd_figures_doesnt_spoil_what_is_told_of_the_cluster():
    odd = Speed(1e-300, 1e-300, 9e8, 1.0, 1e-300, 9e8, 9e8, 9e8)
    cluster, runs = cluster_of_two(odd), Runs()
    runs.note(run(), cluster.state, cluster.observed)
    status = runs.status(MODEL)
    assert status is not None
    assert status.predicted_token_seconds == MOST_PREDICTED_SECONDS
    assert Told(predicted_seconds=float("nan")).predicted_seconds == MOST_PREDICTED_SECONDS


@pytest.mark.parametrize(
    "changes",
    [
        {"tokens": LEAST_TOKENS - 1},
        {"nodes": (HEAD, "c" * 16)},
        {"model": OTHER},
        {"rest_seconds": 0.0},
    ],
)
def test_a_generation_that_says_too_little_isnt_counted(changes):
    cluster, runs = cluster_of_two(), Runs()
    runs.note(run(**changes), cluster.state, cluster.observed)
    assert runs.status(MODEL) is None


def test_only_the_last_generations_count():
    cluster, runs = cluster_of_two(), Runs()
    for _ in range(KEPT):
        runs.note(run(rest_seconds=70.0), cluster.state, cluster.observed)
    for _ in range(KEPT):
        runs.note(run(), cluster.state, cluster.observed)
    status = runs.status(MODEL)
    assert status is not None
    assert (status.runs, status.token_seconds) == (KEPT, 0.7)
