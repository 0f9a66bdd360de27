"""``meshnet usage``: what keys, models and nodes used, earned and owe."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime
from typing import Annotated

import typer

from meshnet.cli import access
from meshnet.cli import options as opt
from meshnet.cli.output import print_json, print_note, print_table
from meshnet.cli.receiptlist import RECEIPT_COLUMNS, receipt_fields, show_receipts
from meshnet.cli.settings import Settings
from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.ledger import HOUSE, Account, key_account, node_account
from meshnet.tracker.store.keys import KeyStore
from meshnet.tracker.store.receipts import ReceiptStore
from meshnet.tracker.store.usage import UsageStore
from meshnet.tracker.usage import Grouping, UsageSum

_AGO = re.compile(r"(\d{1,6})([mhd])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400}


def usage(
    by: Annotated[Grouping, typer.Option("--by", help="What to sum by.")] = Grouping.KEY,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="TIME",
            help="Such as 24h, 7d, 2026-01-31 or 2026-01-31T12:00, in UTC; default: ever.",
        ),
    ] = None,
    reverse: Annotated[
        str | None,
        typer.Option(
            "--reverse", metavar="ID", help="Undo what was charged for an answer, by its id."
        ),
    ] = None,
    receipts: Annotated[
        bool,
        typer.Option(
            "--receipts", help="List the receipts that nodes have for their work, the newest first."
        ),
    ] = False,
    keys: access.Keys = None,
    json: opt.Json = False,
) -> None:
    """Show what was used, and the credits: one is a token computed in one layer.

    Example: meshnet usage --by node --since 7d
    """
    began = 0.0 if since is None else since_unix(since, time.time())
    database = access.database_of(keys, Settings.from_environment())
    try:
        store = UsageStore(database)
        if reverse is not None:
            entry = store.reverse(reverse)
            print_note(f"{reverse} is undone by {entry.entry_id}")
        if receipts:
            show_receipts(database, began, json=json)
            return
        sums, balances = store.sums(by, began), store.balances()
        signed = ReceiptStore(database).sums(began) if by is Grouping.NODE else {}
        names = {key.key_id: key.name for key in KeyStore(database).all()}
    finally:
        database.close()
    known = {each.name for each in sums}
    sums += tuple(_unheard(node) for node in signed if node not in known)
    rows = [_fields(by, each, balances, names) for each in sums]
    if by is Grouping.NODE:
        rows = [row | receipt_fields(signed.get(str(row["node"]))) for row in rows]
    if json:
        house = balances.get(HOUSE, 0)
        print_json({"by": by.value, "since_unix": began, "usage": rows, "house": house})
        return
    columns = tuple(_columns(by))
    cells = [tuple(row[column] for column in columns) for row in rows]
    print_table(f"usage by {by.value}", [column.replace("_", " ") for column in columns], cells)


def since_unix(text: str, now: float) -> float:
    """Read a time, or how long ago it was; raises :class:`InvalidArgumentError`."""
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now - int(ago[1]) * _SECONDS[ago[2]]
    try:
        told = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidArgumentError(
            "since", f"{text!r} is no time, such as 24h, 7d or 2026-01-31"
        ) from error
    return (told if told.tzinfo is not None else told.replace(tzinfo=UTC)).timestamp()


def _unheard(node: str) -> UsageSum:
    """A node that has receipts, but none of the gateway's answers names it."""
    return UsageSum(node, 0, 0, {"engine_nanos": 0, "boundary_bytes": 0})


def _columns(by: Grouping) -> list[str]:
    if by is Grouping.NODE:
        work = ["token_layers", *RECEIPT_COLUMNS, "engine_seconds", "boundary_bytes"]
        return ["node", "answers", *work, "balance"]
    counts = ["prompt_tokens", "cached_tokens", "completion_tokens", "token_layers"]
    return [by.value, "answers", *counts, *(["balance"] if by is Grouping.KEY else [])]


def _fields(
    by: Grouping, use: UsageSum, balances: dict[Account, int], names: dict[str, str]
) -> dict[str, object]:
    """One line; ``balance`` is of all time."""
    fields: dict[str, object] = {
        by.value: names.get(use.name, use.name) if by is Grouping.KEY else use.name,
        "answers": use.requests,
        **{name: count for name, count in use.counts.items() if name != "engine_nanos"},
        "token_layers": use.token_layers,
    }
    if by is Grouping.NODE:
        fields["engine_seconds"] = round(use.counts["engine_nanos"] / 1e9, 3)
        fields["balance"] = balances.get(node_account(use.name), 0)
    elif by is Grouping.KEY:
        fields["balance"] = balances.get(key_account(use.name), 0)
    return fields
