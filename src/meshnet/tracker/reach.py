"""Which nodes are reached at the addresses that they state, and which over the relay. Pure.

Each address is tried when it is first stated and again from time to time. A node that doesn't
answer there is told to keep connections at the relay, and chains name the relay's address in place
of its own until it answers again.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass

from meshnet.domain.ids import Address, NodeId
from meshnet.tracker.messages import Way

CHECK_SECONDS = 30.0
"""Between two looks at an address, a fifth more or less by node."""
DOUBT_SECONDS = 3.0
"""After a look that failed at an address that had answered before."""
PATIENCE_SECONDS = 5.0
"""So long a node counts as waiting at the relay after its last connection there was taken: it makes
new ones at once, which takes a moment on a busy machine."""
_DOUBLINGS = 4
DOUBTS = 2
"""Failures in a row that it takes then: the node may just be busy, or have died."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node's address, and what is known of it."""

    address: Address
    due_at: float
    """When to look at it next, in seconds of any clock."""
    answers: bool | None = None
    """None: not known yet."""
    failures: int = 0
    """In a row."""


def looked(
    place: Place, *, answered: bool, now: float, apart: float = 0.5, relayed: bool = True
) -> Place:
    """What is known after another look. ``apart``, 0 to 1, keeps nodes from falling into step.

    One without another way, not ``relayed``, is looked at again sooner, at first.
    """
    later = now + CHECK_SECONDS * (0.8 + 0.4 * apart)
    if answered:
        return Place(place.address, later, answers=True)
    failures = place.failures + 1
    if place.answers and failures < DOUBTS:
        return Place(place.address, now + DOUBT_SECONDS, answers=True, failures=failures)
    if not relayed:
        later = min(later, now + DOUBT_SECONDS * 2.0 ** min(failures, _DOUBLINGS))
    return Place(place.address, later, answers=False, failures=failures)


class Reach:
    """The nodes' addresses. Without a relay, every one is taken for reachable, and none tried."""

    def __init__(
        self, relay: Address | None = None, waiting: Collection[NodeId] = (), now: float = 0.0
    ) -> None:
        """``relay``: where other machines reach it; ``waiting``: who waits there already, at the
        time ``now``, as a tracker before this one told them to: until their addresses answer they
        are to stay."""
        self._relay = relay
        self._places: dict[NodeId, Place] = {}
        self._waited = dict.fromkeys(waiting, now)
        """When each that counts as waiting at the relay was last seen to."""
        self._told_before = set(waiting)

    def stated(self, node_id: NodeId, address: Address | None, now: float) -> None:
        """A node says where its worker is. None: nowhere now, which says nothing of the address."""
        if address is None or self._relay is None:
            return
        place = self._places.get(node_id)
        if place is None or place.address != address:
            answers = False if node_id in self._told_before else None
            self._places[node_id] = Place(address, now, answers)
        self._told_before.discard(node_id)

    def forget(self, node_id: NodeId) -> None:
        """A node is no member any more."""
        self._places.pop(node_id, None)
        self._told_before.discard(node_id)

    def due(self, now: float) -> tuple[tuple[NodeId, Address], ...]:
        """The addresses to try now; each is told once, and again if nothing is said of it."""
        found = [(node, place) for node, place in self._places.items() if place.due_at <= now]
        for node_id, place in found:
            later = now + CHECK_SECONDS
            self._places[node_id] = Place(place.address, later, place.answers, place.failures)
        return tuple((node_id, place.address) for node_id, place in found)

    def looked(self, node_id: NodeId, address: Address, *, answered: bool, now: float) -> None:
        """Whether a node answered at an address."""
        place = self._places.get(node_id)
        if place is not None and place.address == address:
            apart = zlib.crc32(node_id.encode()) / 2**32
            self._places[node_id] = looked(
                place,
                answered=answered,
                now=now,
                apart=apart,
                relayed=node_id in self._waited,
            )

    def wait_at_relay(self, nodes: Collection[NodeId], now: float) -> None:
        """These nodes, and no others, have connections waiting at the relay now."""
        seen = self._waited | dict.fromkeys(nodes, now)
        self._waited = {node: at for node, at in seen.items() if now - at < PATIENCE_SECONDS}

    @property
    def relayed(self) -> set[NodeId]:
        """The nodes that are to keep connections at the relay."""
        told = (node for node, it in self._places.items() if it.answers is False)
        return self._told_before.union(told)

    def relay_of(self, node_id: NodeId) -> Address | None:
        """Where a node is to keep connections; None: nowhere."""
        place = self._places.get(node_id)
        return self._relay if place is not None and place.answers is False else None

    def way(self, node_id: NodeId) -> Way:
        """How others get to a node."""
        if self._relay is None:
            return Way.DIRECT
        place = self._places.get(node_id)
        if place is None or place.answers is None:
            return Way.UNKNOWN
        if place.answers:
            return Way.DIRECT
        return Way.RELAYED if node_id in self._waited else Way.NONE

    def address(self, node_id: NodeId, stated: Address) -> Address:
        """Where others connect to get to a node that states an address."""
        relay = self.relay_of(node_id)
        return stated if relay is None else relay

    def way_to(self, node_id: NodeId, stated: Address) -> Address | None:
        """Like :meth:`address`; None for a node that can't be reached, or was never tried."""
        way = self.way(node_id)
        return self.address(node_id, stated) if way in (Way.DIRECT, Way.RELAYED) else None

    @property
    def out_of_reach(self) -> frozenset[NodeId]:
        """The nodes with an address that no chain can use now."""
        usable = (Way.DIRECT, Way.RELAYED)
        return frozenset(node for node in self._places if self.way(node) not in usable)
