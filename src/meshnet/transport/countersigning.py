"""The two sides of a seam come to a receipt when a session is over there.

The receiver says first what the session took, and signs it; the opener answers with its own
numbers, signed too. Nothing of the session waits for that, and nobody waits for long: what wasn't
answered is kept as the word of one side.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from meshnet.domain.errors import MeshnetError, NodeError, UnauthenticatedError
from meshnet.domain.frames import (
    DecodeStep,
    Generate,
    GrantTokens,
    OpenSession,
    PrefillChunk,
    SeamReply,
    SessionTerms,
    SignedWork,
)
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import Receipt, Seam, SeamEnd, SeamWork, Side, Statement
from meshnet.domain.seamcounts import NodeSeamCounts, SeamCounts
from meshnet.transport.base import ServerSeam
from meshnet.transport.channel import SeamChannel
from meshnet.transport.receipts import ReceiptBook, require_statement, seam_of

LOGGER = logging.getLogger(__name__)
PATIENCE_SECONDS: Final = 5.0
"""How long a side waits for the other's word."""
DRIFT: Final = 0.01
DRIFT_NANOS: Final = 50_000_000
"""How much longer than its opener a receiver may say that a session lasted: clocks differ."""
SKEW_NANOS: Final = 3_600 * 10**9
"""How far apart both sides' clocks may be, as certificates have it."""


CountsT = TypeVar("CountsT", bound=SeamCounts)


class OpenersReceipt(Generic[CountsT]):
    """The opener's side. Stays on the channel for a while when its session has left it."""

    def __init__(
        self, book: ReceiptBook, seam: Seam, counts: CountsT, channel: SeamChannel
    ) -> None:
        """Made before the session is opened, so that it sees the beginning."""
        self.counts = counts
        self._book = book
        self._seam = seam
        self._channel = channel
        self._handle = 0
        """Where it waits since its session has left."""
        self._began = time.perf_counter_ns()
        self._began_unix = time.time_ns()
        self._over = False
        self._timer: asyncio.TimerHandle | None = None

    @property
    def opener(self) -> SeamEnd:
        """What the message that opens the session says of who opens it."""
        return self._seam.upstream

    def on_reply(self, reply: SeamReply) -> None:
        """Count a reply; to the receiver's word the answer is sent."""
        if not isinstance(reply, SignedWork):
            self.counts.reply(reply)
        elif not self._over:
            self._answer(reply)

    def on_lost(self, error: MeshnetError) -> None:
        """The receiver is gone, and says no more."""
        self._alone(error.message)

    def linger(self, handle: int) -> None:
        """The session leaves the channel: wait there for the receiver's word, if it isn't in."""
        if self._over or self.counts.empty:
            self._over = True
            self._channel.detach(handle)
            return
        self._handle = handle
        try:
            self._channel.hand_over(handle, self)
        except NodeError as error:
            self.on_lost(error)
            return
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(PATIENCE_SECONDS, self._alone, "it said nothing")

    def _answer(self, proposal: SignedWork) -> None:
        try:
            require_statement(self._seam, proposal.statement, Side.DOWNSTREAM)
        except UnauthenticatedError as error:
            self._alone(error.message)
            return
        self._close()
        own = self._sign(self._in_own_numbers(proposal.statement.work))
        receipt = Receipt(self._seam, proposal.statement, own)
        self._book.file(receipt)
        if receipt.differences:
            LOGGER.warning(
                "session %s: node %s counts otherwise: %s",
                self._seam.key,
                self._seam.downstream.node_id,
                ", ".join(receipt.differences),
            )
        with contextlib.suppress(NodeError):
            # One that is gone has lost its receipt; this one is kept here.
            self._channel.send(SignedWork(proposal.handle, own))

    def _in_own_numbers(self, theirs: SeamWork) -> SeamWork:
        """What was counted here, with the receiver's times if they can be true."""
        elapsed = time.perf_counter_ns() - self._began
        longest = elapsed + int(elapsed * DRIFT) + DRIFT_NANOS
        apart = abs(theirs.began_unix_nanos - self._began_unix)
        if theirs.wall_nanos <= longest and apart <= SKEW_NANOS:
            times = (theirs.engine_nanos, theirs.began_unix_nanos, theirs.ended_unix_nanos)
        else:
            ended = self._began_unix + elapsed
            times = (min(theirs.engine_nanos, elapsed), self._began_unix, ended)
        return self.counts.read(*times)

    def _alone(self, why: str) -> None:
        """Keep what was counted here, without the receiver's word."""
        if self._over:
            return
        self._close()
        if self.counts.empty:
            return
        LOGGER.info("session %s has no receipt of its receiver: %s", self._seam.key, why)
        ended = self._began_unix + time.perf_counter_ns() - self._began
        own = self._sign(self.counts.read(0, self._began_unix, ended))
        self._book.file(Receipt(self._seam, upstream=own))

    def _sign(self, work: SeamWork) -> Statement:
        return self._book.signer.sign(self._seam, work, Side.UPSTREAM)

    def _close(self) -> None:
        self._over = True
        if self._timer is not None:
            self._timer.cancel()
            self._channel.detach(self._handle)


def openers_receipt(
    book: ReceiptBook | None,
    layers: LayerRange | None,
    terms: SessionTerms,
    counts: CountsT,
    channel: SeamChannel,
) -> OpenersReceipt[CountsT] | None:
    """For a session that is about to be opened with these terms; None where there are no receipts.

    ``layers``: those of the opener, None for a gateway.
    """
    if book is None:
        return None
    seam = seam_of(terms, SeamEnd(book.signer.node_id, layers))
    return None if seam is None else OpenersReceipt(book, seam, counts, channel)


@dataclass(slots=True)
class _Open:
    """A session that gets a receipt here."""

    seam: Seam
    counts: SeamCounts
    heard_last: bool
    """Whether the opener has sent all that counts."""
    began: int = field(default_factory=time.perf_counter_ns)
    began_unix: int = field(default_factory=time.time_ns)
    took: tuple[int, int] | None = None
    """When it is over: the engine's nanoseconds, and those from beginning to end."""
    statement: Statement | None = None
    timer: asyncio.TimerHandle | None = None


class ReceiversReceipts:
    """The receiver's side, of one stream."""

    def __init__(self, stream: ServerSeam, book: ReceiptBook | None) -> None:
        """``book`` None: there are no receipts."""
        self._stream = stream
        self._book = book
        self._open: dict[int, _Open] = {}

    def opened(self, request: Generate | OpenSession, counts: SeamCounts) -> None:
        """A session was let in; it gets a receipt if its opener wants one and proved who it is."""
        opener, book = request.opener, self._book
        if book is None or opener is None or opener.node_id != self._stream.peer:
            return
        seam = seam_of(request.terms, opener)
        if seam is None or seam.downstream.node_id != book.signer.node_id:
            return
        before = self._open.pop(request.handle, None)
        if before is not None:
            self._alone(before)
        # A gateway sends nothing that is counted after its first message.
        self._open[request.handle] = _Open(seam, counts, isinstance(request, Generate))

    def ended(self, handle: int, engine_nanos: int) -> None:
        """A session is over here, and nothing is sent up any more."""
        entry = self._open.get(handle)
        if entry is None or entry.took is not None:
            return
        elapsed = time.perf_counter_ns() - entry.began
        entry.took = (min(engine_nanos, elapsed), elapsed)
        loop = asyncio.get_running_loop()
        if entry.heard_last:
            # What the session said in the end goes first.
            loop.call_soon(self._propose, handle, entry)
        else:
            entry.timer = loop.call_later(PATIENCE_SECONDS, self._propose, handle, entry)

    def said_last(self, handle: int) -> None:
        """The opener released or cancelled a session: it sends no steps any more."""
        entry = self._open.get(handle)
        if entry is None or entry.heard_last:
            return
        entry.heard_last = True
        if entry.took is not None:
            self._propose(handle, entry)

    def late(self, handle: int, frame: object) -> None:
        """A frame came for a session that is over: its opener has counted it."""
        entry = self._open.get(handle)
        if entry is None:
            return
        if isinstance(frame, PrefillChunk | DecodeStep):
            if isinstance(entry.counts, NodeSeamCounts):
                entry.counts.request(frame)
        elif not isinstance(frame, GrantTokens):
            self.said_last(handle)

    def answered(self, answer: SignedWork) -> None:
        """The opener says its numbers."""
        entry = self._open.get(answer.handle)
        if entry is None or entry.statement is None or self._book is None:
            return
        del self._open[answer.handle]
        _stop(entry)
        try:
            require_statement(entry.seam, answer.statement, Side.UPSTREAM)
        except UnauthenticatedError as error:
            LOGGER.warning("session %s: %s", entry.seam.key, error.message)
            self._alone(entry)
            return
        self._book.file(Receipt(entry.seam, entry.statement, answer.statement))

    def close(self) -> None:
        """The stream is over."""
        entries = list(self._open.values())
        self._open.clear()
        for entry in entries:
            self._alone(entry)

    def _propose(self, handle: int, entry: _Open) -> None:
        if self._open.get(handle) is not entry or entry.statement is not None:
            return
        _stop(entry)
        entry.statement = self._stated(entry)
        if entry.statement is None:
            del self._open[handle]
            return
        self._stream.send(SignedWork(handle, entry.statement))
        loop = asyncio.get_running_loop()
        entry.timer = loop.call_later(PATIENCE_SECONDS, self._unanswered, handle, entry)

    def _unanswered(self, handle: int, entry: _Open) -> None:
        if self._open.get(handle) is entry:
            del self._open[handle]
            self._alone(entry)

    def _alone(self, entry: _Open) -> None:
        """Keep what was counted here, without the opener's word."""
        _stop(entry)
        statement = entry.statement or self._stated(entry)
        if statement is not None and self._book is not None:
            self._book.file(Receipt(entry.seam, statement))

    def _stated(self, entry: _Open) -> Statement | None:
        """What is said of a session; None if nothing passed."""
        if entry.counts.empty or self._book is None:
            return None
        elapsed = time.perf_counter_ns() - entry.began
        engine, wall = entry.took or (0, elapsed)
        work = entry.counts.read(engine, entry.began_unix, entry.began_unix + wall)
        return self._book.signer.sign(entry.seam, work, Side.DOWNSTREAM)


def _stop(entry: _Open) -> None:
    if entry.timer is not None:
        entry.timer.cancel()
        entry.timer = None
