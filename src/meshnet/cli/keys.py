"""``meshnet keys``: API keys, each with a name and limits of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated

import typer

from meshnet.cli import access
from meshnet.cli import options as opt
from meshnet.cli.output import print_json, print_line, print_note, print_table
from meshnet.cli.settings import Settings
from meshnet.tracker.apikeys import ApiKey, KeyLimits, issue
from meshnet.tracker.store.keys import KeyStore

app = typer.Typer(no_args_is_help=True, help="Make API keys, limit them, and disable them.")

Name = Annotated[str, typer.Argument(help="The key's name, or its id.")]
RequestsPerMinute = Annotated[
    int | None,
    typer.Option("--requests-per-minute", min=0, metavar="N", help="0: without this limit."),
]
TokensPerDay = Annotated[
    int | None,
    typer.Option(
        "--tokens-per-day", min=0, metavar="N", help="Of prompts and answers; 0: without."
    ),
]
Concurrent = Annotated[
    int | None,
    typer.Option("--concurrent", min=0, metavar="N", help="Requests at once; 0: without."),
]
Weight = Annotated[
    int | None,
    typer.Option("--weight", min=1, metavar="N", help="Its share where keys compete; 1 is usual."),
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(help="What to call the key.")],
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent: Concurrent = None,
    weight: Weight = None,
    operator: Annotated[
        bool,
        typer.Option("--operator", help="It also opens the dashboard, and ends others' requests."),
    ] = False,
    keys: access.Keys = None,
) -> None:
    """Make a key, and print its secret, this once.

    Example: meshnet keys create alice --requests-per-minute 60 --tokens-per-day 200000
    """
    limits = _limits(KeyLimits(), requests_per_minute, tokens_per_day, concurrent, weight)
    key, secret = issue(name, limits, time.time(), operator=operator)
    with _store(keys) as store:
        store.add(key)
    print_line(secret)
    print_note(f"{key.key_id} of {name}: keep the secret, it can't be shown again")


@app.command("list")
def list_keys(keys: access.Keys = None, json: opt.Json = False) -> None:
    """List the keys, without their secrets."""
    with _store(keys) as store:
        found = store.all()
    if json:
        print_json([_fields(key) for key in found])
        return
    columns = ("name", "id", "made", "state", "requests/min", "tokens/day", "at once", "weight")
    print_table("API keys", columns, [_row(key) for key in found])


@app.command()
def disable(name: Name, keys: access.Keys = None) -> None:
    """Disable a key: within a second or two, gateways refuse it."""
    _disable(name, keys, disabled=True)


@app.command()
def enable(name: Name, keys: access.Keys = None) -> None:
    """Enable a key that was disabled."""
    _disable(name, keys, disabled=False)


@app.command()
def limit(
    name: Name,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_day: TokensPerDay = None,
    concurrent: Concurrent = None,
    weight: Weight = None,
    keys: access.Keys = None,
) -> None:
    """Change a key's limits; those that aren't named stay as they are."""
    with _store(keys) as store:
        key = store.named(name)
        limits = _limits(key.limits, requests_per_minute, tokens_per_day, concurrent, weight)
        store.replace(replace(key, limits=limits))


def _disable(name: str, keys: str | None, *, disabled: bool) -> None:
    with _store(keys) as store:
        store.replace(replace(store.named(name), disabled=disabled))


@contextmanager
def _store(keys: str | None) -> Iterator[KeyStore]:
    database = access.database_of(keys, Settings.from_environment())
    try:
        yield KeyStore(database)
    finally:
        database.close()


def _limits(
    limits: KeyLimits,
    requests_per_minute: int | None,
    tokens_per_day: int | None,
    concurrent: int | None,
    weight: int | None,
) -> KeyLimits:
    def new(asked: int | None, present: int | None) -> int | None:
        return present if asked is None else asked or None

    return KeyLimits(
        new(requests_per_minute, limits.requests_per_minute),
        new(tokens_per_day, limits.tokens_per_day),
        new(concurrent, limits.concurrent_requests),
        weight or limits.weight,
    )


def _fields(key: ApiKey) -> dict[str, object]:
    return {
        "id": key.key_id,
        "name": key.name,
        "created_unix": key.created_unix,
        "disabled": key.disabled,
        "operator": key.operator,
        "limits": asdict(key.limits),
    }


def _row(key: ApiKey) -> tuple[object, ...]:
    limits = key.limits
    made = datetime.fromtimestamp(key.created_unix, UTC).strftime("%Y-%m-%d")
    state = "disabled" if key.disabled else "operator" if key.operator else "good"
    bounds = (limits.requests_per_minute, limits.tokens_per_day, limits.concurrent_requests)
    told = ("-" if bound is None else bound for bound in bounds)
    return (key.name, key.key_id, made, state, *told, limits.weight)
