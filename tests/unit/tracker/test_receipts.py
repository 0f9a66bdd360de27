"""Which receipts count, and what they pay: the same whatever order they come in."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from meshnet.domain.errors import InvalidArgumentError, NodeNotReadyError, UnauthenticatedError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import (
    MAX_DIGEST,
    MAX_SESSION_ID,
    MOST,
    Receipt,
    ReceiptState,
    SeamEnd,
    SeamWork,
    Side,
)
from meshnet.tracker import receiptdesk
from meshnet.tracker.ledger import HOUSE, node_account
from meshnet.tracker.messages import MAX_BODY_BYTES
from meshnet.tracker.receiptdesk import ReceiptDesk
from meshnet.tracker.receiptmessages import MAX_RECEIPTS, ReceiptMessage, ReceiptsReport
from meshnet.tracker.receipts import (
    KEPT_DAYS,
    Roster,
    earned,
    payment_of,
    replaces,
    require_good,
)
from tests.support.receipts import (
    GATEWAY,
    HEAD,
    STRANGER,
    TAIL,
    WORK,
    one_sided,
    seam,
    signed,
    works,
)

NOW = 10**9 + 1.0
ROSTER = Roster({HEAD.node_id, TAIL.node_id}, {GATEWAY.node_id}, {})


def good(receipt: Receipt, roster: Roster = ROSTER) -> None:
    require_good(receipt, receipt.seam.downstream.node_id, roster, NOW)


def test_members_receipts_are_good_whoever_of_them_reports() -> None:
    good(signed())
    good(signed(upstream=GATEWAY, downstream=HEAD))
    require_good(signed(), HEAD.node_id, ROSTER, NOW)
    for side in Side:
        good(one_sided(side))


def test_a_stranger_signs_nothing_and_reports_nothing() -> None:
    with pytest.raises(UnauthenticatedError, match="of others"):
        require_good(signed(), STRANGER.node_id, ROSTER, NOW)
    for made in (signed(upstream=STRANGER), signed(downstream=STRANGER)):
        with pytest.raises(UnauthenticatedError, match="no member"):
            good(made)


def test_a_node_cannot_sign_as_a_gateway_nor_a_gateway_as_a_node() -> None:
    place = replace(seam(), upstream=SeamEnd(HEAD.node_id))
    as_gateway = Receipt(
        place, TAIL.sign(place, WORK, Side.DOWNSTREAM), HEAD.sign(place, WORK, Side.UPSTREAM)
    )
    place = replace(seam(), upstream=SeamEnd(GATEWAY.node_id, LayerRange(0, 8)))
    as_node = Receipt(
        place, TAIL.sign(place, WORK, Side.DOWNSTREAM), GATEWAY.sign(place, WORK, Side.UPSTREAM)
    )
    for made in (as_gateway, as_node):
        with pytest.raises(UnauthenticatedError, match="no member"):
            good(made)


def test_a_removed_node_signs_for_the_time_before_alone() -> None:
    ended = WORK.ended_unix_nanos // 10**9
    for moment, fine in ((ended, True), (ended - 1, False)):
        roster = Roster({TAIL.node_id}, (), {HEAD.node_id: moment})
        if fine:
            good(signed(), roster)
        else:
            with pytest.raises(UnauthenticatedError, match=HEAD.node_id):
                good(signed(), roster)


@given(works())
def test_an_altered_receipt_is_not_good(work: SeamWork) -> None:
    for side, statement in signed().statements:
        altered = replace(statement, work=work)
        if altered != statement:
            forged = (
                replace(signed(), upstream=altered)
                if side is Side.UPSTREAM
                else replace(signed(), downstream=altered)
            )
            with pytest.raises((UnauthenticatedError, InvalidArgumentError)):
                good(forged)


@pytest.mark.parametrize(
    ("field", "work"),
    [
        ("began_unix_nanos", replace(WORK, began_unix_nanos=0, engine_nanos=0)),
        (
            "ended_unix_nanos",
            replace(WORK, ended_unix_nanos=10**18 + (3600 + 2) * 10**9),
        ),
        ("end_position", replace(WORK, end_position=2**31)),
    ],
)
def test_what_cannot_be_is_refused_by_name(field: str, work: SeamWork) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        good(signed(work))
    assert refusal.value.details["field"] == field


def test_only_what_both_signed_alike_is_paid_and_the_house_pays() -> None:
    entry = payment_of(signed())
    assert entry is not None
    amounts = {posting.account: posting.amount for posting in entry.postings}
    assert amounts == {node_account(TAIL.node_id): 29 * 22, HOUSE: -29 * 22}
    for made in (
        one_sided(Side.UPSTREAM),
        one_sided(Side.DOWNSTREAM),
        signed(other=replace(WORK, bytes_up=4)),
    ):
        assert payment_of(made) is None
        assert earned(made) == 29 * 22


def test_a_receipt_gives_way_only_to_one_that_says_more() -> None:
    order = [
        ReceiptState.UPSTREAM_ONLY,
        ReceiptState.DOWNSTREAM_ONLY,
        ReceiptState.DISPUTED,
        ReceiptState.SIGNED,
    ]
    made = [
        one_sided(Side.UPSTREAM),
        one_sided(Side.DOWNSTREAM),
        signed(other=replace(WORK, bytes_up=4)),
        signed(),
    ]
    for place, receipt in enumerate(made):
        assert replaces(receipt, None)
        assert [replaces(receipt, known) for known in order] == [
            place > other for other in range(4)
        ]


@given(works(), st.sampled_from([None, *Side]))
def test_a_receipt_survives_its_message(work: SeamWork, side: Side | None) -> None:
    receipt = signed(work)
    if side is not None:
        receipt = one_sided(side, receipt)
    message = ReceiptMessage.of(receipt)
    read = ReceiptMessage.model_validate_json(message.model_dump_json(exclude_none=True))
    assert read.value() == receipt


def test_receipts_of_the_longest_names_and_the_highest_numbers_can_be_told() -> None:
    """Strangers choose them, and the receiver must be able to tell of its work."""
    place = seam(session="\U0001f600" * MAX_SESSION_ID, epoch=MOST - 1)
    digest = Digest("\U0001f600" * MAX_DIGEST)
    place = replace(place, model=digest, recipe=digest)
    most = MOST - 1
    work = SeamWork(most, most, most, most, most, most, 0, most, most)
    down, up = TAIL.sign(place, work, Side.DOWNSTREAM), HEAD.sign(place, work, Side.UPSTREAM)
    message = ReceiptMessage.of(Receipt(place, down, up))
    assert message.value() == Receipt(place, down, up)
    report = ReceiptsReport(receipts=(message,) * MAX_RECEIPTS)
    assert len(report.model_dump_json().encode()) < MAX_BODY_BYTES


def test_a_report_is_bounded_and_refused_by_the_name_of_its_field() -> None:
    message = ReceiptMessage.of(signed())
    assert len(ReceiptsReport(receipts=(message,) * MAX_RECEIPTS).model_dump_json()) < 64 * 1024
    with pytest.raises(ValidationError, match="receipts"):
        ReceiptsReport(receipts=(message,) * (MAX_RECEIPTS + 1))
    with pytest.raises(ValidationError, match="session_id"):
        ReceiptMessage.model_validate(message.model_dump() | {"session_id": "x" * 65})


class Kept:
    """Where receipts go, for tests."""

    def __init__(self, error: Exception | None = None) -> None:
        self.receipts: list[Receipt] = []
        self.error = error
        self.go = threading.Event()
        self.go.set()

    def keep(self, receipts: Sequence[Receipt], now: float) -> Counter[ReceiptState]:
        self.go.wait(5.0)
        if self.error is not None:
            raise self.error
        self.receipts += receipts
        return Counter(receipt.state for receipt in receipts)


async def taken(desk: ReceiptDesk, *receipts: Receipt) -> bool:
    return await desk.take(TAIL.node_id, [ReceiptMessage.of(it) for it in receipts], ROSTER, NOW)


async def test_a_forged_receipt_keeps_no_other_from_being_kept() -> None:
    kept = Kept()
    desk = ReceiptDesk(kept)
    forged = replace(signed(), upstream=STRANGER.sign(seam(), WORK, Side.UPSTREAM))
    impossible = ReceiptMessage.of(signed()).model_copy(
        update={"downstream": ReceiptMessage.of(signed()).upstream}
    )
    assert await taken(desk, forged, signed())
    assert await desk.take(TAIL.node_id, [impossible], ROSTER, NOW)
    assert [receipt.state for receipt in kept.receipts] == [ReceiptState.SIGNED]
    desk.close()


async def test_what_cannot_be_written_down_now_must_come_again() -> None:
    kept = Kept(NodeNotReadyError("the disk is full"))
    desk = ReceiptDesk(kept)
    assert not await taken(desk, signed())
    kept.error = None
    assert await taken(desk, signed())
    assert len(kept.receipts) == 1
    desk.close()


async def test_a_database_that_hangs_holds_up_nobody_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiptdesk, "WAIT_SECONDS", 0.05)
    monkeypatch.setattr(receiptdesk, "MAX_WAITING", 2)
    kept = Kept()
    kept.go.clear()
    desk = ReceiptDesk(kept)
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await asyncio.gather(*(taken(desk, signed()) for _ in range(4))) == [False] * 4
    assert loop.time() - began < 1.0
    kept.go.set()
    async with asyncio.timeout(5.0):
        while not await taken(desk, signed()):  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.01)
    # The two that waited came through as well.
    assert len(kept.receipts) == 3
    desk.close()


async def test_without_accounts_receipts_are_let_go() -> None:
    assert await taken(ReceiptDesk(), signed())


def test_the_time_that_receipts_are_kept_is_bounded() -> None:
    late = WORK.began_unix_nanos / 1e9 + KEPT_DAYS * 86_400 + 1
    with pytest.raises(InvalidArgumentError, match="too long ago"):
        require_good(signed(), TAIL.node_id, ROSTER, late)
