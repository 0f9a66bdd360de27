"""API keys in a database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    MetaData,
    RowMapping,
    String,
    Table,
    select,
)
from sqlalchemy.exc import IntegrityError

from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.apikeys import ApiKey, KeyLimits
from meshnet.tracker.store.database import Database

_KEYS = Table(
    "api_keys",
    MetaData(),
    Column("key_id", String(64), primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False, unique=True),
    Column("created_unix", BigInteger, nullable=False),
    Column("disabled", Boolean, nullable=False),
    Column("operator", Boolean, nullable=False),
    Column("requests_per_minute", BigInteger),
    Column("tokens_per_day", BigInteger),
    Column("concurrent_requests", BigInteger),
    Column("weight", Integer, nullable=False),
)


class KeyStore:
    """The keys of one database. Every method blocks, and raises what ``Database`` raises."""

    def __init__(self, database: Database) -> None:
        """Raises what ``Database.make`` raises."""
        self._database = database
        database.make(_KEYS)

    def add(self, key: ApiKey) -> None:
        """Keep a new key; raises :class:`InvalidArgumentError` for a name or id in use."""
        with self._database.writing() as connection:
            try:
                connection.execute(_KEYS.insert().values(_columns(key)))
            except IntegrityError as error:
                raise InvalidArgumentError(
                    "name", f"there is a key named {key.name!r} already"
                ) from error

    def all(self) -> tuple[ApiKey, ...]:
        """Every key, the oldest first."""
        with self._database.reading() as connection:
            rows = connection.execute(select(_KEYS).order_by(_KEYS.c.created_unix, _KEYS.c.name))
            return tuple(_key(row) for row in rows.mappings())

    def named(self, name: str) -> ApiKey:
        """The key of that name or id; raises :class:`InvalidArgumentError` if there is none."""
        with self._database.reading() as connection:
            wanted = select(_KEYS).where((_KEYS.c.name == name) | (_KEYS.c.key_id == name))
            rows = connection.execute(wanted).mappings().all()
        if not rows:
            raise InvalidArgumentError(
                "name", f"there is no key {name!r}; `meshnet keys list` shows those there are"
            )
        # An id is nobody's name unless somebody chose it so; then the id counts.
        return _key(next((row for row in rows if row["key_id"] == name), rows[0]))

    def replace(self, key: ApiKey) -> None:
        """Keep what changed of a key; raises :class:`InvalidArgumentError` if it is gone."""
        with self._database.writing() as connection:
            statement = _KEYS.update().where(_KEYS.c.key_id == key.key_id).values(_columns(key))
            if connection.execute(statement).rowcount == 0:
                raise InvalidArgumentError("name", f"there is no key {key.key_id!r}")


def _columns(key: ApiKey) -> Mapping[str, Any]:
    return {
        "key_id": key.key_id,
        "name": key.name,
        "digest": key.digest,
        "created_unix": key.created_unix,
        "disabled": key.disabled,
        "operator": key.operator,
        "requests_per_minute": key.limits.requests_per_minute,
        "tokens_per_day": key.limits.tokens_per_day,
        "concurrent_requests": key.limits.concurrent_requests,
        "weight": key.limits.weight,
    }


def _key(row: RowMapping) -> ApiKey:
    return ApiKey(
        row["key_id"],
        row["name"],
        row["digest"],
        row["created_unix"],
        row["disabled"],
        row["operator"],
        KeyLimits(
            row["requests_per_minute"],
            row["tokens_per_day"],
            row["concurrent_requests"],
            row["weight"],
        ),
    )
