"""Where a cluster's events are kept: SQLite in a file, or PostgreSQL by URL."""

from meshnet.tracker.store.base import EventStore
from meshnet.tracker.store.sql import open_store

__all__ = ["EventStore", "open_store"]
