"""Receipts of seams in the database of usage, and the ledger's entries for the signed ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    MetaData,
    String,
    Table,
    Text,
    and_,
    case,
    delete,
    func,
    select,
)

from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError
from meshnet.domain.receipts import Receipt, ReceiptState
from meshnet.tracker.ledger import Entry
from meshnet.tracker.receiptmessages import ReceiptMessage
from meshnet.tracker.receipts import (
    KEPT_DAYS,
    MAX_RECEIPTS_KEPT,
    NANO,
    earned,
    payment_of,
    replaces,
)
from meshnet.tracker.store.database import Database, open_database
from meshnet.tracker.store.usage import UsageStore, post

PRUNE_EVERY: Final = 1000
"""Receipts after which old ones are looked for."""

_RECEIPTS = Table(
    "receipts",
    MetaData(),
    Column("session_id", String(64), primary_key=True),
    Column("route_epoch", BigInteger, primary_key=True),
    Column("downstream", String(16), primary_key=True),
    Column("upstream", String(16), nullable=False),
    Column("state", String(20), nullable=False),
    Column("began_unix", BigInteger, nullable=False, index=True),
    Column("tokens", BigInteger, nullable=False),
    Column("token_layers", BigInteger, nullable=False),
    Column("engine_nanos", BigInteger, nullable=False),
    Column("bytes_down", BigInteger, nullable=False),
    Column("bytes_up", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)
"""``body`` is the whole receipt as a ``ReceiptMessage``, with the signatures."""
_KEY: Final = ("session_id", "route_epoch", "downstream")


@dataclass(frozen=True, slots=True)
class ReceiptSum:
    """The receipts of one node as a receiver."""

    signed: int = 0
    """Tokens times layers that it earned with them."""
    one_sided: int = 0
    """Those that one side alone states."""
    disputed: int = 0
    """Those about which the sides don't agree, by its own count."""
    receipts: int = 0


class ReceiptStore:
    """The receipts of one database. Every method blocks, and raises what ``Database`` raises.

    Of several receipts for the same session, epoch and receiver the one that says the most is kept,
    whatever order they come in.
    """

    def __init__(self, database: Database) -> None:
        """Raises what ``Database.make`` raises."""
        self._database = database
        self._kept = 0
        # The ledger's tables are made with those of usage.
        UsageStore(database)
        database.make(_RECEIPTS)

    def keep(self, receipts: Sequence[Receipt], now: float) -> Counter[ReceiptState]:
        """Keep receipts, and pay for those that both signed: all or nothing.

        They must have been found good. ``now`` in Unix seconds. Gives how many were news, by what
        they are worth.
        """
        news: Counter[ReceiptState] = Counter()
        with self._database.writing() as connection:
            for receipt in receipts:
                if _keep(connection, receipt):
                    news[receipt.state] += 1
            self._kept += len(receipts)
            if self._kept >= PRUNE_EVERY:
                self._kept = 0
                _prune(connection, now, MAX_RECEIPTS_KEPT)
        return news

    def prune(self, now: float, at_most: int = MAX_RECEIPTS_KEPT) -> None:
        """Let go of receipts that are too old or too many; what they paid stays paid."""
        with self._database.writing() as connection:
            _prune(connection, now, at_most)

    def sums(self, since_unix: float = 0.0) -> Mapping[str, ReceiptSum]:
        """What each node has receipts for, of sessions that began since a time."""
        table = _RECEIPTS.c

        def layers_of(*states: ReceiptState) -> ColumnElement[int]:
            return func.sum(case((table.state.in_(states), table.token_layers), else_=0))

        query = (
            select(
                table.downstream,
                layers_of(ReceiptState.SIGNED),
                layers_of(ReceiptState.DOWNSTREAM_ONLY, ReceiptState.UPSTREAM_ONLY),
                layers_of(ReceiptState.DISPUTED),
                func.count(),
            )
            .where(table.began_unix >= since_unix)
            .group_by(table.downstream)
        )
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return {row[0]: ReceiptSum(*map(int, row[1:])) for row in rows}

    def newest(
        self, since_unix: float, states: Sequence[ReceiptState], at_most: int
    ) -> tuple[Receipt, ...]:
        """Receipts of these states, of sessions that began since a time, the newest first."""
        table = _RECEIPTS.c
        query = (
            select(table.body)
            .where(table.began_unix >= since_unix, table.state.in_(states))
            .order_by(table.began_unix.desc(), *(table[name] for name in _KEY))
            .limit(at_most)
        )
        with self._database.reading() as connection:
            bodies = connection.scalars(query).all()
        return tuple(ReceiptMessage.model_validate_json(body).value() for body in bodies)


class Receipts:
    """A :class:`ReceiptStore` at a place that is opened when the first receipts come.

    So a tracker whose accounts are away serves all the same.
    """

    def __init__(self, place: str) -> None:
        """``place``: a path, or a URL."""
        self._place = place
        self._store: ReceiptStore | None = None
        self._database: Database | None = None

    def keep(self, receipts: Sequence[Receipt], now: float) -> Counter[ReceiptState]:
        """See :class:`ReceiptStore`; raises ``NodeNotReadyError`` while there is no database."""
        try:
            self._database = self._database or open_database(self._place)
            self._store = self._store or ReceiptStore(self._database)
        except InvalidArgumentError as error:
            raise NodeNotReadyError(error.message) from error
        return self._store.keep(receipts, now)

    def close(self) -> None:
        """Close what was opened."""
        if self._database is not None:
            self._database.close()


def _keep(connection: Connection, receipt: Receipt) -> bool:
    values = _columns(receipt)
    same = and_(*(_RECEIPTS.c[name] == values[name] for name in _KEY))
    known = connection.scalar(select(_RECEIPTS.c.state).where(same))
    if not replaces(receipt, None if known is None else ReceiptState(known)):
        return False
    entry = payment_of(receipt)
    if entry is not None and not _pay(connection, entry):
        return False
    if known is not None:
        connection.execute(delete(_RECEIPTS).where(same))
    connection.execute(_RECEIPTS.insert().values(values))
    return True


def _pay(connection: Connection, entry: Entry) -> bool:
    """Post what a receipt pays; False if that was paid before, by one that was let go since."""
    try:
        return post(connection, entry)
    except InvalidArgumentError:
        # Paid for with other numbers: two good receipts for the same work are one too many.
        return False


def _columns(receipt: Receipt) -> dict[str, object]:
    seam, work = receipt.seam, receipt.work
    return {
        "session_id": seam.key.session_id,
        "route_epoch": seam.key.route_epoch,
        "downstream": seam.downstream.node_id,
        "upstream": seam.upstream.node_id,
        "state": receipt.state.value,
        "began_unix": work.began_unix_nanos // NANO,
        "tokens": work.tokens,
        "token_layers": earned(receipt),
        "engine_nanos": work.engine_nanos,
        "bytes_down": work.bytes_down,
        "bytes_up": work.bytes_up,
        "body": ReceiptMessage.of(receipt).model_dump_json(exclude_none=True),
    }


def _prune(connection: Connection, now: float, at_most: int) -> None:
    began = _RECEIPTS.c.began_unix
    connection.execute(delete(_RECEIPTS).where(began < now - KEPT_DAYS * 86_400))
    over = select(began).order_by(began.desc()).offset(at_most).limit(1)
    last_to_go = connection.scalar(over)
    if last_to_go is not None:
        # With all of the same second.
        connection.execute(delete(_RECEIPTS).where(began <= last_to_go))
