"""What is served goes on being served while machines are drained, join, or are placed anew."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import NodeNotReadyError
from meshnet.domain.ids import NodeId
from meshnet.tracker.events import (
    Event,
    NodeDrained,
    NodeJoined,
    NodeReported,
    NodeUndrained,
    Placed,
    Resources,
    Seat,
)
from meshnet.tracker.placement import Objective
from meshnet.tracker.plan import plan
from meshnet.tracker.routing import route_for
from meshnet.tracker.state import Share
from tests.support.clusters import MODEL, Cluster, beat, layers, offered, work


@dataclass
class Loader:
    """A machine that takes turns to load layers, and stops serving others halfway."""

    turns: int
    held: Share | None = None
    wanted: Share | None = None
    left: int = 0

    def told(self, share: Share | None) -> bool:
        """One more turn; whether it is ready with these just now."""
        if share is None or share == self.held:
            self.wanted, self.held = None, share
            return False
        if share != self.wanted:
            self.wanted, self.left = share, self.turns
        if self.left == 0:
            self.held = share
            return True
        self.left -= 1
        if self.left <= self.turns // 2:
            self.held = None
        return False


@dataclass
class Loading(Cluster):
    """A cluster whose machines take time to be ready, and a turn more to be reached."""

    loaders: dict[NodeId, Loader] = field(default_factory=dict)
    hidden: set[NodeId] = field(default_factory=set)
    """Machines that nobody reaches."""
    untried: set[NodeId] = field(default_factory=set)

    def add(self, name: str, memory: int = 40, speed: float = 1000.0, turns: int = 3) -> None:
        node = NodeId(name)
        self.machines[node], self.loaders[node] = beat(memory, speed), Loader(turns)
        self.happen(NodeJoined(node, name), NodeReported(node, Resources(memory, speed)))

    def place(self, **spans: tuple[int, int]) -> None:
        """Machines have been ready with these layers for long."""
        seats = tuple(Seat(NodeId(name), layers(*span)) for name, span in spans.items())
        self.happen(Placed(MODEL, self.state.epoch + 1, seats))
        for seat in seats:
            self.loaders[seat.node_id].held = Share(MODEL, seat.layers)

    @property
    def unreachable(self) -> set[NodeId]:
        return self.untried | self.hidden

    @property
    def is_routable(self) -> bool:
        try:
            route_for(self.state, self.observed, MODEL, self.now, self.unreachable)
        except NodeNotReadyError:
            return False
        return True

    def turn(self, seconds: float = 2.0) -> tuple[Event, ...]:
        self.now += seconds
        self.untried = set()
        for node, said in self.machines.items():
            loader, share = self.loaders[node], self.state.members[node].share
            if loader.told(share):
                self.untried.add(node)
            held = loader.held
            ready = () if held is None else (work(held.layers, held.digest),)
            self.observed.heard(node, said.model_copy(update={"work": ready}), self.now, share)
        planned = plan(self.state, self.observed, self.now, self.now, self.unreachable)
        self.happen(*planned)
        again = plan(self.state, self.observed, self.now, self.now, self.unreachable)
        assert again == (), "planning again gave something new"
        return planned

    def turns(self, count: int) -> None:
        """Turns, at none of which a request is refused."""
        for _ in range(count):
            self.turn()
            assert self.is_routable, f"{self.seats()} leave nobody ready with some layers"


def cluster_of(*machines: tuple[str, int, float], count: int = 6) -> Loading:
    cluster = Loading()
    cluster.happen(offered(count))
    for name, memory, speed in machines:
        cluster.add(name, memory, speed)
    return cluster


@pytest.mark.parametrize("spare", [(0, 2), (2, 4), (4, 6), None])
def test_the_spare_takes_over_from_a_drained_machine_and_nobody_else_moves(spare):
    cluster = cluster_of(
        ("first", 20, 500.0), ("second", 20, 900.0), ("third", 20, 700.0), ("spare", 20, 2000.0)
    )
    served = {"first": (0, 2), "third": (2, 4), "second": (4, 6)}
    cluster.place(**served)
    cluster.turn()
    if spare is not None:
        # It was only told so by now.
        seats = {**served, "spare": spare}
        held = tuple(Seat(NodeId(name), layers(*span)) for name, span in seats.items())
        cluster.happen(Placed(MODEL, cluster.state.epoch + 1, held))
    cluster.happen(NodeDrained(NodeId("second")))
    cluster.turns(12)
    assert cluster.seats() == {"first": (0, 2), "third": (2, 4), "spare": (4, 6)}


def test_another_is_moved_only_once_a_spare_machine_is_ready_in_its_place():
    cluster = cluster_of(
        ("a", 40, 9e2), ("b", 40, 9e2), ("c", 20, 9e2), ("spare", 20, 2e3), count=8
    )
    cluster.place(a=(0, 2), b=(2, 6), c=(6, 8))
    cluster.turn()
    cluster.happen(NodeDrained(NodeId("b")))
    cluster.turns(20)
    seats = cluster.seats()
    assert seats.pop("a") == (2, 6)
    assert (sorted(seats), sorted(seats.values())) == (["c", "spare"], [(0, 2), (6, 8)])


def test_a_drained_machine_serves_on_where_others_would_have_to_stop_first():
    cluster = cluster_of(("a", 60, 900.0), ("b", 40, 900.0), ("c", 20, 900.0), count=8)
    cluster.place(a=(0, 4), b=(4, 8))
    cluster.turn()
    cluster.happen(NodeDrained(NodeId("b")))
    cluster.turns(12)
    assert cluster.seats() == {"a": (0, 4), "b": (4, 8)}


def test_layers_that_nobody_holds_move_others_where_no_spare_machine_has_room():
    cluster = cluster_of(("a", 60, 900.0), ("b", 40, 900.0), ("c", 20, 900.0), count=8)
    cluster.place(a=(0, 4), b=(4, 8))
    cluster.turn()
    cluster.die("b")
    for _ in range(20):
        cluster.turn()
    assert cluster.is_routable
    assert sorted(cluster.seats().values()) == [(0, 6), (6, 8)]


def test_layers_that_nobody_holds_go_to_a_machine_that_another_will_replace():
    cluster = cluster_of(
        ("a", 40, 900.0), ("b", 40, 900.0), ("c", 20, 900.0), ("late", 20, 900.0), count=8
    )
    cluster.place(a=(0, 2), b=(2, 6), c=(6, 8))
    cluster.turn()
    held = {"a": (0, 2), "b": (2, 6), "c": (6, 8), "late": (0, 2)}
    seats = tuple(Seat(NodeId(name), layers(*span)) for name, span in held.items())
    cluster.happen(Placed(MODEL, cluster.state.epoch + 1, seats))
    cluster.loaders[NodeId("late")].turns = 30
    cluster.lose("b")
    assert cluster.seats() == {"a": (2, 6), "c": (6, 8), "late": (0, 2)}


def test_a_machine_that_is_ready_but_not_reached_lets_no_other_go():
    cluster = cluster_of(("a", 40, 900.0), ("b", 40, 900.0), ("spare", 40, 900.0), count=8)
    cluster.place(a=(0, 4), b=(4, 8))
    cluster.hidden = {NodeId("spare")}
    cluster.happen(NodeDrained(NodeId("b")))
    cluster.turns(12)
    assert cluster.seats() == {"a": (0, 4), "b": (4, 8), "spare": (4, 8)}
    cluster.hidden.clear()
    cluster.turns(2)
    assert cluster.seats() == {"a": (0, 4), "spare": (4, 8)}


def test_a_better_placement_is_made_beside_the_one_that_serves():
    cluster = cluster_of(("a", 80, 1.0), count=8)
    cluster.place(a=(0, 8))
    for name in "bc":
        cluster.add(name, 40, 1e6)
    cluster.turns(12)
    assert cluster.seats() == {"a": (0, 8), "b": (0, 4), "c": (4, 8)}


def test_machines_that_load_yet_are_placed_anew_for_one_that_makes_it_better():
    cluster = cluster_of(("a", 80, 100.0), count=8)
    cluster.turn()
    assert cluster.seats() == {"a": (0, 8)}
    cluster.add("b", 50, 1e4)
    cluster.turn()
    assert sorted(cluster.seats()) == ["a", "b"]


machines = st.lists(
    st.tuples(
        st.sampled_from([20, 20, 30, 40, 60]),
        st.sampled_from([100.0, 500.0, 1000.0, 4000.0]),
        st.integers(1, 4),
    ),
    min_size=3,
    max_size=6,
)
happenings = st.lists(
    st.tuples(
        st.sampled_from(["drain", "drain", "undrain", "join", "speed", "hide"]),
        st.integers(0, 7),
        st.sampled_from([20, 40, 60]),
        st.sampled_from([50.0, 800.0, 9000.0]),
        st.sampled_from([1, 3, 9]),
    ),
    min_size=1,
    max_size=6,
)


@given(machines, happenings, st.sampled_from(list(Objective)))
@settings(max_examples=120, deadline=None)
def test_what_is_served_goes_on_being_served_whatever_is_drained_or_placed_anew(
    first, then, objective
):
    cluster = Loading()
    cluster.happen(offered(8, objective=objective))
    for number, (memory, speed, turns) in enumerate(first):
        cluster.add(f"n{number}", memory, speed, turns)
    for _ in range(8):
        cluster.turn()
    was = cluster.is_routable
    for action, number, memory, speed, turns in then:
        happen(cluster, action, number, memory, speed)
        for _ in range(turns):
            cluster.turn()
            assert cluster.is_routable or not was, f"{cluster.seats()} after {action}"
            was = cluster.is_routable


def happen(cluster: Loading, action: str, number: int, memory: int, speed: float) -> None:
    node = NodeId(f"n{number % (len(cluster.machines) + 1)}")
    if action == "join" and node not in cluster.machines:
        cluster.add(node, memory, speed, number)
    elif node not in cluster.machines:
        return
    elif action == "drain":
        cluster.happen(NodeDrained(node))
    elif action == "undrain":
        cluster.happen(NodeUndrained(node))
    elif action == "speed":
        resources = cluster.state.members[node].resources
        assert resources is not None
        cluster.happen(NodeReported(node, Resources(resources.memory_bytes, speed)))
    elif action == "hide" and cluster.loaders[node].held is None:
        cluster.hidden.symmetric_difference_update({node})
