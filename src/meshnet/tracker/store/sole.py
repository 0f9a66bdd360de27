"""Keeps a store to one tracker: from opening it until it is closed, or the tracker is gone."""

from __future__ import annotations

import fcntl
import os
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError
from meshnet.tracker.store.database import Database

_TRY_SECONDS: Final = 5.0
"""PostgreSQL may take a moment to notice that a tracker was killed."""
_PAUSE_SECONDS: Final = 0.1
_LOCK: Final = 0x6D657368
"""Which of a database's advisory locks is Meshnet's."""
_FORGET_DEAD: Final = (
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
)
"""Else PostgreSQL would keep the lock of a machine that lost its power for two hours."""


def hold_alone(database: Database) -> ExitStack:
    """Hold the store in a database alone until what this gives is closed.

    A lock on a file beside a SQLite file, a session's advisory lock in PostgreSQL (by its schema).
    Raises ``InvalidArgumentError`` ("store") if another tracker holds it, or the lock can't be had.
    """
    if database.file is not None:
        return _hold_file(database, database.file.with_name(f"{database.file.name}.lock"))
    return _hold_server(database)


def _hold_file(database: Database, path: Path) -> ExitStack:
    with ExitStack() as stack:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, handle)
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _taken(database) from None
        except OSError as error:
            problem = f"{path} can't be locked: {error.strerror or error}"
            raise InvalidArgumentError("store", problem) from error
        return stack.pop_all()


def _hold_server(database: Database) -> ExitStack:
    lock = sa.text("SELECT pg_try_advisory_lock(:lock, hashtext(current_schema()))")
    until = time.monotonic() + _TRY_SECONDS
    with ExitStack() as stack:
        try:
            connection = database.connection()
            stack.callback(connection.close)
            if connection.dialect.name != "postgresql":
                return stack.pop_all()
            for setting in _FORGET_DEAD:
                connection.execute(sa.text(setting))
            while not connection.scalar(lock, {"lock": _LOCK}):
                if time.monotonic() >= until:
                    raise _taken(database)
                time.sleep(_PAUSE_SECONDS)
        except (SQLAlchemyError, NodeNotReadyError) as error:
            problem = f"{database.name} can't be locked: {error}"
            raise InvalidArgumentError("store", problem) from error
        return stack.pop_all()


def _taken(database: Database) -> InvalidArgumentError:
    return InvalidArgumentError(
        "store",
        f"another tracker uses {database.name}; end it, or give another store with --store",
    )
