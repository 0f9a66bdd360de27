"""One database for what is kept: SQLite in a file, or PostgreSQL, told apart by the URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import Connection, Engine, Table, create_engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.pool import ConnectionPoolEntry

from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError

BUSY_MILLISECONDS = 5000
"""How long SQLite waits for another process's write."""
CONNECT_SECONDS = 10
"""How long PostgreSQL may take to let a connection in."""
STATEMENT_SECONDS = 10
"""How long it may take over a statement, locks included; and then to be heard of at all."""
_READS = "meshnet_reads"


class Database:
    """Connections to one database. Every method blocks; callers on an event loop use threads.

    All errors of the database are raised as ``NodeNotReadyError``, for most pass.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self.name = name
        """What people call it: a path, or a URL without its password."""

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is committed at the end, or undone by an error."""
        with self._told(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A view of one moment."""
        with (
            self._told(),
            self._engine.connect().execution_options(**{_READS: True}) as connection,
        ):
            yield connection

    def make(self, *tables: Table) -> None:
        """Make those of the tables that aren't there; each comes after those it refers to."""
        with self.writing() as connection:
            for table in tables:
                table.create(connection, checkfirst=True)

    @property
    def file(self) -> Path | None:
        """The SQLite file; None for a server, and for a database in memory."""
        url = self._engine.url
        in_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
        return Path(str(url.database)) if in_file else None

    def connection(self) -> Connection:
        """A connection that is the caller's to close, where every statement is committed."""
        with self._told():
            connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            connection.detach()
        return connection

    def close(self) -> None:
        """Close the connections."""
        self._engine.dispose()

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as error:
            reason = str(getattr(error, "orig", None) or error).strip()
            raise NodeNotReadyError(f"the database {self.name} can't be used: {reason}") from error


def open_database(place: str) -> Database:
    """Open a database by the path of a SQLite file, which is made if it isn't there, or by a URL.

    Raises :class:`InvalidArgumentError` for the field ``store`` if it can't be had.
    """
    url = _url(place)
    name = url.render_as_string() if url.host else str(url.database)
    try:
        if url.get_backend_name() == "sqlite" and url.database:
            Path(url.database).parent.mkdir(parents=True, exist_ok=True)
        engine = create_engine(url, pool_pre_ping=bool(url.host), connect_args=_deadlines(url))
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _prepare_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
        with engine.connect():
            pass
    except ModuleNotFoundError as error:
        raise InvalidArgumentError(
            "store", f"{name} needs a driver that isn't installed: {error.name}"
        ) from error
    except (SQLAlchemyError, OSError) as error:
        reason = str(getattr(error, "orig", None) or error).strip()
        raise InvalidArgumentError("store", f"can't open {name}: {reason}") from error
    return Database(engine, name)


def _url(place: str) -> URL:
    if "://" not in place:
        return URL.create("sqlite", database=str(Path(place).expanduser().absolute()))
    try:
        url = make_url(place)
    except (ArgumentError, ValueError) as error:
        raise InvalidArgumentError("store", f"it is not a URL of a database: {error}") from error
    if url.drivername == "postgresql":
        return url.set(drivername="postgresql+psycopg")
    if url.get_backend_name() not in ("sqlite", "postgresql"):
        raise InvalidArgumentError(
            "store", f"{url.drivername} is no database that works here; use sqlite or postgresql"
        )
    return url


def _deadlines(url: URL) -> dict[str, str | int]:
    """Arguments that bound every wait for PostgreSQL; what the URL says itself goes before."""
    if url.get_backend_name() != "postgresql":
        return {}
    deadlines: dict[str, str | int] = {
        "connect_timeout": CONNECT_SECONDS,
        "options": f"-c statement_timeout={STATEMENT_SECONDS}s",
        # A server that is gone answers no statement, and cancels none either.
        "tcp_user_timeout": STATEMENT_SECONDS * 1000,
    }
    return {name: value for name, value in deadlines.items() if name not in url.query}


def _prepare_sqlite(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    # Transactions are begun below; the driver's own would begin as readers, and a reader that
    # turns into a writer can be refused without having waited.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (
        f"busy_timeout = {BUSY_MILLISECONDS}",
        "journal_mode = WAL",
        "synchronous = FULL",
        "foreign_keys = ON",
    ):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    reads = connection.get_execution_options().get(_READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")
