"""The store of events in a database: the same statements for SQLite and for PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import sqlalchemy as sa
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import IntegrityError

from meshnet.domain.errors import InputError, InvalidArgumentError
from meshnet.tracker.events import Event, event_from_json, event_to_json
from meshnet.tracker.state import ClusterState, apply_all
from meshnet.tracker.store.base import EventStore
from meshnet.tracker.store.database import Database, open_database
from meshnet.tracker.store.sole import hold_alone
from meshnet.tracker.store.tables import EVENTS, OWNER, SNAPSHOTS, migrate

SNAPSHOT_EVERY: Final = 500
"""Events after which the state is written down as a whole."""
SNAPSHOTS_KEPT: Final = 2
"""Older snapshots are dropped, and the events before the oldest one that is kept."""
STATE_FORMAT: Final = 1
"""Of a snapshot; grows when a field of the state changes its meaning."""

_STATE: Final = TypeAdapter(ClusterState)


def open_store(place: str, snapshot_every: int = SNAPSHOT_EVERY) -> EventStore:
    """Open a store by the path of a SQLite file, which is made if it isn't there, or by a URL.

    Raises what ``open_database`` raises, and ``InvalidArgumentError`` naming the store for one that
    another tracker has open, that a newer Meshnet wrote or that lacks events.
    """
    if snapshot_every < 1:
        raise InvalidArgumentError("snapshot_every", f"{snapshot_every} must be at least 1")
    database = open_database(place)
    try:
        return SqlStore(database, snapshot_every)
    except BaseException:
        database.close()
        raise


class SqlStore(EventStore):
    """Holds the state besides, for the snapshots."""

    def __init__(self, database: Database, snapshot_every: int) -> None:
        self._database = database
        self._every = snapshot_every
        with hold_alone(database) as held:
            with database.writing() as connection:
                migrate(connection)
            self._state, self._sequence, self._snapshot = self._read()
            self._held = held.pop_all()

    def load(self) -> tuple[ClusterState, int]:
        """The state after all events, and how many there were."""
        return self._state, self._sequence

    def belong_to(self, authority: str) -> None:
        """Take the store for an authority's cluster, unless it is another's."""
        with self._database.writing() as connection:
            owner = connection.scalar(sa.select(OWNER.c.authority))
            if owner is None:
                connection.execute(sa.insert(OWNER).values(authority=authority))
        if owner not in (None, authority):
            raise InvalidArgumentError(
                "store",
                f"{self._database.name} belongs to the cluster whose authority is {owner}, this "
                f"one's is {authority}; put that cluster's authority.pem and authority-key.pem "
                "back into the state folder, or give another store with --store",
            )

    def append(self, events: Sequence[Event]) -> ClusterState:
        """Write events down in one transaction, and give the state after them."""
        if not events:
            return self._state
        state, sequence = apply_all(self._state, events), self._sequence + len(events)
        numbered = enumerate(events, start=self._sequence + 1)
        rows = [{"sequence": number, "body": event_to_json(event)} for number, event in numbered]
        is_due = sequence - self._snapshot >= self._every
        with self._database.writing() as connection:
            try:
                connection.execute(sa.insert(EVENTS), rows)
            except IntegrityError as error:
                raise InvalidArgumentError(
                    "store", f"another tracker writes to {self._database.name}; only one may"
                ) from error
            if is_due:
                _write_snapshot(connection, state, sequence)
        self._state, self._sequence = state, sequence
        self._snapshot = sequence if is_due else self._snapshot
        return state

    def close(self) -> None:
        """Close the database's connections, and let another tracker have it."""
        self._database.close()
        self._held.close()

    def _read(self) -> tuple[ClusterState, int, int]:
        """The state, the last event's sequence, and that of the snapshot it was read from."""
        newest = (
            sa.select(SNAPSHOTS)
            .where(SNAPSHOTS.c.format == STATE_FORMAT)
            .order_by(SNAPSHOTS.c.sequence.desc())
            .limit(1)
        )
        with self._database.reading() as connection:
            row = connection.execute(newest).first()
            start = 0 if row is None else int(row.sequence)
            state = ClusterState() if row is None else _state_of(row.body)
            later = sa.select(EVENTS).where(EVENTS.c.sequence > start).order_by(EVENTS.c.sequence)
            rows = connection.execute(later).all()
        if [row.sequence for row in rows] != list(range(start + 1, start + 1 + len(rows))):
            raise InvalidArgumentError(
                "store", f"events after number {start} are missing; take it from a backup"
            )
        events = [event_from_json(row.body) for row in rows]
        return apply_all(state, events), start + len(rows), start


def _write_snapshot(connection: sa.Connection, state: ClusterState, sequence: int) -> None:
    body = _STATE.dump_json(state).decode()
    connection.execute(
        sa.insert(SNAPSHOTS).values(sequence=sequence, format=STATE_FORMAT, body=body)
    )
    newest = sa.select(SNAPSHOTS.c.sequence).order_by(SNAPSHOTS.c.sequence.desc())
    kept = list(connection.scalars(newest.limit(SNAPSHOTS_KEPT)))
    if len(kept) == SNAPSHOTS_KEPT:
        connection.execute(sa.delete(SNAPSHOTS).where(SNAPSHOTS.c.sequence < kept[-1]))
        connection.execute(sa.delete(EVENTS).where(EVENTS.c.sequence <= kept[-1]))


def _state_of(body: str) -> ClusterState:
    try:
        return _STATE.validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"]))
        raise InvalidArgumentError("store", f"a snapshot's {field}: {first['msg']}") from None
    except InputError as error:
        raise InvalidArgumentError("store", f"a snapshot: {error.message}") from None
