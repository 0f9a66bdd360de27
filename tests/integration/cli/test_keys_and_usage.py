"""``meshnet keys`` and ``meshnet usage`` over a database in a file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from meshnet.cli.access import AccessOptions, gateway_access
from meshnet.cli.main import app
from meshnet.cli.settings import Settings
from meshnet.cli.usage import since_unix
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.receipts import Side
from meshnet.gateway import access as access_module
from meshnet.gateway.access import ANONYMOUS
from meshnet.tracker.apikeys import digest_of
from meshnet.tracker.receipts import entry_id_of
from meshnet.tracker.store.database import open_database
from meshnet.tracker.store.receipts import ReceiptStore
from meshnet.tracker.store.usage import UsageStore
from meshnet.tracker.usage import NodeUse, UsageRecord
from tests.support.receipts import HEAD, TAIL, WORK, one_sided, signed


def run(place: Path, *arguments: str) -> str:
    """Standard output of a command; its errors are raised."""
    done = CliRunner().invoke(app, [*arguments, "--keys", str(place)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def keys(place: Path) -> list[dict[str, object]]:
    return list(json.loads(run(place, "keys", "list", "--json")))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "new folder" / "accounts.db"


def test_a_key_is_made_limited_disabled_and_enabled(place: Path) -> None:
    secret = run(place, "keys", "create", "alice", "--tokens-per-day", "9").strip()
    run(place, "keys", "create", "boss", "--operator")
    run(place, "keys", "limit", "alice", "--requests-per-minute", "5", "--weight", "2")
    run(place, "keys", "disable", "alice")
    alice, boss = keys(place)
    assert (alice["name"], alice["disabled"], alice["operator"]) == ("alice", True, False)
    assert (boss["name"], boss["disabled"], boss["operator"]) == ("boss", False, True)
    assert alice["limits"] == {
        "requests_per_minute": 5,
        "tokens_per_day": 9,
        "concurrent_requests": None,
        "weight": 2,
    }
    run(place, "keys", "enable", str(alice["id"]))
    run(place, "keys", "limit", "alice", "--tokens-per-day", "0")
    alice, _ = keys(place)
    assert (alice["disabled"], alice["limits"]["tokens_per_day"]) == (False, None)  # type: ignore[index]
    listed = run(place, "keys", "list")
    assert "alice" in listed
    assert secret not in listed
    assert digest_of(secret) not in listed
    with pytest.raises(InvalidArgumentError, match="alice"):
        run(place, "keys", "create", "alice")


def test_usage_is_summed_and_undone(place: Path) -> None:
    run(place, "keys", "create", "alice")
    (alice,) = keys(place)
    database = open_database(str(place))
    node = NodeUse("node-1", 40, 2_500_000_000, 512)
    record = UsageRecord(
        "cmpl-1", "r", str(alice["id"]), "m", 100, 1.0, "done", 8, 2, 4, 40, (node,)
    )
    UsageStore(database).append(record)
    database.close()

    told = json.loads(run(place, "usage", "--json"))
    assert told["usage"] == [
        {
            "key": "alice",
            "answers": 1,
            "prompt_tokens": 8,
            "cached_tokens": 2,
            "completion_tokens": 4,
            "token_layers": 40,
            "balance": -40,
        }
    ]
    (by_node,) = json.loads(run(place, "usage", "--by", "node", "--json"))["usage"]
    assert by_node == {
        "node": "node-1",
        "answers": 1,
        "token_layers": 40,
        "signed": 0,
        "one_sided": 0,
        "disputed": 0,
        "engine_seconds": 2.5,
        "boundary_bytes": 512,
        "balance": 40,
    }
    table = run(place, "usage", "--by", "model").splitlines()
    assert [line.split("\t")[0] for line in table] == ["model", "m"]
    assert json.loads(run(place, "usage", "--since", "1d", "--json"))["usage"] == []
    undone = json.loads(run(place, "usage", "--reverse", "cmpl-1", "--json"))
    assert undone["usage"][0]["balance"] == 0


def test_receipts_are_listed_summed_and_undone(place: Path) -> None:
    database = open_database(str(place))
    disputed = signed(WORK, replace(WORK, decode_rows=8), session="gen-2")
    alone = one_sided(Side.UPSTREAM, signed(session="gen-3"))
    ReceiptStore(database).keep([signed(), disputed, alone], 1e9)
    database.close()
    pay = WORK.tokens * 22

    titles, *lines = [line.split("\t") for line in run(place, "usage", "--receipts").splitlines()]
    rows = [dict(zip(titles, line, strict=True)) for line in lines]
    assert [(row["session"], row["state"], row["differences"]) for row in rows] == [
        ("gen-1@0", "signed", ""),
        ("gen-2@0", "disputed", "decode_rows"),
        ("gen-3@0", "upstream_only", ""),
    ]
    assert {(row["from"], row["to"], row["layers"], row["token layers"]) for row in rows} == {
        (HEAD.node_id, TAIL.node_id, "[8, 30)", str(pay))
    }
    told = json.loads(run(place, "usage", "--receipts", "--json"))["receipts"]
    assert [it["state"] for it in told] == [row["state"] for row in rows]
    assert told[0]["said_upstream"]["signature"]
    recent = json.loads(run(place, "usage", "--receipts", "--since", "1d", "--json"))
    assert recent["receipts"] == []
    # No answer names the node, and it earned all the same.
    (by_node,) = json.loads(run(place, "usage", "--by", "node", "--json"))["usage"]
    sums = [by_node[column] for column in ("answers", "signed", "one_sided", "disputed", "balance")]
    assert (by_node["node"], sums) == (TAIL.node_id, [0, pay, pay, pay, pay])
    run(place, "usage", "--receipts", "--reverse", entry_id_of(signed()))
    (by_node,) = json.loads(run(place, "usage", "--by", "node", "--json"))["usage"]
    assert (by_node["signed"], by_node["balance"]) == (pay, 0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("90m", 1e9 - 5400),
        ("2h", 1e9 - 7200),
        ("7d", 1e9 - 604_800),
        ("1970-01-02", 86_400.0),
        ("1970-01-02T00:00+01:00", 82_800.0),
    ],
)
def test_times_are_read(text: str, wanted: float) -> None:
    assert since_unix(text, 1e9) == wanted


@pytest.mark.parametrize("text", ["soon", "7w", ""])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgumentError, match="since"):
        since_unix(text, 1e9)


def settings(folder: Path, api_key: str | None = None) -> Settings:
    return Settings(cache=folder / "cache", api_key=api_key, state=folder / "state")


async def let_in(options: AccessOptions, found: Settings, authorization: str) -> str | None:
    with gateway_access(options, found) as (_, access):
        caller = await access.caller(authorization)
    return None if caller is None else caller.name


async def test_a_key_is_needed_as_soon_as_there_is_one(tmp_path: Path) -> None:
    found = settings(tmp_path)
    local = AccessOptions("127.0.0.1")
    assert await let_in(local, found, "") == ANONYMOUS.name
    secret = run(found.accounts, "keys", "create", "alice").strip()
    assert await let_in(local, found, "") is None
    assert await let_in(local, found, f"Bearer {secret}") == "alice"
    everybody = AccessOptions("127.0.0.1", open_access=True)
    assert await let_in(everybody, found, "") == ANONYMOUS.name
    # The one key goes on working beside the kept ones.
    assert await let_in(AccessOptions("::1", api_key="main"), found, "Bearer main") == "api-key"


async def test_a_key_that_is_made_while_the_gateway_runs_is_needed_from_then_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_module, "FRESH_SECONDS", 0.0)
    found = settings(tmp_path)
    for open_access, stranger in ((False, None), (True, ANONYMOUS)):
        with gateway_access(AccessOptions("::1", open_access=open_access), found) as (_, access):
            assert await access.caller("") is ANONYMOUS
            secret = run(found.accounts, "keys", "create", "alice").strip()
            assert await access.caller("") is stranger
            assert await access.caller("Bearer wrong") is None
            assert await access.caller(f"Bearer {secret}") is not None
            run(found.accounts, "keys", "disable", "alice")
            assert await access.caller(f"Bearer {secret}") is None
            assert await access.caller("") is stranger
        found.accounts.unlink()


async def test_another_machine_needs_a_key_of_any_kind(tmp_path: Path) -> None:
    reachable = AccessOptions("0.0.0.0")
    with pytest.raises(InvalidArgumentError, match="meshnet keys create"):
        await let_in(reachable, settings(tmp_path), "")
    run(settings(tmp_path).accounts, "keys", "create", "alice")
    assert await let_in(reachable, settings(tmp_path), "") is None


async def test_a_named_database_needs_keys_even_while_it_has_none(tmp_path: Path) -> None:
    named = AccessOptions("127.0.0.1", keys=str(tmp_path / "k.db"), open_access=True)
    assert await let_in(named, settings(tmp_path), "") is None


async def test_without_a_place_for_the_state_the_gateway_serves_all_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "state").write_text("a file where the folder would be")
    assert await let_in(AccessOptions("127.0.0.1"), settings(tmp_path), "") == ANONYMOUS.name
    assert "no usage is kept" in " ".join(capsys.readouterr().err.split())


def test_options_reach_the_gateway(tmp_path: Path) -> None:
    asked = AccessOptions("127.0.0.1", queue=9, aliases=("fast=m", "a=b=c"))
    with gateway_access(asked, settings(tmp_path)) as (config, _):
        assert config.aliases == (("fast", "m"), ("a", "b=c"))
        assert (config.queue.requests, config.queue.requests_per_key) == (9, 9)
    run(settings(tmp_path).accounts, "keys", "create", "alice")
    with gateway_access(asked, settings(tmp_path)) as (config, _):
        assert (config.queue.requests, config.queue.requests_per_key) == (9, 5)
    with (
        pytest.raises(InvalidArgumentError, match="NAME=MODEL"),
        gateway_access(AccessOptions("127.0.0.1", aliases=("x",)), settings(tmp_path)),
    ):
        pass
