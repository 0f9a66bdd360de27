"""What every store of events does, over SQLite and over PostgreSQL."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import NodeId
from meshnet.tracker.events import ClusterMade, Event, NodeJoined, NodeRemoved, event_to_json
from meshnet.tracker.state import ClusterState, apply_all
from meshnet.tracker.store import open_store, sole
from meshnet.tracker.store.database import open_database
from meshnet.tracker.store.tables import EVENTS, SNAPSHOTS, VERSION
from tests.support.happenings import events

shared = settings(
    max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)


def joined(*names: str) -> list[Event]:
    return [NodeJoined(NodeId(name), name) for name in names]


def test_a_new_store_is_an_empty_cluster(place: str):
    store = open_store(place)
    assert store.load() == (ClusterState(), 0)
    store.close()


@shared
@given(st.lists(st.lists(events, max_size=4), max_size=6), st.integers(1, 8))
def test_opened_again_it_holds_the_state_of_all_that_was_written(
    place: str, batches: list[list[Event]], snapshot_every: int
):
    before = open_store(place)
    expected, count = before.load()
    before.close()
    for batch in batches:
        store = open_store(place, snapshot_every)
        assert store.load() == (expected, count)
        expected, count = apply_all(expected, batch), count + len(batch)
        assert store.append(batch) == expected
        store.close()
    again = open_store(place, snapshot_every)
    assert again.load() == (expected, count)
    again.close()


def test_a_long_log_isn_t_replayed_and_doesn_t_stay(place: str):
    store = open_store(place, snapshot_every=10)
    for number in range(95):
        store.append(joined(f"n{number}"))
    store.close()
    database = open_database(place)
    with database.reading() as connection:
        kept = list(connection.scalars(sa.select(EVENTS.c.sequence)))
        snapshots = sorted(connection.scalars(sa.select(SNAPSHOTS.c.sequence)))
    database.close()
    assert snapshots == [80, 90]
    assert sorted(kept) == list(range(81, 96))
    again = open_store(place)
    assert (len(again.load()[0].members), again.load()[1]) == (95, 95)
    again.close()


def test_events_are_written_all_or_none(place: str):
    store = open_store(place)
    store.append(joined("a"))
    intruders = [
        {"sequence": number, "body": event_to_json(event)}
        for number, event in enumerate(joined("x", "y"), start=2)
    ]
    change(place, sa.insert(EVENTS).values(intruders))
    with pytest.raises(InvalidArgumentError, match="store: another tracker writes"):
        store.append(joined("b", "c", "d"))
    assert store.load()[1] == 1
    store.close()
    again = open_store(place)
    assert set(again.load()[0].members) == {"a", "x", "y"}
    again.close()


def test_a_second_tracker_is_refused_before_it_writes(place: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sole, "_TRY_SECONDS", 0.2)
    first = open_store(place)
    with pytest.raises(InvalidArgumentError, match="store: another tracker uses"):
        open_store(place)
    first.append(joined("a"))
    first.close()
    second = open_store(place)
    assert set(second.load()[0].members) == {"a"}
    second.close()


def test_the_store_of_another_cluster_is_refused(place: str):
    store = open_store(place)
    store.belong_to("sha256:one")
    store.close()
    store = open_store(place)
    store.belong_to("sha256:one")
    with pytest.raises(InvalidArgumentError, match=r"store: .* sha256:one, this one's is sha256:2"):
        store.belong_to("sha256:2")
    store.close()


def test_what_a_killed_tracker_had_acknowledged_is_there(place: str):
    program = f"""
from itertools import count
from meshnet.domain.ids import NodeId
from meshnet.tracker.events import NodeJoined
from meshnet.tracker.store import open_store
store = open_store({place!r}, snapshot_every=7)
for number in count():
    store.append([NodeJoined(NodeId(f"n{{number}}"), "a"), NodeJoined(NodeId(f"m{{number}}"), "b")])
    print(number, flush=True)
"""
    tracker = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert tracker.stdout is not None
    acknowledged = [tracker.stdout.readline() for _ in range(40)]
    tracker.kill()
    acknowledged += tracker.communicate(timeout=30)[0].splitlines()
    store = open_store(place)
    members = set(store.load()[0].members)
    assert {f"n{int(number)}" for number in acknowledged} <= members
    assert {f"m{name[1:]}" for name in members} <= members, "a batch is there all or not at all"
    assert len(members) <= 2 * len(acknowledged) + 2
    store.append([NodeRemoved(NodeId("n3"))])
    store.close()


def test_a_store_that_lacks_events_is_refused(place: str):
    store = open_store(place)
    store.append(joined("a", "b", "c"))
    store.close()
    change(place, sa.delete(EVENTS).where(EVENTS.c.sequence == 2))
    with pytest.raises(InvalidArgumentError, match="store: events after number 0 are missing"):
        open_store(place)


def test_a_store_of_a_newer_meshnet_is_refused(place: str):
    open_store(place).close()
    change(place, sa.insert(VERSION).values(version=99))
    with pytest.raises(InvalidArgumentError, match=r"store: .*version 99.*newer"):
        open_store(place)


@pytest.mark.parametrize(
    ("body", "problem"),
    [("{", "snapshot's"), ('{"members": {"a": {"name": 4}}}', "snapshot's members.a.name")],
)
def test_a_snapshot_that_can_t_be_is_refused_by_the_field(place: str, body: str, problem: str):
    store = open_store(place, snapshot_every=1)
    store.append([ClusterMade("home")])
    store.close()
    change(place, sa.update(SNAPSHOTS).values(body=body))
    with pytest.raises(InvalidArgumentError, match=f"store: a {problem}"):
        open_store(place)


def test_texts_of_any_language_are_kept(place: str):
    store = open_store(place, snapshot_every=1)
    store.append([ClusterMade("Zuhause — 我的家 🏠")])
    store.close()
    again = open_store(place)
    assert again.load()[0].name == "Zuhause — 我的家 🏠"
    again.close()


def test_a_snapshot_after_no_event_is_refused(place: str):
    with pytest.raises(InvalidArgumentError, match="snapshot_every"):
        open_store(place, snapshot_every=0)


def change(place: str, statement: sa.Executable) -> None:
    database = open_database(place)
    with database.writing() as connection:
        connection.execute(statement)
    database.close()
