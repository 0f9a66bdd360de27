"""The caches of a node in service: who gets one, which are kept after their session, for how long.

``seats.py`` decides; here its decisions reach the engine, sessions wait for their place, and kept
prefixes go when they aren't used or their stream has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from meshnet.domain.ids import SessionKey
from meshnet.engine.base import ShardEngine
from meshnet.node.prefixes import Prefix, Reuse
from meshnet.node.seats import Bounds, Seats
from meshnet.node.stepper import EngineStepper


class Place:
    """One session's place."""

    def __init__(self, places: Places, key: SessionKey, positions: int) -> None:
        self._places = places
        self._key = key
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._begun = False
        self.positions = positions
        """Reserved for the session."""
        self.reuse: Reuse | None = None
        """The fork that its first step may begin with."""
        self.keeps = places.keeps
        """Whether its cache may stay when it ends."""

    async def ready(self) -> None:
        """Wait until the first step may run: others' forks may still need the room."""
        await self._ready

    def begun(self) -> None:
        """The first step has run: a fork's source isn't needed any more."""
        if not self._begun:
            self._begun = True
            self._places.forked(self._key)

    def missed(self) -> None:
        """The fork's source turned out to be of no use: nobody is to begin with it again."""
        reuse, self.reuse = self.reuse, None
        self.begun()
        if reuse is not None:
            self._places.drop(reuse.source)

    def seat(self) -> None:
        """Let the first step run."""
        if not self._ready.done():
            self._ready.set_result(None)


@dataclass(frozen=True, slots=True)
class Keepsake:
    """What a session leaves with the cache that stays."""

    owner: object
    """The stream it came on."""
    handle: int
    """Its number there."""
    give_up: Callable[[], None]
    """Called when the cache goes, so that the nodes behind drop theirs."""
    prefix: Prefix | None
    """On a head, what the cache is good for."""


@dataclass(frozen=True, slots=True)
class _Kept:
    keepsake: Keepsake
    expiry: asyncio.TimerHandle


class Places:
    """Belongs to the event loop it is used on. ``owner`` is the stream that sessions came on."""

    def __init__(
        self, engine: ShardEngine, stepper: EngineStepper, bounds: Bounds, keep_seconds: float
    ) -> None:
        """``keep_seconds``: how long a prefix stays that nobody uses; 0 keeps none."""
        self._engine = engine
        self._stepper = stepper
        self._seats = Seats(bounds)
        self._keep_seconds = keep_seconds
        self._places: dict[SessionKey, Place] = {}
        self._kept: dict[SessionKey, _Kept] = {}

    @property
    def keeps(self) -> bool:
        """Whether prefixes are kept at all."""
        return self._keep_seconds > 0

    @property
    def reserved_positions(self) -> int:
        """Positions that sessions and kept prefixes have reserved."""
        return sum(self._seats.running.values()) + sum(self._seats.kept.values())

    @property
    def kept(self) -> int:
        """Prefixes kept now."""
        return len(self._kept)

    def keeping(self, key: SessionKey) -> bool:
        """Whether the session has ended and its cache is kept."""
        return key in self._kept

    def prefixes(self, owner: object) -> list[Prefix]:
        """What a head keeps of a stream's sessions."""
        mine = [each.prefix for each in self._keepsakes() if each.owner is owner]
        return [prefix for prefix in mine if prefix is not None]

    def admit(self, key: SessionKey, positions: int, reuse: Reuse | None, owner: object) -> Place:
        """A place for a session; raises ``ResourceExhaustedError`` if there is no room for it."""
        for old in [each for each in self._kept if each.session_id == key.session_id]:
            self.drop(old)
        source = None
        if reuse is not None:
            kept = self._kept.get(reuse.source)
            mine = kept is not None and kept.keepsake.owner is owner
            source = reuse.source if mine else None
        evicted = self._seats.admit(key, positions, source)
        place = self._places[key] = Place(self, key, positions)
        if source is not None and self._seats.will_fork(key):
            place.reuse = reuse
            self._renew(source)
        self._apply(evicted)
        return place

    def forked(self, key: SessionKey) -> None:
        """See :meth:`Place.begun`."""
        self._apply(self._seats.forked(key))

    def leave(self, key: SessionKey) -> None:
        """A session has ended, and its cache is gone."""
        self._places.pop(key, None)
        self._apply(self._seats.leave(key))

    def keep(self, key: SessionKey, keepsake: Keepsake) -> None:
        """A session has ended; its cache stays if there is room."""
        self._places.pop(key, None)
        self._kept[key] = _Kept(keepsake, self._timer(key))
        self._apply(self._seats.keep(key))

    def drop(self, key: SessionKey) -> None:
        """Give up a kept prefix, once no fork waits for it; nothing if it isn't one."""
        self._apply(self._seats.drop(key))

    def drop_of(self, owner: object) -> None:
        """Give up what is kept for a stream that has ended."""
        for key, kept in list(self._kept.items()):
            if kept.keepsake.owner is owner:
                self.drop(key)

    def drop_handle(self, owner: object, handle: int) -> None:
        """Give up what is kept of the session with this number on a stream, if anything is."""
        for key, kept in list(self._kept.items()):
            if kept.keepsake.owner is owner and kept.keepsake.handle == handle:
                self.drop(key)

    def close(self) -> None:
        """Forget all; the engine goes too."""
        for kept in self._kept.values():
            kept.expiry.cancel()
        self._kept.clear()

    def _renew(self, key: SessionKey) -> None:
        old = self._kept[key]
        old.expiry.cancel()
        self._kept[key] = _Kept(old.keepsake, self._timer(key))

    def _timer(self, key: SessionKey) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(self._keep_seconds, self.drop, key)

    def _keepsakes(self) -> list[Keepsake]:
        return [kept.keepsake for kept in self._kept.values()]

    def _apply(self, evicted: Iterable[SessionKey]) -> None:
        """Drop caches that were given up, then seat those who may have their room."""
        for key in evicted:
            kept = self._kept.pop(key, None)
            if kept is not None:
                kept.expiry.cancel()
                self._stepper.post(self._engine.release, key)
                kept.keepsake.give_up()
        for key, place in self._places.items():
            if self._seats.seated(key):
                place.seat()
