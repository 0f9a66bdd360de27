"""What answers used, and the ledger's entries, in a database that is only ever added to."""

from __future__ import annotations

import time
from collections.abc import Iterable

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    func,
    select,
)

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.ledger import Account, Entry, Posting, require_postable, reversal
from meshnet.tracker.store.database import Database
from meshnet.tracker.usage import Grouping, UsageRecord, UsageSum

_METADATA = MetaData()
_ENTRIES = Table(
    "ledger_entries",
    _METADATA,
    Column("entry_id", String(160), primary_key=True),
    Column("unix", BigInteger, nullable=False),
    Column("reverses", ForeignKey("ledger_entries.entry_id")),
)
_POSTINGS = Table(
    "ledger_postings",
    _METADATA,
    Column("entry_id", ForeignKey("ledger_entries.entry_id"), primary_key=True),
    Column("account", String(160), primary_key=True),
    Column("amount", BigInteger, nullable=False),
)
_ANSWERS = Table(
    "usage_answers",
    _METADATA,
    Column("entry_id", ForeignKey("ledger_entries.entry_id"), primary_key=True),
    Column("request_id", String(160), nullable=False, index=True),
    Column("key_id", String(64), nullable=False),
    Column("model", String(512), nullable=False),
    Column("began_unix", BigInteger, nullable=False, index=True),
    Column("seconds", Float, nullable=False),
    Column("ended", String(64), nullable=False),
    Column("prompt_tokens", BigInteger, nullable=False),
    Column("cached_tokens", BigInteger, nullable=False),
    Column("completion_tokens", BigInteger, nullable=False),
    Column("token_layers", BigInteger, nullable=False),
)
_NODES = Table(
    "usage_nodes",
    _METADATA,
    Column("entry_id", ForeignKey("usage_answers.entry_id"), primary_key=True),
    Column("place", Integer, primary_key=True),
    Column("node_id", String(160), nullable=False),
    Column("token_layers", BigInteger, nullable=False),
    Column("engine_nanos", BigInteger, nullable=False),
    Column("boundary_bytes", BigInteger, nullable=False),
)

SLOT_SECONDS = 900
"""What :meth:`UsageStore.spent` sums by."""

_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")
_WORK = ("engine_nanos", "boundary_bytes")


class UsageStore:
    """The usage and the ledger of one database.

    Every method blocks, and raises what ``Database`` raises.
    """

    def __init__(self, database: Database) -> None:
        """Raises what ``Database.make`` raises."""
        self._database = database
        database.make(_ENTRIES, _POSTINGS, _ANSWERS, _NODES)

    def append(self, record: UsageRecord) -> None:
        """Keep an answer's usage and its entry, both or neither; nothing if they are there.

        Raises :class:`InvalidArgumentError` if the id has other usage.
        """
        with self._database.writing() as connection:
            if not post(connection, record.entry()):
                return
            connection.execute(_ANSWERS.insert().values(_answer(record)))
            if record.nodes:
                rows = [
                    {
                        "entry_id": record.entry_id,
                        "place": place,
                        "node_id": node.node_id,
                        "token_layers": node.token_layers,
                        "engine_nanos": node.engine_nanos,
                        "boundary_bytes": node.boundary_bytes,
                    }
                    for place, node in enumerate(record.nodes)
                ]
                connection.execute(_NODES.insert(), rows)

    def reverse(self, entry_id: str) -> Entry:
        """Undo an answer's entry, once; asked again, nothing more happens.

        Raises :class:`InvalidArgumentError` if there is no such entry, or it is a reversal.
        """
        with self._database.writing() as connection:
            entry = _entry(connection, entry_id)
            if entry is None:
                raise InvalidArgumentError("entry_id", f"there is no entry {entry_id!r}")
            undone = reversal(entry, int(time.time()))
            post(connection, undone)
            return undone

    def balances(self) -> dict[Account, int]:
        """Each account's credits; their sum is 0."""
        total = func.sum(_POSTINGS.c.amount)
        with self._database.reading() as connection:
            rows = connection.execute(
                select(_POSTINGS.c.account, total).group_by(_POSTINGS.c.account)
            )
            return {Account(account): int(amount) for account, amount in rows}

    def sums(self, by: Grouping, since_unix: float = 0.0) -> tuple[UsageSum, ...]:
        """Use since a time, those who used most first. Undone answers count as well."""
        counted: tuple[str, ...] = _TOKENS
        if by is Grouping.NODE:
            name, table, counted = _NODES.c.node_id, _NODES, _WORK
            requests = func.count(_NODES.c.entry_id.distinct())
        else:
            name = _ANSWERS.c.key_id if by is Grouping.KEY else _ANSWERS.c.model
            table, requests = _ANSWERS, func.count()
        layers = func.sum(table.c.token_layers)
        totals = [func.sum(table.c[column]) for column in counted]
        query = select(name, requests, layers, *totals).group_by(name).order_by(layers.desc(), name)
        if by is Grouping.NODE:
            query = query.join(_ANSWERS, _ANSWERS.c.entry_id == _NODES.c.entry_id)
        with self._database.reading() as connection:
            rows = connection.execute(query.where(_ANSWERS.c.began_unix >= since_unix)).all()
        return tuple(
            UsageSum(
                row[0],
                int(row[1]),
                int(row[2]),
                dict(zip(counted, map(int, row[3:]), strict=True)),
            )
            for row in rows
        )

    def spent(self, since_unix: float) -> tuple[tuple[str, float, int], ...]:
        """Key, time and tokens of answers since a time, summed by quarters of an hour, whose
        beginnings the times are; the oldest first."""
        began = _ANSWERS.c.began_unix - _ANSWERS.c.began_unix % SLOT_SECONDS
        tokens = func.sum(_ANSWERS.c.prompt_tokens + _ANSWERS.c.completion_tokens)
        query = (
            select(_ANSWERS.c.key_id, began.label("slot"), tokens)
            .where(_ANSWERS.c.began_unix >= since_unix)
            .group_by(_ANSWERS.c.key_id, "slot")
            .order_by("slot", _ANSWERS.c.key_id)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple((row[0], float(row[1]), int(row[2])) for row in rows)


def _answer(record: UsageRecord) -> dict[str, object]:
    return {
        "entry_id": record.entry_id,
        "request_id": record.request_id,
        "key_id": record.key_id,
        "model": record.model,
        "began_unix": record.began_unix,
        "seconds": record.seconds,
        "ended": record.end,
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "token_layers": record.token_layers,
    }


def post(connection: Connection, entry: Entry) -> bool:
    """Post an entry; False if it was posted before."""
    known = _entry(connection, entry.entry_id)
    undone = None if entry.reverses is None else _entry(connection, entry.reverses)
    if not require_postable(known, undone, entry):
        return False
    connection.execute(
        _ENTRIES.insert().values(entry_id=entry.entry_id, unix=entry.unix, reverses=entry.reverses)
    )
    if entry.postings:
        connection.execute(_POSTINGS.insert(), list(_posting_rows(entry)))
    return True


def _posting_rows(entry: Entry) -> Iterable[dict[str, object]]:
    for posting in entry.postings:
        yield {
            "entry_id": entry.entry_id,
            "account": posting.account,
            "amount": posting.amount,
        }


def _entry(connection: Connection, entry_id: str) -> Entry | None:
    header = connection.execute(select(_ENTRIES).where(_ENTRIES.c.entry_id == entry_id)).first()
    if header is None:
        return None
    rows = connection.execute(
        select(_POSTINGS.c.account, _POSTINGS.c.amount).where(_POSTINGS.c.entry_id == entry_id)
    )
    postings = tuple(Posting(Account(account), amount) for account, amount in rows)
    return Entry(entry_id, header.unix, postings, header.reverses)
