"""To which other machines each machine is to measure its links. Pure.

A few: those that may come before or behind it in a chain of the model whose layers it holds, the
quickest first, and one more, by turns, so that in time every machine knows something of many.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker.measurements import Neighbour
from meshnet.tracker.observed import Observed, Ranked, Record

BESIDE: Final = 2
"""Machines on each side, head and tail being neighbours too."""
TURN_SECONDS: Final = 300.0
FRESH_SECONDS: Final = 10.0
"""How often each machine is told, and how old the list may be that turns go over."""


class Neighbours:
    """Names each machine's. Belongs to the tracker's thread."""

    def __init__(self) -> None:
        self._ready: list[NodeId] = []
        self._made_at = -FRESH_SECONDS
        self._told_at: dict[NodeId, float] = {}

    def of(
        self,
        node_id: NodeId,
        observed: Observed,
        now: float,
        reached_at: Callable[[NodeId, Address], Address | None],
    ) -> tuple[Neighbour, ...] | None:
        """At most five; None: those that it was told the last time, which was just before.

        ``reached_at`` gives where a node is reached that states an address: over the relay for
        those that can't be reached otherwise, None for those that can't at all.
        """
        if now - self._told_at.get(node_id, now - FRESH_SECONDS) < FRESH_SECONDS:
            return None
        if now - self._made_at >= FRESH_SECONDS:
            self._ready = sorted(node for node, record in observed.records() if record.serving)
            self._made_at = now
            told = self._told_at.items()
            self._told_at = {node: then for node, then in told if now - then < FRESH_SECONDS}
        self._told_at[node_id] = now
        record = observed.record(node_id)
        chosen = dict.fromkeys([*_beside(node_id, record, observed), *self._turn(node_id, now)])
        found = []
        for other in chosen:
            known = observed.record(other)
            if known is None or known.address is None or not observed.is_live(other, now):
                continue
            address = reached_at(other, known.address)
            if address is not None:
                found.append(Neighbour(node_id=other, address=address))
        return tuple(found)

    def _turn(self, node_id: NodeId, now: float) -> Iterator[NodeId]:
        """The one whose turn it is."""
        if self._ready:
            turn = int(now / TURN_SECONDS) + zlib.crc32(node_id.encode())
            other = self._ready[turn % len(self._ready)]
            if other != node_id:
                yield other


def _beside(node_id: NodeId, record: Record | None, observed: Observed) -> Iterator[NodeId]:
    if record is None or record.place is None:
        return
    (digest, recipe), layers = record.place
    ranges: Mapping[LayerRange, Ranked] = observed.ranked(digest).get(recipe, {})
    end = max((each.end for each in ranges), default=0)
    behind = 0 if layers.end == end else layers.end
    before = end if layers.start == 0 else layers.start
    sides = (
        [ranked for other, ranked in ranges.items() if other.start == behind],
        [ranked for other, ranked in ranges.items() if other.end == before],
    )
    for side in sides:
        quickest = sorted(entry for ranked in side for entry in ranked[: BESIDE + 1])
        beside = [node for _, node in quickest if node != node_id]
        yield from beside[:BESIDE]
