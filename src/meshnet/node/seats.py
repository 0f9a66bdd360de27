"""Who may hold a cache on a node: sessions that run, and prefixes kept of those that have ended.

Pure bookkeeping of places and positions. A kept prefix only ever fills room that nobody needs: it
is given up, the longest unused first, as soon as a session wants its place.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.domain.ids import SessionKey

LACKING = "lacking"
"""The detail of an error that names what a node has none left of."""
ROOM = "room"
"""Of what it lacks: places for sessions, or positions for them, which come free as others end."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a node has room for."""

    sessions: int
    """Sessions that run at once."""
    places: int
    """Caches that the engine holds at once."""
    positions: int
    """Positions that all of them may reserve."""


@dataclass(slots=True)
class Seats:
    """The caches of one node, by session."""

    bounds: Bounds
    running: dict[SessionKey, int] = field(default_factory=dict)
    """Reserved positions."""
    kept: OrderedDict[SessionKey, int] = field(default_factory=OrderedDict)
    """Reserved positions; the longest unused first."""
    pins: dict[SessionKey, SessionKey] = field(default_factory=dict)
    """For each session that will fork a kept prefix: which."""
    doomed: set[SessionKey] = field(default_factory=set)
    """Kept prefixes that go as soon as no fork waits for them."""
    standing: list[SessionKey] = field(default_factory=list)
    """Sessions that run but have no place until a fork is done, in the order of their arrival."""

    def admit(
        self, key: SessionKey, positions: int, source: SessionKey | None = None
    ) -> list[SessionKey]:
        """Let a session in; returns the kept prefixes whose caches must be dropped for it.

        With a ``source`` among the kept prefixes, that one stays until :meth:`forked`, if there is
        room for both; see :meth:`will_fork`. Raises ``ResourceExhaustedError``, of which the
        detail ``lacking`` is ``room``, if sessions that run leave none.
        """
        bounds = self.bounds
        if len(self.running) >= bounds.sessions:
            problem = f"serves {len(self.running)} sessions, as many as it may"
            raise ResourceExhaustedError(problem, **{LACKING: ROOM})
        reserved = sum(self.running.values())
        if reserved + positions > bounds.positions:
            raise ResourceExhaustedError(
                f"has {reserved} of {bounds.positions} positions reserved, and this session may "
                f"need {positions}",
                **{LACKING: ROOM},
            )
        self.running[key] = positions
        if source is not None and source in self.kept and source not in self.doomed:
            self.kept.move_to_end(source)
            self.pins[key] = source
        evicted = self._evict()
        if self._crowded():
            # Sources of forks are left. An own fork yields; others' are done soon.
            self.pins.pop(key, None)
            evicted += self._evict()
            if self._crowded():
                self.standing.append(key)
        return evicted

    def will_fork(self, key: SessionKey) -> bool:
        """Whether the source that the session was admitted with stays for it."""
        return key in self.pins

    def seated(self, key: SessionKey) -> bool:
        """Whether the session's first step has a place."""
        return key in self.running and key not in self.standing

    def forked(self, key: SessionKey) -> list[SessionKey]:
        """The session needs its source no more; see :meth:`admit` for what is returned."""
        if self.pins.pop(key, None) is None:
            return []
        return self._settle()

    def leave(self, key: SessionKey) -> list[SessionKey]:
        """The session has ended; see :meth:`admit` for what is returned."""
        self.running.pop(key, None)
        self.pins.pop(key, None)
        if key in self.standing:
            self.standing.remove(key)
        return self._settle()

    def keep(self, key: SessionKey) -> list[SessionKey]:
        """The session has ended and its cache may stay; see :meth:`admit` for what is returned.

        That may be the session itself.
        """
        positions = self.running.pop(key, None)
        self.pins.pop(key, None)
        if positions is None:
            return []
        self.kept[key] = positions
        return self._settle()

    def drop(self, key: SessionKey) -> list[SessionKey]:
        """A kept prefix is of no more use; see :meth:`admit` for what is returned."""
        if key in self.kept:
            self.doomed.add(key)
        return self._settle()

    def _settle(self) -> list[SessionKey]:
        """Give room that came free to those who stand."""
        evicted = self._evict()
        while self.standing and self._taken() < self.bounds.places:
            self.standing.pop(0)
        return evicted

    def _evict(self) -> list[SessionKey]:
        """Give up prefixes that nobody waits for until all fit; those used longest ago first."""
        pinned = set(self.pins.values())
        evicted: list[SessionKey] = []
        for key in list(self.kept):
            if key not in pinned and (key in self.doomed or self._crowded()):
                del self.kept[key]
                self.doomed.discard(key)
                evicted.append(key)
        return evicted

    def _taken(self) -> int:
        return len(self.running) - len(self.standing) + len(self.kept)

    def _crowded(self) -> bool:
        reserved = sum(self.running.values()) + sum(self.kept.values())
        everybody = len(self.running) + len(self.kept)
        return everybody > self.bounds.places or reserved > self.bounds.positions
