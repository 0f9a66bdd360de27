"""Takes receipts in, beside the event loop: checking signatures and writing take their time."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Protocol

from meshnet.domain.errors import InputError, UnauthenticatedError
from meshnet.domain.ids import NodeId
from meshnet.domain.receipts import Receipt, ReceiptState
from meshnet.tracker.receiptmessages import ReceiptMessage
from meshnet.tracker.receipts import Roster, require_good

LOGGER = logging.getLogger(__name__)
WAIT_SECONDS: Final = 2.0
"""How long a report may wait to be settled."""
MAX_WAITING: Final = 32
"""Reports that may wait for their turn; the others come again later."""


class ReceiptKeeper(Protocol):
    """Where receipts are kept. Its method may block, and raise any ``NodeError``."""

    def keep(self, receipts: Sequence[Receipt], now: float) -> Counter[ReceiptState]:
        """Keep those that are news, and pay for the signed ones."""


class ReceiptDesk:
    """Checks and keeps what members report. Belongs to the tracker's event loop."""

    def __init__(self, store: ReceiptKeeper | None = None) -> None:
        """``store`` None: nobody keeps accounts here, and receipts are let go."""
        self._store = store
        self._waiting = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="receipts")

    async def take(
        self, reporter: NodeId, messages: Sequence[ReceiptMessage], roster: Roster, now: float
    ) -> bool:
        """Whether the receipts of one message are settled: kept, or refused for good.

        False if that isn't known in time, for example while the database is away; then they must
        come again, which does no harm. ``now`` in Unix seconds.
        """
        if not messages or self._store is None:
            return True
        if self._waiting >= MAX_WAITING:
            return False
        self._waiting += 1
        loop = asyncio.get_running_loop()
        work = loop.run_in_executor(
            self._thread, _settle, self._store, reporter, messages, roster, now
        )
        work.add_done_callback(self._done)
        done, _ = await asyncio.wait({work}, timeout=WAIT_SECONDS)
        return bool(done) and not work.cancelled() and work.exception() is None

    def close(self) -> None:
        """Begin nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _done(self, work: asyncio.Future[None]) -> None:
        self._waiting -= 1
        if not work.cancelled() and (error := work.exception()) is not None:
            LOGGER.warning("receipts can't be kept for now: %s", error)


def _settle(
    store: ReceiptKeeper,
    reporter: NodeId,
    messages: Sequence[ReceiptMessage],
    roster: Roster,
    now: float,
) -> None:
    good: list[Receipt] = []
    for message in messages:
        try:
            receipt = message.value()
            require_good(receipt, reporter, roster, now)
        except (InputError, UnauthenticatedError) as error:
            LOGGER.warning(
                "a receipt of session %s by %s is refused: %s",
                message.session_id,
                reporter,
                error.message,
            )
        else:
            good.append(receipt)
    if good:
        news = store.keep(good, now)
        for state in news.keys() - {ReceiptState.SIGNED}:
            LOGGER.info("%d receipts by %s are %s", news[state], reporter, state.value)
