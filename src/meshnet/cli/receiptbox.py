"""Keeps a member's receipts until the tracker has them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Iterable
from typing import Final, Protocol

from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError, NodeUnreachableError
from meshnet.domain.receipts import Receipt
from meshnet.tracker.receiptmessages import (
    MAX_RECEIPTS,
    ReceiptMessage,
    ReceiptsReply,
    ReceiptsReport,
)
from meshnet.transport.receipts import KEPT_RECEIPTS, ReceiptBook

LOGGER: Final = logging.getLogger(__name__)
REPORT_SECONDS: Final = 2.0
"""How often a gateway tells its receipts."""
SEND_SECONDS: Final = 2.0
"""How long reports may follow one another, where more is waiting than one holds: a node's next
heartbeat comes after them, and must come within its lease."""


class Tracker(Protocol):
    """Who takes receipts."""

    async def send_receipts(self, report: ReceiptsReport) -> ReceiptsReply:
        """Raises what :class:`~meshnet.tracker.client.TrackerClient` raises."""


class ReceiptOutbox:
    """Receipts on their way to the tracker, in memory: of too many the oldest go."""

    def __init__(self, tracker: Tracker, kept: int = KEPT_RECEIPTS) -> None:
        self._tracker = tracker
        self._waiting: deque[ReceiptMessage] = deque()
        self._kept = kept
        self.dropped = 0
        """Receipts that the tracker never got."""

    @property
    def waiting(self) -> int:
        """How many the tracker doesn't have yet, as far as is known."""
        return len(self._waiting)

    def add(self, receipts: Iterable[Receipt]) -> None:
        """Keep these until the tracker has them."""
        self._waiting.extend(map(ReceiptMessage.of, receipts))
        over = len(self._waiting) - self._kept
        if over > 0:
            for _ in range(over):
                self._waiting.popleft()
            if not self.dropped:
                LOGGER.warning("the tracker took no receipts for long; the oldest are dropped")
            self.dropped += over

    async def send(self) -> None:
        """Tell the tracker what is waiting; what it doesn't take is told again next time.

        Raises :class:`UnauthenticatedError` where it doesn't know this member any more.
        """
        until = time.monotonic() + SEND_SECONDS
        while self._waiting and time.monotonic() < until:
            batch = tuple(itertools.islice(self._waiting, MAX_RECEIPTS))
            try:
                reply = await self._tracker.send_receipts(ReceiptsReport(receipts=batch))
            except (NodeUnreachableError, NodeNotReadyError):
                return
            except InvalidArgumentError as error:
                LOGGER.warning("the tracker refuses %d receipts: %s", len(batch), error.message)
                self.dropped += len(batch)
            else:
                if not reply.kept:
                    return
            for told in batch:
                # Others may have been dropped meanwhile.
                if self._waiting and self._waiting[0] is told:
                    self._waiting.popleft()


async def receipts_told(book: ReceiptBook, outbox: ReceiptOutbox) -> None:
    """Tell a gateway's receipts, until cancelled."""
    while True:
        await asyncio.sleep(REPORT_SECONDS)
        outbox.add(book.take(KEPT_RECEIPTS))
        await outbox.send()
