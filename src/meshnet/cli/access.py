"""Who may use the HTTP API that a command offers: keys, the queue, other names of a model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from meshnet.cli.output import print_note
from meshnet.cli.settings import Settings
from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.access import Access
from meshnet.gateway.config import GatewayConfig
from meshnet.gateway.fair import QueueBounds
from meshnet.tracker.apikeys import fixed_key
from meshnet.tracker.store.database import Database, open_database
from meshnet.tracker.store.keys import KeyStore
from meshnet.tracker.store.usage import UsageStore

ApiKeyOption = Annotated[
    str | None,
    typer.Option(
        "--api-key",
        help="Key that clients must send, which opens everything; or set MESHNET_API_KEY. For a "
        "key each with limits, see `meshnet keys`.",
    ),
]
OpenAccess = Annotated[
    bool, typer.Option("--open-access", help="Let everybody use the API, also from elsewhere.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Also answer to this name in the Host header, such as a reverse proxy's; may be "
        "repeated.",
    ),
]
Keys = Annotated[
    str | None,
    typer.Option(
        "--keys",
        metavar="FILE|URL",
        help="Database of keys and usage, a SQLite file or a postgresql:// URL; default: in the "
        "state folder.",
    ),
]
Queue = Annotated[
    int,
    typer.Option(
        "--queue", min=0, help="Requests that may wait for room on the nodes; 0 refuses them."
    ),
]
Alias = Annotated[
    list[str] | None,
    typer.Option("--alias", metavar="NAME=MODEL", help="Another name of a model; may be repeated."),
]
DEFAULT_QUEUE = 64


@dataclass(frozen=True, slots=True)
class AccessOptions:
    """What a command was told about who may use its API."""

    host: str
    api_key: str | None = None
    open_access: bool = False
    allowed_hosts: Sequence[str] = ()
    keys: str | None = None
    queue: int = DEFAULT_QUEUE
    aliases: Sequence[str] = ()


@contextmanager
def gateway_access(
    options: AccessOptions, settings: Settings
) -> Iterator[tuple[GatewayConfig, Access]]:
    """The gateway's configuration, and its keys and journal, which are closed at the end.

    Once keys were made, also later, one of them is needed; ``open_access`` lifts that for keys in
    the state folder. Raises :class:`InvalidArgumentError` for what can't be as asked.
    """
    api_key = options.api_key or settings.api_key
    database = _database(options, settings)
    try:
        store = None if database is None else KeyStore(database)
        journal = None if database is None else UsageStore(database)
        named = options.keys is not None
        kept = named or (store is not None and bool(store.all()) and not options.open_access)
        config = GatewayConfig(
            host=options.host,
            api_key=api_key,
            kept_keys=kept,
            open_access=options.open_access,
            allowed_hosts=tuple(options.allowed_hosts),
            # With keys of several, none of them may fill the whole queue.
            queue=QueueBounds(options.queue, (options.queue + 1) // 2 if kept else options.queue),
            aliases=tuple(_alias(text) for text in options.aliases),
        )
        fixed = [] if api_key is None else [fixed_key(api_key, "api-key")]
        access = Access(
            fixed,
            store,
            journal,
            required=kept or api_key is not None,
            open_access=options.open_access,
        )
        yield config, access
    finally:
        if database is not None:
            database.close()


def database_of(keys: str | None, settings: Settings) -> Database:
    """The database that ``--keys`` names, else the one in the state folder."""
    return open_database(keys if keys is not None else str(settings.accounts))


def _database(options: AccessOptions, settings: Settings) -> Database | None:
    try:
        return database_of(options.keys, settings)
    except InvalidArgumentError as error:
        if options.keys is not None:
            raise
        print_note(f"there are no keys but --api-key, and no usage is kept: {error.message}")
        return None


def _alias(text: str) -> tuple[str, str]:
    alias, equals, model = text.partition("=")
    if not (alias and equals and model):
        raise InvalidArgumentError("alias", f"{text!r} is not of the form NAME=MODEL")
    return alias, model
