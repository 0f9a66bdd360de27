"""Who is served next when the nodes are full: a fair share for each key. Pure.

Each key is charged for the tokens it was served, divided by its weight; the next turn is that of
the key that was charged least, generations under way included at what they are expected to cost. A
key that has nothing to ask saves nothing up: when it comes back, it begins level with the key that
was charged least of those that stayed (as in start-time fair queueing, Goyal et al., SIGCOMM 1996).

How many generations the nodes take is learnt from their refusals: one is allowed more than ran when
a refusal came only after :meth:`FairQueue.probe`. Once nobody waits, that is forgotten: whoever
comes then asks the nodes, which others may have left meanwhile.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError

_FORGETS = 0.2
"""Weight of the newest generation in the mean of how long one takes."""


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """How many requests may wait, and for how long; raises :class:`InvalidArgumentError`."""

    requests: int = 64
    """Requests that wait at once; 0 refuses what can't begin."""
    requests_per_key: int = 64
    """Those of them that one key may have."""
    seconds: float = 60.0
    """How long one waits until it is refused after all."""

    def __post_init__(self) -> None:
        for name in ("requests", "requests_per_key"):
            if getattr(self, name) < 0:
                raise InvalidArgumentError(name, f"{getattr(self, name)} can't be negative")
        if not 0 < self.seconds < float("inf"):
            raise InvalidArgumentError("seconds", f"{self.seconds} must be positive and finite")


@dataclass(slots=True, eq=False)
class Party:
    """One request, whose generations count as one towards the bounds."""

    key_id: str
    weight: int = 1
    running: int = 0
    """Its generations that have their turn."""
    served: float = float("-inf")
    """When the last of its generations that the nodes let in ended, by the waiting room's clock."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One generation that wants its turn."""

    party: Party
    cost: int
    """Tokens that it is expected to take."""
    number: int = -1
    """Its place among all, by arrival."""
    granted: bool = False


@dataclass(slots=True)
class _Line:
    """One key's generations."""

    weight: int
    charged: float = 0.0
    """Tokens served and ended, divided by the weight."""
    expected: int = 0
    """Tokens that generations under way are expected to take."""
    running: int = 0
    waiting: list[Ticket] = field(default_factory=list)
    """By their numbers."""

    @property
    def active(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def share(self) -> float:
        return self.charged + self.expected / self.weight


class FairQueue:
    """The generations of one model."""

    def __init__(self, bounds: QueueBounds) -> None:
        self._bounds = bounds
        self._lines: dict[str, _Line] = {}
        self._numbers = count()
        self._running = 0
        self._room: int | None = None
        """Generations that the nodes are thought to take at once; None until one waits for room."""
        self._mean_seconds: float | None = None

    @property
    def running(self) -> int:
        """Generations that have their turn."""
        return self._running

    @property
    def waiting(self) -> int:
        """Generations that wait for it."""
        return sum(len(line.waiting) for line in self._lines.values())

    def join(self, ticket: Ticket) -> None:
        """Stand in line; raises ``ResourceExhaustedError`` if as many requests wait as may."""
        party = ticket.party
        if not (self._free() or party.running or self._bearable(party)):
            raise self.full("too many requests wait already")
        line = self._line(party)
        ticket.number = next(self._numbers)
        line.waiting.append(ticket)

    def grant(self) -> Ticket | None:
        """Whose turn it is now; None if nobody waits, or the nodes are full."""
        lines = [line for line in self._lines.values() if line.waiting]
        if not lines or not self._has_room():
            return None
        line = min(lines, key=lambda each: (each.share, each.waiting[0].number))
        ticket = line.waiting.pop(0)
        ticket.granted = True
        ticket.party.running += 1
        line.running += 1
        line.expected += ticket.cost
        self._running += 1
        return ticket

    def refused(self, ticket: Ticket) -> bool:
        """The nodes had no room for it. Whether it stands in line again, at its old place."""
        self._stop(ticket)
        self._room = self._running
        if not (ticket.party.running or self._bearable(ticket.party)):
            self._settle()
            return False
        insort(self._lines[ticket.party.key_id].waiting, ticket, key=lambda each: each.number)
        return True

    def leave(self, ticket: Ticket, tokens: int, seconds: float) -> None:
        """It is over after so many tokens and seconds of its turn, or wants its turn no more."""
        line = self._lines.get(ticket.party.key_id)
        if line is None:
            return
        if ticket.granted:
            self._stop(ticket)
            line.charged += tokens / line.weight
            if tokens:
                mean = seconds if self._mean_seconds is None else self._mean_seconds
                self._mean_seconds = mean + _FORGETS * (seconds - mean)
        elif ticket in line.waiting:
            line.waiting.remove(ticket)
        self._settle()

    def probe(self) -> None:
        """Let one more begin than run, also where the nodes were thought to be full with these."""
        if self._room is not None:
            self._room = max(self._room, self._running + 1)

    def full(self, problem: str) -> ResourceExhaustedError:
        """The refusal to tell a client, with the seconds after which it may come back."""
        wait = self.expected_wait_seconds()
        return ResourceExhaustedError(
            f"the nodes serve {self._running} generations, as many as they can, and {problem}",
            retry_after_seconds=f"{wait:.3f}",
        )

    def expected_wait_seconds(self) -> float:
        """How long one that came now would wait, by how long others took; 1 if none has ended."""
        if self._mean_seconds is None:
            return 1.0
        return (self.waiting + 1) * self._mean_seconds / max(self._running, 1)

    def _has_room(self) -> bool:
        return self._room is None or self._running < self._room

    def _free(self) -> bool:
        return self._has_room() and not any(line.waiting for line in self._lines.values())

    def _bearable(self, party: Party) -> bool:
        """Whether the party may wait, beside the others that do."""
        others = {id(each): each for each in self._parties() if each is not party}.values()
        of_key = sum(each.key_id == party.key_id for each in others)
        bounds = self._bounds
        return len(others) < bounds.requests and of_key < bounds.requests_per_key

    def _parties(self) -> Iterator[Party]:
        """Of every waiting generation whose request has nothing running."""
        for line in self._lines.values():
            for ticket in line.waiting:
                if not ticket.party.running:
                    yield ticket.party

    def _line(self, party: Party) -> _Line:
        line = self._lines.setdefault(party.key_id, _Line(party.weight))
        if not line.active:
            others = [each.charged for each in self._lines.values() if each.active]
            line.charged = max(line.charged, min(others, default=0.0))
            line.weight = party.weight
        return line

    def _stop(self, ticket: Ticket) -> None:
        line = self._lines[ticket.party.key_id]
        ticket.granted = False
        ticket.party.running -= 1
        line.running -= 1
        line.expected -= ticket.cost
        self._running -= 1

    def _settle(self) -> None:
        """Once nobody waits, how much room there was no longer matters; once nobody is here, who
        was charged what doesn't either."""
        if not self.waiting:
            self._room = None
        if not any(line.active for line in self._lines.values()):
            self._lines.clear()
