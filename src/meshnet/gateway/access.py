"""Who may come in by which key, and where it is written down what each has used."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Protocol

from meshnet.gateway.limits import DAY, Limiter
from meshnet.tracker.apikeys import ApiKey, digest_of, fixed_key
from meshnet.tracker.usage import UsageRecord

FRESH_SECONDS = 1.0
"""A key that is made, disabled or limited elsewhere is known here after this."""

ANONYMOUS = fixed_key("", "anonymous")
"""Whoever comes in without a key where none is needed."""

CALLER: ContextVar[ApiKey] = ContextVar("meshnet_caller", default=ANONYMOUS)
"""The key of the request that the current task serves."""


class KeySource(Protocol):
    """Where keys are kept. Its method may block, and raise any ``MeshnetError``."""

    def all(self) -> tuple[ApiKey, ...]:
        """Every key there is now."""


class Journal(Protocol):
    """Where usage is kept. Its methods may block, and raise any ``MeshnetError``."""

    def append(self, record: UsageRecord) -> None:
        """Keep what an answer used."""

    def spent(self, since_unix: float) -> Sequence[tuple[str, float, int]]:
        """Key, time and tokens of answers since a time, or of several of a quarter of an hour; the
        oldest first."""


class Access:
    """The keys of one gateway and their use. Belongs to its event loop."""

    def __init__(
        self,
        fixed: Sequence[ApiKey] = (),
        source: KeySource | None = None,
        journal: Journal | None = None,
        *,
        required: bool = False,
        open_access: bool = False,
    ) -> None:
        """``fixed`` keys are always good, whatever ``source`` says.

        A key is needed as soon as there is one, good or disabled; ``required`` asks for one before,
        ``open_access`` for none however many there are.
        """
        self._fixed = {key.digest: key for key in fixed}
        self._source = source
        self._journal = journal
        self._required = required
        self._open = open_access
        self._known = dict(self._fixed)
        self._read_at: float | None = None
        self._reading = asyncio.Lock()
        self._recalled = journal is None
        self.limiter = Limiter()

    @property
    def journals(self) -> bool:
        """Whether it is written down what was used."""
        return self._journal is not None

    async def caller(self, authorization: str) -> ApiKey | None:
        """Whose key an ``Authorization`` header holds; None if it may not come in.

        A key that is sent must be good, also where none is needed. Where there are none at all, any
        will do: some clients can't leave it out. Raises what the keys' source raises.
        """
        scheme, _, secret = authorization.partition(" ")
        # Looked up by digest: how long that takes tells nothing about any secret.
        digest = digest_of(secret.strip()) if scheme.lower() == "bearer" else ""
        key = self._fixed.get(digest)
        if key is not None or (self._required and not digest):
            # A fixed key opens also while the source can't be read.
            return key
        await self._refresh()
        if not (self._known or self._required):
            return ANONYMOUS
        if digest:
            key = self._known.get(digest)
            return None if key is None or key.disabled else key
        return ANONYMOUS if self._open and not self._required else None

    async def spend(self, record: UsageRecord) -> None:
        """Count what an answer used, and write it down; raises what the journal raises."""
        self.limiter.spend(record.key_id, record.tokens, time.time())
        if self._journal is not None:
            # An answer whose client has left is accounted for all the same.
            await asyncio.shield(asyncio.to_thread(self._journal.append, record))

    async def _refresh(self) -> None:
        if self._source is None or self._is_fresh():
            return
        async with self._reading:
            if self._is_fresh():
                return
            await self._recall()
            found = await asyncio.to_thread(self._source.all)
            self._known = {key.digest: key for key in found} | self._fixed
            self._read_at = time.monotonic()

    async def _recall(self) -> None:
        """Count what was used in the last day, before the gateway began."""
        if self._recalled or self._journal is None:
            return
        spent = await asyncio.to_thread(self._journal.spent, time.time() - DAY)
        for key_id, unix, tokens in spent:
            self.limiter.spend(key_id, tokens, unix)
        self._recalled = True

    def _is_fresh(self) -> bool:
        return self._read_at is not None and time.monotonic() - self._read_at < FRESH_SECONDS


def access_of(secret: str | None) -> Access:
    """The access of a gateway with one key that somebody chose, or with none."""
    if secret is None:
        return Access()
    return Access([fixed_key(secret, "api-key")], required=True)
