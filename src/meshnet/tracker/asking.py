"""What the gateway's process asks the tracker's: a chain for each generation, and whom to relay.

Two processes, so that the death of the tracker's ends nothing that is under way. Messages as in
:mod:`meshnet.tracker.messages`; :mod:`meshnet.tracker.desk` answers them.
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop
from meshnet.tracker.fields import AddressText, Count, DigestText, Message, NodeIdText, Problem
from meshnet.tracker.measurements import MAX_RUNS, RunReport

PATH_ROUTES: Final = "/routes"
PATH_RELAY: Final = "/relay"
MAX_TOLD: Final = 1000
"""Outcomes of one kind in one message."""
MAX_RELAYED: Final = 3000
"""Machines that can wait at the relay and be told of."""
MAX_HOPS: Final = 1000
MAX_BODY_BYTES: Final = 2 << 20
"""Of a question, which has less even if it tells as much as it may."""

Nodes = Annotated[tuple[NodeIdText, ...], Field(max_length=MAX_TOLD)]
Relayed = Annotated[tuple[NodeIdText, ...], Field(max_length=MAX_RELAYED)]


class HopMessage(Message):
    """One node of a chain, and its layers there."""

    node_id: NodeIdText
    address: AddressText
    start: Count
    end: Count

    def hop(self) -> Hop:
        """The same as a value; raises ``InvalidArgumentError`` for no layers."""
        layers = LayerRange(self.start, self.end)
        return Hop(NodeId(self.node_id), Address(self.address), layers)


class RouteRequest(Message):
    """A gateway wants a chain, and says what became of those that it had."""

    model: DigestText | None = None
    """None: it wants none now."""
    took: Nodes = ()
    """Nodes on which a generation began since it last said so; once for each."""
    worked: Nodes = ()
    """On which one came to its end."""
    erred: Nodes = ()
    """By which one failed."""
    runs: Annotated[tuple[RunReport, ...], Field(max_length=MAX_RUNS)] = ()
    """How long those took that came to an end."""


class RouteReply(Message):
    """The chain; none where none was wanted, or there is none."""

    hops: Annotated[tuple[HopMessage, ...], Field(max_length=MAX_HOPS)] = ()
    problem: Problem = ""
    """Why there is none."""


class RelayRequest(Message):
    """Who waits at the relay."""

    waiting: Relayed = ()
    carried: Relayed = ()
    """Nodes for which it has something under way."""


class RelayReply(Message):
    """Whom the relay is to take."""

    admitted: Relayed = ()
    members: Relayed = ()
    """Of those with something under way, the ones that are still members of the cluster."""
