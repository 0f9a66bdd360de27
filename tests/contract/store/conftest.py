"""The databases that the contract holds for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """One server for all tests, which isn't a process below them."""
    folder = postgres.programs()
    if folder is None:
        pytest.skip("PostgreSQL isn't installed (Debian: apt-get install postgresql)")
    with postgres.server(folder) as url:
        yield url


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where an empty store may be made: a path, or a URL."""
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    url = str(request.getfixturevalue("postgres_server"))
    name = f"store{next(_NUMBERS)}"
    with psycopg.connect(f"{url}/postgres", autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{url}/{name}"
