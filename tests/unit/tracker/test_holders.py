from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker import messages as msg
from meshnet.tracker.holders import AGAIN, COPIES, Candidate, Holders, Wanted, choose_holders
from meshnet.tracker.leases import Policy
from meshnet.tracker.state import assignment_of
from tests.support.clusters import MODEL, OTHER, Cluster, beat, layers, offered, work

TOTAL = 12
ASKS = NodeId("0" * 16)


def candidate(name: str, start: int, end: int, *, host: str = "10.0.0.9", link: float = 0.0003):
    return Candidate(NodeId(name), name, f"{host}:4000", LayerRange(start, end), link)


def wanted(start: int, end: int, name: str = "asks", address: str | None = "10.0.0.1:5000"):
    return Wanted(NodeId(name), LayerRange(start, end), TOTAL, address)


def names(chosen) -> list[str]:
    return [it.name for it in chosen]


ranges = st.integers(0, TOTAL - 1).flatmap(
    lambda start: st.integers(start + 1, TOTAL).map(lambda end: (start, end))
)


@given(wanted_layers=ranges, held=st.lists(ranges, max_size=12))
def test_whatever_somebody_has_can_be_had_and_the_answer_stays_short(wanted_layers, held) -> None:
    there = [candidate(f"m{number}", *each) for number, each in enumerate(held)]
    chosen = choose_holders(wanted(*wanted_layers), there)
    assert len(chosen) == len(set(chosen)) <= msg.MAX_HOLDERS
    asked = set(range(*wanted_layers))
    useful = [it for it in chosen if asked & set(it.layers)]
    possible = asked & {layer for start, end in held for layer in range(start, end)}
    if len(held) <= msg.MAX_HOLDERS:
        assert {layer for it in useful for layer in it.layers} & asked == possible
    copies = Counter(layer for it in useful for layer in it.layers if layer in asked)
    # A machine is chosen for a layer that too few have, and has its other layers as well.
    assert not useful or min(copies.values()) <= COPIES


def test_near_machines_come_first_and_of_these_the_ones_with_short_round_trips() -> None:
    there = [
        candidate("far", 0, TOTAL, host="10.0.7.7"),
        candidate("slow", 0, TOTAL, link=0.02),
        candidate("near", 0, TOTAL),
    ]
    assert names(choose_holders(wanted(2, 5), there)) == ["near", "slow", "far"]
    elsewhere = wanted(2, 5, address="[2001:db8::1]:1")
    assert names(choose_holders(elsewhere, there))[-1] == "slow"
    six = [candidate("far", 2, 5), candidate("near", 2, 5, host="[2001:db8::2]")]
    assert names(choose_holders(elsewhere, six)) == ["near", "far"]


def test_machines_that_ask_are_spread_over_those_that_have_the_layers() -> None:
    there = [candidate(f"m{number}", 0, TOTAL) for number in range(10)]
    first = Counter(
        names(choose_holders(wanted(2, 5, name=f"asks{number}"), there))[0] for number in range(200)
    )
    assert len(first) == 10
    assert max(first.values()) < 60


def test_embeddings_and_output_are_got_from_those_that_have_them() -> None:
    heads = [candidate(f"head{number}", 0, 1) for number in range(9)]
    tail = candidate("tail", TOTAL - 1, TOTAL, host="10.9.9.9")
    # They may be one tensor, so that a head is asked for a tail's, and the other way round.
    last = names(choose_holders(wanted(4, TOTAL), [*heads, tail]))
    assert "tail" in last
    assert len(last) == COPIES
    assert "tail" not in names(choose_holders(wanted(0, 4), [*heads, tail]))
    assert "tail" in names(choose_holders(wanted(0, 4), [tail]))
    assert choose_holders(wanted(4, 8), [*heads, tail]) == ()


def held(start: int, end: int, model: str = MODEL, host: str = "127.0.0.1"):
    report = msg.SliceReport(model=model, start=start, end=end)
    weights = msg.WeightsReport(address=f"{host}:4000", slices=(report,))
    return beat(memory=0).model_copy(update={"weights": weights})


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster()
    made.happen(offered(8))
    made.join(ASKS)
    made.until_settled()
    return made


def told(cluster: Cluster, beats, unreachable="", later: float = 0.0) -> str:
    """Whom the machine that asks is told of, where others, each called by a letter, say so."""
    known = {NodeId(letter * 16): said for letter, said in beats.items()}
    for node_id, said in known.items():
        cluster.join(node_id, memory=0)
        cluster.observed.heard(node_id, said, cluster.now)
    avoid = {NodeId(letter * 16) for letter in unreachable}
    beats = {ASKS: cluster.machines[ASKS], **known}
    holders = Holders(cluster.state, beats, cluster.observed, lambda: avoid)
    assignment = assignment_of(cluster.state, ASKS)
    assert assignment is not None
    reply = holders.tell(ASKS, assignment, cluster.now + later)
    return "".join(sorted(it.node_id[0] for it in reply.holders))


def test_only_machines_that_are_there_and_can_be_reached_are_named(cluster: Cluster) -> None:
    here = {name: held(0, 8) for name in "bcd"}
    silent = held(0, 8).model_copy(update={"weights": msg.WeightsReport()})
    others = {"e": held(0, 8, OTHER), "f": silent, "1": held(0, 9)}
    assert told(cluster, here | others, "d") == "bc"


def test_a_machine_that_is_gone_is_not_named(cluster: Cluster) -> None:
    assert told(cluster, {"b": held(0, 8)}, later=5.0) == "b"
    assert told(cluster, {"c": held(0, 8)}, later=60.0) == ""


@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        (msg.Phase.FAILED, "b"),
        (msg.Phase.STARTING, ""),
        (msg.Phase.READY, ""),
    ],
)
def test_nobody_is_named_to_a_machine_that_has_its_layers(
    cluster: Cluster, phase: msg.Phase, expected: str
) -> None:
    under_way = (work(layers(0, 8), phase=phase),)
    cluster.machines[ASKS] = cluster.machines[ASKS].model_copy(update={"work": under_way})
    assert told(cluster, {"b": held(0, 8)}) == expected


def test_a_machine_that_fetches_is_told_again_now_and_then(cluster: Cluster) -> None:
    fetching = (work(layers(0, 8), phase=msg.Phase.FETCHING),)
    cluster.machines[ASKS] = cluster.machines[ASKS].model_copy(update={"work": fetching})
    cluster.policy = cluster.observed.policy = Policy(lease_seconds=1e6)
    said = {"b": held(0, 8)}
    answers = [told(cluster, said, later=2.0 * beats) for beats in range(3 * AGAIN)]
    assert Counter(answers) == {"b": 3, "": 3 * (AGAIN - 1)}


def test_reports_and_answers_are_bounded() -> None:
    report = msg.SliceReport(model=MODEL, start=0, end=1)
    with pytest.raises(ValueError, match="slices"):
        msg.WeightsReport(slices=(report,) * (msg.MAX_SLICES + 1))
    with pytest.raises(ValueError, match="start 3 must be less than end 3"):
        msg.SliceReport(model=MODEL, start=3, end=3)
