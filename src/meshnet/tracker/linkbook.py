"""What a machine knows of its links, and which one it measures next. Pure; time is handed in.

Round trips are cheap and measured every minute. The rate takes bytes, at most
:data:`MOST_BYTES` each time, so it is measured every half hour, and again when the round trip
has changed so much that the way must be another one. A machine has at most
:data:`~meshnet.tracker.messages.MAX_LINKS` links, one measured at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshnet.domain.ids import Address, NodeId
from meshnet.tracker.measurements import LinkReport
from meshnet.tracker.messages import MAX_LINKS

ROUND_TRIP_SECONDS: Final = 60.0
RATE_SECONDS: Final = 1800.0
MOST_BYTES: Final = 2 * ((1 << 14) + (1 << 17)) + (1 << 20)
"""That one measurement of a rate sends (``session.links.PADDING``)."""
FORGOTTEN_SECONDS: Final = 3600.0
"""A link that wasn't measured for so long isn't told of any more."""
TELL_SECONDS: Final = 60.0
"""All links are told again so often, also where nothing has changed."""
SMOOTHING: Final = 0.3
CHANGED: Final = 1.25
"""What differs by this factor is told at once."""
ANOTHER_WAY: Final = 2.0


@dataclass(frozen=True, slots=True)
class Target:
    """Where a link leads. ``node_id`` is None for the tracker."""

    node_id: NodeId | None
    address: Address


@dataclass(frozen=True, slots=True)
class Question:
    """What to measure now."""

    target: Target
    rate: bool
    """Whether its rate too."""


@dataclass(frozen=True, slots=True)
class _Link:
    target: Target
    wanted: bool = True
    round_trip: float = 0.0
    rate: float = 0.0
    measured_at: float | None = None
    due_at: float = 0.0
    rate_due_at: float = 0.0

    def report(self) -> LinkReport:
        return LinkReport(
            node_id=self.target.node_id,
            round_trip_seconds=self.round_trip,
            bytes_per_second=int(self.rate),
        )


class LinkBook:
    """One machine's links."""

    def __init__(self, tracker: Address) -> None:
        self._links: dict[NodeId | None, _Link] = {None: _Link(Target(None, tracker))}
        self._told: dict[NodeId | None, LinkReport] = {}
        self._tell_at = 0.0

    def want(self, targets: Sequence[Target], now: float) -> None:
        """Measure these from now on, and the tracker; what is known of others is kept a while."""
        wanted = {target.node_id: target for target in targets}
        for node_id, link in list(self._links.items()):
            if node_id is None:
                continue
            target = wanted.pop(node_id, None)
            if target is not None and target != link.target:
                # Another way to the same machine, such as the relay.
                self._links[node_id] = _Link(target)
            else:
                self._links[node_id] = replace(link, wanted=target is not None)
        self._links |= {node_id: _Link(target) for node_id, target in wanted.items()}
        for node_id, link in list(self._links.items()):
            old = link.measured_at is None or now - link.measured_at > FORGOTTEN_SECONDS
            if not link.wanted and old:
                del self._links[node_id]
        while len(self._links) > MAX_LINKS:
            spare = min(self._links.values(), key=lambda it: (it.wanted, it.measured_at or 0.0))
            del self._links[spare.target.node_id]

    def due(self, now: float) -> Question | None:
        """What to measure next; None: nothing yet."""
        wanted = [link for link in self._links.values() if link.wanted and link.due_at <= now]
        if not wanted:
            return None
        link = min(wanted, key=lambda each: each.due_at)
        return Question(link.target, link.rate_due_at <= now)

    def measured(
        self, question: Question, round_trip: float, rate: float | None, now: float
    ) -> None:
        """What came of a question; ``rate``: bytes a second, None where it wasn't asked for."""
        link = self._of(question)
        if link is None:
            return
        before, rate_due_at = link.round_trip, link.rate_due_at
        if before and not before / ANOTHER_WAY <= round_trip <= before * ANOTHER_WAY:
            before, rate_due_at = 0.0, now if rate is None else rate_due_at
        self._links[link.target.node_id] = replace(
            link,
            round_trip=before + SMOOTHING * (round_trip - before) if before else round_trip,
            rate=link.rate if rate is None else rate,
            measured_at=now,
            due_at=now + (ROUND_TRIP_SECONDS if rate_due_at > now or rate is not None else 0.0),
            rate_due_at=rate_due_at if rate is None else now + RATE_SECONDS,
        )

    def failed(self, question: Question, now: float) -> None:
        """Nobody answered: it is tried again like any other, and not told of meanwhile."""
        link = self._of(question)
        if link is not None:
            again = _Link(link.target, link.wanted, due_at=now + ROUND_TRIP_SECONDS)
            self._links[link.target.node_id] = again

    def news(self, now: float) -> tuple[LinkReport, ...] | None:
        """What to tell the tracker of all links; None: that nothing has changed."""
        reports = {
            node_id: link.report()
            for node_id, link in self._links.items()
            if link.measured_at is not None and now - link.measured_at <= FORGOTTEN_SECONDS
        }
        same = reports.keys() == self._told.keys() and all(
            _alike(report, self._told[node_id]) for node_id, report in reports.items()
        )
        if same and now < self._tell_at:
            return None
        self._told, self._tell_at = reports, now + TELL_SECONDS
        return tuple(reports.values())

    def untold(self) -> None:
        """The tracker didn't hear it."""
        self._tell_at = 0.0

    def _of(self, question: Question) -> _Link | None:
        link = self._links.get(question.target.node_id)
        return link if link is not None and link.target == question.target else None


def _alike(one: LinkReport, other: LinkReport) -> bool:
    pairs = (
        (one.round_trip_seconds, other.round_trip_seconds),
        (one.bytes_per_second, other.bytes_per_second),
    )
    return all(a <= b * CHANGED and b <= a * CHANGED for a, b in pairs)
