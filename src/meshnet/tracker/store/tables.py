"""The tables, and how older ones become today's. Each step runs once, in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import sqlalchemy as sa

from meshnet.domain.errors import InvalidArgumentError

METADATA = sa.MetaData()

EVENTS = sa.Table(
    "events",
    METADATA,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("body", sa.Text, nullable=False),
)
"""``body`` is what ``events.event_to_json`` wrote; the first event's sequence is 1."""

SNAPSHOTS = sa.Table(
    "event_snapshots",
    METADATA,
    sa.Column("sequence", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("format", sa.Integer, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
"""The state after the event ``sequence``, as JSON. One of another format isn't used."""

OWNER = sa.Table("event_owner", METADATA, sa.Column("authority", sa.String(100), primary_key=True))
"""The fingerprint of the one authority whose cluster the events are about."""

VERSION = sa.Table("event_schema", METADATA, sa.Column("version", sa.Integer, primary_key=True))


def _first(connection: sa.Connection) -> None:
    METADATA.create_all(connection, tables=[EVENTS, SNAPSHOTS])


def _second(connection: sa.Connection) -> None:
    METADATA.create_all(connection, tables=[OWNER])


MIGRATIONS: Final[tuple[Callable[[sa.Connection], None], ...]] = (_first, _second)
"""Step ``n`` leads from version ``n`` to ``n + 1``; new ones are added at the end."""


def migrate(connection: sa.Connection) -> None:
    """Bring the tables to today's version.

    Raises ``InvalidArgumentError`` for those of a newer Meshnet, which are left as they are.
    """
    METADATA.create_all(connection, tables=[VERSION])
    version = connection.scalar(sa.select(sa.func.max(VERSION.c.version))) or 0
    if version > len(MIGRATIONS):
        raise InvalidArgumentError(
            "store", f"its tables have version {version}, which a newer Meshnet made"
        )
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        step(connection)
        connection.execute(sa.insert(VERSION).values(version=number))
