"""The part of ``meshnet usage`` that is about receipts."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from meshnet.cli.output import print_json, print_table
from meshnet.domain.receipts import Receipt, ReceiptState
from meshnet.tracker.receiptmessages import ReceiptMessage
from meshnet.tracker.receipts import NANO, earned
from meshnet.tracker.store.database import Database
from meshnet.tracker.store.receipts import ReceiptStore, ReceiptSum

LISTED: Final = 200
RECEIPT_COLUMNS: Final = ("signed", "one_sided", "disputed")
"""Tokens times layers of a node by what its receipts are worth."""
_COLUMNS: Final = (
    "began",
    "session",
    "from",
    "to",
    "layers",
    "tokens",
    "token_layers",
    "bytes_down",
    "bytes_up",
    "engine_ms",
    "wall_ms",
    "state",
    "differences",
)


def receipt_fields(held: ReceiptSum | None) -> dict[str, object]:
    """A node's columns in the table of usage."""
    shown = held or ReceiptSum()
    return {"signed": shown.signed, "one_sided": shown.one_sided, "disputed": shown.disputed}


def show_receipts(database: Database, since_unix: float, *, json: bool) -> None:
    """Print the newest receipts."""
    found = ReceiptStore(database).newest(since_unix, list(ReceiptState), LISTED)
    if json:
        told = [
            ReceiptMessage.of(receipt).model_dump(exclude_none=True)
            | {
                "state": receipt.state.value,
                "differences": list(receipt.differences),
                "token_layers": earned(receipt),
            }
            for receipt in found
        ]
        print_json({"since_unix": since_unix, "receipts": told})
        return
    titles = [column.replace("_", " ") for column in _COLUMNS]
    print_table("receipts", titles, [_cells(receipt) for receipt in found])


def _cells(receipt: Receipt) -> tuple[object, ...]:
    seam, work = receipt.seam, receipt.work
    began = datetime.fromtimestamp(work.began_unix_nanos / NANO, UTC)
    opener = seam.upstream
    return (
        f"{began:%Y-%m-%d %H:%M:%S}",
        str(seam.key),
        f"gateway {opener.node_id}" if opener.layers is None else opener.node_id,
        seam.downstream.node_id,
        str(seam.downstream.layers),
        work.tokens,
        earned(receipt),
        work.bytes_down,
        work.bytes_up,
        round(work.engine_nanos / 1e6, 1),
        round(work.wall_nanos / 1e6, 1),
        receipt.state.value,
        ", ".join(receipt.differences),
    )
