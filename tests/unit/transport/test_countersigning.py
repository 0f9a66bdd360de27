"""How both sides of a seam come to a receipt, and what is left where they don't."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from meshnet.domain.errors import NodeLostError
from meshnet.domain.frames import (
    Cancel,
    OpenSession,
    Release,
    SeamReply,
    SeamRequest,
    SessionTerms,
    SignedWork,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.domain.receipts import Receipt, ReceiptState, SeamEnd, SeamWork, Side
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.seamcounts import NodeSeamCounts
from meshnet.transport import countersigning
from meshnet.transport.base import ServerSeam
from meshnet.transport.channel import SeamChannel
from meshnet.transport.countersigning import OpenersReceipt, ReceiversReceipts, openers_receipt
from meshnet.transport.receipts import ReceiptBook, Signer, seam_of
from tests.support.frames import TERMS, decode_step, prefill_chunk
from tests.support.receipts import HEAD, LAYERS, STRANGER, TAIL
from tests.unit.transport.test_channel import ScriptedSeam

PATIENCE = 0.03
HOP = Hop(TAIL.node_id, Address("tail:1"), LAYERS[TAIL.node_id])
OPENED: SessionTerms = replace(TERMS, hops=(HOP,))


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(countersigning, "PATIENCE_SECONDS", PATIENCE)


class Opener:
    """The side that opens, with a channel whose other end is the test."""

    def __init__(self) -> None:
        self.stream = ScriptedSeam()
        self.channel = SeamChannel(self.stream, Address("tail:1"))
        self.book = ReceiptBook(HEAD)
        made = openers_receipt(
            self.book, LAYERS[HEAD.node_id], OPENED, NodeSeamCounts(), self.channel
        )
        assert made is not None
        self.receipt: OpenersReceipt[NodeSeamCounts] = made
        self.handle = self.channel.attach(made)
        made.counts.request(prefill_chunk(rows=4))

    def work(self, **changes: int) -> SeamWork:
        """What the receiver counts, truly."""
        now = time.time_ns()
        counts = NodeSeamCounts()
        counts.request(prefill_chunk(rows=4))
        return replace(counts.read(1000, now, now + 2000), **changes)

    def said(self, work: SeamWork, signer: Signer = TAIL) -> None:
        """The receiver's word comes."""
        seam = self.receipt._seam
        self.stream.replies.put_nowait(
            SignedWork(self.handle, signer.sign(seam, work, Side.DOWNSTREAM))
        )

    async def filed(self) -> Receipt:
        await asyncio.sleep(0.01)
        (receipt,) = self.book.take(9)
        return receipt


@pytest.fixture
async def opener() -> AsyncIterator[Opener]:
    made = Opener()
    yield made
    await made.channel.close()


@pytest.mark.parametrize("left_before", [False, True])
async def test_the_opener_signs_what_it_counted_too(opener: Opener, left_before: bool) -> None:
    if left_before:
        opener.receipt.linger(opener.handle)
    opener.said(opener.work())
    receipt = await opener.filed()
    assert receipt.state is ReceiptState.SIGNED
    assert receipt.upstream is not None
    assert opener.stream.sent == [SignedWork(opener.handle, receipt.upstream)]
    if not left_before:
        opener.receipt.linger(opener.handle)
    assert opener.channel.idle_since is not None


@pytest.mark.parametrize("field", ["prefill_rows", "decode_rows", "end_position", "bytes_down"])
async def test_a_receiver_that_counts_more_is_told_otherwise(opener: Opener, field: str) -> None:
    honest = opener.work()
    opener.said(replace(honest, **{field: getattr(honest, field) + 1}))
    receipt = await opener.filed()
    assert receipt.state is ReceiptState.DISPUTED
    assert receipt.differences == (field,)
    assert receipt.upstream is not None
    assert receipt.upstream.work == honest


@pytest.mark.parametrize("hours", [-2, 2])
async def test_times_that_cannot_be_are_not_signed(opener: Opener, hours: int) -> None:
    shift = hours * 3600 * 10**9
    work = opener.work()
    moved = replace(
        work,
        began_unix_nanos=work.began_unix_nanos + shift,
        ended_unix_nanos=work.ended_unix_nanos + shift,
    )
    opener.said(moved)
    assert (await opener.filed()).state is ReceiptState.DISPUTED


async def test_no_engine_worked_for_longer_than_its_session_was_open(opener: Opener) -> None:
    work = opener.work()
    longer = replace(
        work,
        engine_nanos=10 * 10**9,
        ended_unix_nanos=work.began_unix_nanos + 10 * 10**9,
    )
    opener.said(longer)
    receipt = await opener.filed()
    assert receipt.state is ReceiptState.DISPUTED
    assert receipt.upstream is not None
    assert receipt.upstream.work.engine_nanos < 10**9


async def test_a_forged_word_counts_as_none(opener: Opener) -> None:
    opener.said(opener.work(), STRANGER)
    receipt = await opener.filed()
    assert receipt.state is ReceiptState.UPSTREAM_ONLY
    assert opener.stream.sent == []


async def test_a_receiver_that_says_nothing_or_is_gone_leaves_the_openers_word(
    opener: Opener,
) -> None:
    opener.receipt.linger(opener.handle)
    await asyncio.sleep(2 * PATIENCE)
    assert (await opener.filed()).state is ReceiptState.UPSTREAM_ONLY
    assert opener.channel.idle_since is not None
    other = Opener()
    other.stream.replies.put_nowait(NodeLostError("gone"))
    await asyncio.sleep(0.01)
    other.receipt.linger(other.handle)
    assert (await other.filed()).state is ReceiptState.UPSTREAM_ONLY
    await other.channel.close()


class Stream(ServerSeam):
    """What the receiver says, collected."""

    def __init__(self, peer: NodeId | None = HEAD.node_id) -> None:
        self.sent: list[SeamReply] = []
        self._peer = peer

    @property
    def peer(self) -> NodeId | None:
        return self._peer

    async def receive(self) -> SeamRequest | None:
        return None

    def send(self, reply: SeamReply) -> None:
        self.sent.append(reply)


class Receiver:
    """The side that accepts, with one open session over which a chunk came."""

    def __init__(self, peer: NodeId | None = HEAD.node_id, named: NodeId = HEAD.node_id) -> None:
        self.stream, self.book = Stream(peer), ReceiptBook(TAIL)
        self.receipts = ReceiversReceipts(self.stream, self.book)
        self.counts = NodeSeamCounts()
        end = SeamEnd(named, LAYERS[HEAD.node_id])
        request = OpenSession(1, OPENED, SamplingParams(), (), FlowControl(), opener=end)
        self.receipts.opened(request, self.counts)
        self.counts.request(prefill_chunk(rows=4))

    @property
    def proposal(self) -> SignedWork:
        (sent,) = self.stream.sent
        assert isinstance(sent, SignedWork)
        return sent

    def answered(self, signer: Signer = HEAD) -> None:
        """The opener agrees."""
        seam = seam_of(OPENED, SeamEnd(HEAD.node_id, LAYERS[HEAD.node_id]))
        assert seam is not None
        work = self.proposal.statement.work
        self.receipts.answered(SignedWork(1, signer.sign(seam, work, Side.UPSTREAM)))


async def test_the_receiver_speaks_once_both_are_done_and_keeps_what_both_signed() -> None:
    receiver = Receiver()
    receiver.receipts.ended(1, 5)
    await asyncio.sleep(0)
    assert receiver.stream.sent == []
    receiver.receipts.late(1, decode_step(1, 260))
    receiver.receipts.late(1, Cancel(1, "it failed"))
    assert receiver.proposal.statement.work.decode_rows == 1
    receiver.answered()
    (receipt,) = receiver.book.take(9)
    assert receipt.state is ReceiptState.SIGNED
    receiver.answered()
    receiver.receipts.close()
    assert receiver.book.take(9) == ()


async def test_an_opener_that_released_first_is_told_when_the_session_is_over() -> None:
    receiver = Receiver()
    receiver.receipts.said_last(1)
    assert receiver.stream.sent == []
    receiver.receipts.ended(1, 5)
    await asyncio.sleep(0)
    assert receiver.proposal.handle == 1
    receiver.receipts.close()


@pytest.mark.parametrize("released", [False, True])
async def test_an_opener_that_says_nothing_leaves_the_receivers_word(released: bool) -> None:
    receiver = Receiver()
    receiver.receipts.ended(1, 5)
    if released:
        receiver.receipts.late(1, Release(1))
    await asyncio.sleep(3 * PATIENCE)
    (receipt,) = receiver.book.take(9)
    assert receipt.state is ReceiptState.DOWNSTREAM_ONLY
    receiver.answered()
    assert receiver.book.take(9) == ()


async def test_a_forged_answer_counts_as_none() -> None:
    receiver = Receiver()
    receiver.receipts.said_last(1)
    receiver.receipts.ended(1, 5)
    await asyncio.sleep(0)
    receiver.answered(STRANGER)
    (receipt,) = receiver.book.take(9)
    assert receipt.state is ReceiptState.DOWNSTREAM_ONLY


async def test_a_stream_that_breaks_leaves_the_receivers_word_at_once() -> None:
    receiver = Receiver()
    receiver.receipts.close()
    (receipt,) = receiver.book.take(9)
    assert receipt.state is ReceiptState.DOWNSTREAM_ONLY
    receiver.receipts.ended(1, 5)
    await asyncio.sleep(2 * PATIENCE)
    assert (receiver.book.take(9), receiver.stream.sent) == ((), [])


@pytest.mark.parametrize(
    ("peer", "named"),
    [(None, HEAD.node_id), (STRANGER.node_id, HEAD.node_id), (HEAD.node_id, STRANGER.node_id)],
    ids=["nobody", "a stranger", "in another's name"],
)
async def test_who_does_not_prove_to_be_the_opener_gets_no_receipt(
    peer: NodeId | None, named: NodeId
) -> None:
    receiver = Receiver(peer, named)
    receiver.receipts.said_last(1)
    receiver.receipts.ended(1, 5)
    receiver.receipts.close()
    await asyncio.sleep(0)
    assert (receiver.stream.sent, receiver.book.take(9)) == ([], ())
