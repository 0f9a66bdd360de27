"""How long telling receipts may take."""

from __future__ import annotations

import asyncio

import pytest

from meshnet.cli import receiptbox
from meshnet.cli.receiptbox import ReceiptOutbox
from meshnet.tracker.receiptmessages import MAX_RECEIPTS, ReceiptsReply, ReceiptsReport
from tests.support.receipts import signed


class Slow:
    """A tracker that keeps everything, and takes its time."""

    def __init__(self) -> None:
        self.got = 0

    async def send_receipts(self, report: ReceiptsReport) -> ReceiptsReply:
        await asyncio.sleep(0.02)
        self.got += len(report.receipts)
        return ReceiptsReply(kept=True)


async def test_a_slow_tracker_holds_up_who_tells_for_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiptbox, "SEND_SECONDS", 0.03)
    tracker, most = Slow(), 10 * MAX_RECEIPTS
    outbox = ReceiptOutbox(tracker)
    outbox.add([signed()] * most)
    await outbox.send()
    assert 0 < tracker.got <= 2 * MAX_RECEIPTS
    assert outbox.waiting == most - tracker.got
