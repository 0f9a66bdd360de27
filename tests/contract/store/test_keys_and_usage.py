"""Keys, usage and the ledger, the same over every database."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError
from meshnet.tracker.apikeys import KeyLimits, issue
from meshnet.tracker.ledger import HOUSE, Account, key_account, node_account
from meshnet.tracker.store import database as database_module
from meshnet.tracker.store.database import Database, open_database
from meshnet.tracker.store.keys import KeyStore
from meshnet.tracker.store.usage import UsageStore
from meshnet.tracker.usage import Grouping, NodeUse, UsageRecord, UsageSum

_NUMBERS = itertools.count()


@pytest.fixture
def database(place: str) -> Iterator[Database]:
    opened = open_database(place)
    yield opened
    opened.close()


def record(key: str = "k", model: str = "m", began: int = 100, **changes: object) -> UsageRecord:
    """An answer of 10 + 5 tokens by two nodes with a layer each; one node computed 2 too many."""
    made = UsageRecord(
        entry_id=f"chatcmpl-{next(_NUMBERS)}",
        request_id="r",
        key_id=key,
        model=model,
        began_unix=began,
        seconds=1.5,
        end="done",
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=5,
        token_layers=22,
        nodes=(NodeUse("a", 13, 1000, 256), NodeUse("b", 11, 0, 0)),
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_keys_are_kept_without_their_secrets_changed_and_found(
    place: str, database: Database
) -> None:
    store = KeyStore(database)
    limits = KeyLimits(60, 1000, 2, 3)
    (one, secret), (two, _) = issue("one", limits, 5), issue("two", KeyLimits(), 6, operator=True)
    store.add(one)
    store.add(two)
    store.replace(replace(one, disabled=True, limits=KeyLimits(weight=7)))
    again = open_database(place)
    try:
        found = KeyStore(again).all()
    finally:
        again.close()
    assert found == (replace(one, disabled=True, limits=KeyLimits(weight=7)), two)
    assert store.named("two") == store.named(two.key_id) == two
    if Path(place).exists():
        written = b"".join(path.read_bytes() for path in Path(place).parent.iterdir())
        assert one.digest.encode() in written
        assert secret.encode() not in written


def test_a_name_is_had_by_one_key_and_what_isnt_there_is_refused(database: Database) -> None:
    store = KeyStore(database)
    (key, _), (other, _) = issue("one", KeyLimits(), 5), issue("one", KeyLimits(), 6)
    store.add(key)
    for refused in (lambda: store.add(other), lambda: store.named("x")):
        with pytest.raises(InvalidArgumentError) as caught:
            refused()
        assert caught.value.details["field"] == "name"
    with pytest.raises(InvalidArgumentError, match="no key"):
        store.replace(other)
    assert store.all() == (key,)


def test_an_answer_is_written_down_once(database: Database) -> None:
    store, answer = UsageStore(database), record()
    for _ in range(2):
        store.append(answer)
    assert store.balances() == {
        key_account("k"): -22,
        node_account("a"): 13,
        node_account("b"): 11,
        HOUSE: -2,
    }
    with pytest.raises(InvalidArgumentError, match="posted already"):
        store.append(replace(answer, token_layers=23))
    assert store.sums(Grouping.KEY) == (
        UsageSum("k", 1, 22, {"prompt_tokens": 10, "cached_tokens": 4, "completion_tokens": 5}),
    )


def test_a_reversal_undoes_the_credits_once(database: Database) -> None:
    store, answer, kept = UsageStore(database), record(), record("other")
    store.append(answer)
    store.append(kept)
    for _ in range(2):
        undone = store.reverse(answer.entry_id)
        assert (undone.entry_id, undone.reverses) == (
            f"{answer.entry_id}/reversed",
            answer.entry_id,
        )
    balances = store.balances()
    assert balances[key_account("k")] == 0
    assert balances[key_account("other")] == -22
    assert sum(balances.values()) == 0
    for wrong in ("nothing", f"{answer.entry_id}/reversed"):
        with pytest.raises(InvalidArgumentError):
            store.reverse(wrong)


def test_use_is_summed_by_key_model_and_node_since_a_time(database: Database) -> None:
    store = UsageStore(database)
    for answer in (record("k", "m", 100), record("k", "n", 200), record("l", "n", 300)):
        store.append(answer)
    assert [(each.name, each.requests, each.token_layers) for each in store.sums(Grouping.KEY)] == [
        ("k", 2, 44),
        ("l", 1, 22),
    ]
    assert [each.name for each in store.sums(Grouping.MODEL, 200)] == ["n"]
    assert store.sums(Grouping.NODE, 200) == (
        UsageSum("a", 2, 26, {"engine_nanos": 2000, "boundary_bytes": 512}),
        UsageSum("b", 2, 22, {"engine_nanos": 0, "boundary_bytes": 0}),
    )
    assert store.sums(Grouping.KEY, 301) == ()


def test_what_keys_spent_is_told_by_the_quarter_of_an_hour(database: Database) -> None:
    store = UsageStore(database)
    for key, began in (("l", 3599), ("k", 100), ("k", 2700), ("k", 2701), ("l", 3600)):
        store.append(record(key, began=began))
    assert store.spent(101) == (("k", 2700.0, 30), ("l", 2700.0, 15), ("l", 3600.0, 15))


COUNTS = st.integers(0, 2**40)


@given(
    answers=st.lists(
        st.tuples(
            st.sampled_from("kl"),
            COUNTS,
            st.lists(st.tuples(st.sampled_from("abc"), COUNTS), unique_by=lambda each: each[0]),
            st.integers(0, 3),
        ),
        max_size=8,
    ),
)
@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_is_posted_repeated_and_undone_the_balances_are_those_of_the_entries(
    database: Database, answers: list[tuple[str, int, list[tuple[str, int]], int]]
) -> None:
    store = UsageStore(database)
    wanted: dict[Account, int] = dict(store.balances())
    for key, layers, nodes, times in answers:
        uses = tuple(NodeUse(node, earned, 0, 0) for node, earned in nodes)
        answer = record(key, token_layers=layers, nodes=uses)
        for _ in range(times):
            store.append(answer)
        if times == 1:
            for posting in answer.entry().postings:
                wanted[posting.account] = wanted.get(posting.account, 0) + posting.amount
        elif times > 1:
            for _ in range(times):
                store.reverse(answer.entry_id)
    found = store.balances()
    assert sum(found.values()) == 0
    assert {name: amount for name, amount in found.items() if amount} == {
        name: amount for name, amount in wanted.items() if amount
    }


def test_several_write_at_once(place: str, database: Database) -> None:
    UsageStore(database)

    def write() -> None:
        own = open_database(place)
        try:
            store = UsageStore(own)
            for _ in range(10):
                store.append(record("k"))
        finally:
            own.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert UsageStore(database).sums(Grouping.KEY)[0].requests == 40


@pytest.mark.parametrize(
    ("place", "problem"),
    [("mysql://x/y", "no database that works here"), ("sqlite://x:y:z/", "not a URL|can't open")],
)
def test_another_place_is_refused_by_its_field(place: str, problem: str) -> None:
    with pytest.raises(InvalidArgumentError, match=problem) as caught:
        open_database(place)
    assert caught.value.details["field"] == "store"


@pytest.mark.postgres
def test_a_statement_that_takes_too_long_is_ended_and_named(postgres_server: str) -> None:
    place = f"{postgres_server}/postgres"
    opened = open_database(place)
    with opened.reading() as connection:
        assert connection.exec_driver_sql("SHOW statement_timeout").scalar() == "10s"
    opened.close()
    hurried = open_database(f"{place}?options=-c%20statement_timeout%3D50ms")
    with (
        pytest.raises(NodeNotReadyError, match=r"127\.0\.0\.1.*statement timeout"),
        hurried.reading() as connection,
    ):
        connection.exec_driver_sql("SELECT pg_sleep(30)")
    hurried.close()


def test_a_server_that_lets_nobody_in_is_given_up_and_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setattr(database_module, "CONNECT_SECONDS", 2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"postgresql://somebody:secret@127.0.0.1:{silent.getsockname()[1]}/kept"
        began = time.monotonic()
        with pytest.raises(InvalidArgumentError, match=r"127\.0\.0\.1.*timeout") as caught:
            open_database(place)
    assert time.monotonic() - began < 10
    assert caught.value.details["field"] == "store"
    assert "secret" not in caught.value.message


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database, but a text that is long enough to be looked at" * 20)
    with pytest.raises(InvalidArgumentError, match=r"notes\.txt"):
        open_database(str(path))


def test_a_database_that_breaks_is_a_trouble_that_may_pass(tmp_path: Path) -> None:
    opened = open_database(str(tmp_path / "a.db"))
    store = KeyStore(opened)
    with opened.writing() as connection:
        connection.exec_driver_sql("DROP TABLE api_keys")
    with pytest.raises(NodeNotReadyError, match=r"a\.db"):
        store.all()
    opened.close()
