"""Receipts of seams, as members report them to the tracker."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Final

from pydantic import Field, StringConstraints

from meshnet.domain.ids import Digest, NodeId, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import (
    MAX_DIGEST,
    MAX_SESSION_ID,
    MOST,
    Receipt,
    Seam,
    SeamEnd,
    SeamWork,
    Statement,
)
from meshnet.tracker.fields import Count, Message, NodeIdText

PATH_RECEIPTS: Final = "/receipts"
MAX_RECEIPTS: Final = 24
"""In one message, which with the longest of them isn't too long for the tracker; what is over waits
for the next."""

Number = Annotated[int, Field(ge=0, lt=MOST)]
_Hex = Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){1,256}$")]
_Sum = Annotated[str, StringConstraints(max_length=MAX_DIGEST)]


class EndMessage(Message):
    """One end of a seam."""

    node_id: NodeIdText
    start: Count = 0
    end: Count = 0
    """Its layers; up to 0 for a gateway, which has none."""

    @staticmethod
    def of(end: SeamEnd) -> EndMessage:
        """See :class:`SeamEnd`."""
        if end.layers is None:
            return EndMessage(node_id=end.node_id)
        return EndMessage(node_id=end.node_id, start=end.layers.start, end=end.layers.end)

    def value(self) -> SeamEnd:
        """See :class:`SeamEnd`; raises ``LayerRangeError`` for layers that can't be."""
        layers = LayerRange(self.start, self.end) if self.end or self.start else None
        return SeamEnd(NodeId(self.node_id), layers)


class StatementMessage(Message):
    """What one side says."""

    prefill_rows: Number
    decode_rows: Number
    first_position: Number
    end_position: Number
    bytes_down: Number
    bytes_up: Number
    engine_nanos: Number
    began_unix_nanos: Number
    ended_unix_nanos: Number
    public_key: _Hex
    signature: _Hex

    @staticmethod
    def of(statement: Statement) -> StatementMessage:
        """See :class:`Statement`."""
        return StatementMessage(
            **asdict(statement.work),
            public_key=statement.public_key,
            signature=statement.signature,
        )

    def value(self) -> Statement:
        """See :class:`Statement`; raises ``InvalidArgumentError`` for numbers that can't be."""
        return Statement(SeamWork.of(self), self.public_key, self.signature)


class ReceiptMessage(Message):
    """One receipt. Whether it says what can be is looked at later, so that one that doesn't keeps
    nothing else of the message from being heard."""

    session_id: Annotated[str, StringConstraints(min_length=1, max_length=MAX_SESSION_ID)]
    route_epoch: Number
    trace_id: Annotated[str, StringConstraints(max_length=32)] = ""
    model: _Sum
    recipe: _Sum
    upstream: EndMessage
    downstream: EndMessage
    said_upstream: StatementMessage | None = None
    said_downstream: StatementMessage | None = None

    @staticmethod
    def of(receipt: Receipt) -> ReceiptMessage:
        """See :class:`Receipt`."""
        seam, up, down = receipt.seam, receipt.upstream, receipt.downstream
        return ReceiptMessage(
            session_id=seam.key.session_id,
            route_epoch=seam.key.route_epoch,
            trace_id=seam.trace_id,
            model=seam.model,
            recipe=seam.recipe,
            upstream=EndMessage.of(seam.upstream),
            downstream=EndMessage.of(seam.downstream),
            said_upstream=None if up is None else StatementMessage.of(up),
            said_downstream=None if down is None else StatementMessage.of(down),
        )

    def value(self) -> Receipt:
        """See :class:`Receipt`; raises an ``InputError`` for what can't be."""
        up, down = self.said_upstream, self.said_downstream
        seam = Seam(
            SessionKey(RouteSessionId(self.session_id), self.route_epoch),
            self.trace_id,
            Digest(self.model),
            Digest(self.recipe),
            self.upstream.value(),
            self.downstream.value(),
        )
        return Receipt(
            seam, None if down is None else down.value(), None if up is None else up.value()
        )


Receipts = Annotated[tuple[ReceiptMessage, ...], Field(max_length=MAX_RECEIPTS)]


class ReceiptsReport(Message):
    """Receipts that one member has."""

    receipts: Receipts


class ReceiptsReply(Message):
    """What became of them."""

    kept: bool
    """Whether they needn't come again."""
