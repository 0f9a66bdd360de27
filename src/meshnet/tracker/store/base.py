"""What a store of events does, whichever database it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from meshnet.tracker.events import Event
from meshnet.tracker.state import ClusterState


class EventStore(ABC):
    """Keeps the events of one cluster, in order. One tracker at a time has it open.

    Not for several threads at once.
    """

    @abstractmethod
    def load(self) -> tuple[ClusterState, int]:
        """The state after all events, and how many there were."""

    @abstractmethod
    def belong_to(self, authority: str) -> None:
        """Take the store for the cluster of the authority with this fingerprint.

        Raises ``InvalidArgumentError`` naming the store if it is another's already, and
        ``NodeNotReadyError`` if the database can't be used.
        """

    @abstractmethod
    def append(self, events: Sequence[Event]) -> ClusterState:
        """Write events down, all or none, and give the state after them.

        What this returned from is kept, whatever happens to the process or the machine. Raises
        ``NodeNotReadyError`` if the database can't be used, and ``InvalidArgumentError`` naming the
        store if another tracker has written to it.
        """

    @abstractmethod
    def close(self) -> None:
        """Give back what the store holds; closing twice is no error."""
