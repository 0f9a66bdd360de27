"""Receipts on their way from members to the tracker's accounts, over its HTTPS port."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from meshnet.cli.receiptbox import ReceiptOutbox
from meshnet.domain.errors import NodeNotReadyError, UnauthenticatedError
from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.receipts import Receipt, SeamEnd, Side
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.ledger import HOUSE, Account, node_account
from meshnet.tracker.receiptdesk import ReceiptDesk
from meshnet.tracker.receiptmessages import ReceiptMessage, ReceiptsReport
from meshnet.tracker.store.database import Database, open_database
from meshnet.tracker.store.receipts import ReceiptStore
from meshnet.tracker.store.usage import UsageStore
from meshnet.transport.certificates import Role, public_key_of
from meshnet.transport.receipts import Signer
from meshnet.transport.tls import Identity
from tests.support.live_tracker import Files, LiveTracker, live_tracker
from tests.support.receipts import STRANGER, WORK, signed

PAY = 29 * 1


@dataclass
class Accounts:
    """A tracker with accounts."""

    tracker: LiveTracker
    database: Database

    @property
    def balances(self) -> dict[Account, int]:
        return UsageStore(self.database).balances()

    def opened(self) -> None:
        """The tracker keeps receipts from now on."""
        self.tracker.service.receipts = ReceiptDesk(ReceiptStore(self.database))

    def gateway(self) -> Identity:
        """The gateway of the tracker's own machine."""
        made = self.tracker.identity(Role.GATEWAY)
        self.tracker.service.admit(public_key_of(made.key_pem), "gateway", Role.GATEWAY)
        return made


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = open_database(str(tmp_path / "accounts.db"))
    yield opened
    opened.close()


@pytest.fixture
async def accounts(tmp_path: Path, database: Database) -> AsyncIterator[Accounts]:
    async with live_tracker(Files(tmp_path / "m.gguf")) as made:
        accounts = Accounts(made, database)
        accounts.opened()
        yield accounts
        made.service.receipts.close()


def now_signed(upstream: Signer, downstream: Signer, session: str = "gen-1") -> Receipt:
    began = time.time_ns()
    work = replace(WORK, began_unix_nanos=began, ended_unix_nanos=began + 10**9)
    return signed(work, None, upstream, downstream, session)


async def test_both_sides_tell_and_the_node_is_paid_once(accounts: Accounts) -> None:
    one, other = await accounts.tracker.join(), await accounts.tracker.join()
    receipt = now_signed(Signer(one), Signer(other))
    for identity in (one, other):
        async with TrackerClient(accounts.tracker.address, identity) as client:
            outbox = ReceiptOutbox(client)
            outbox.add([receipt])
            await outbox.send()
            assert outbox.waiting == 0
    assert accounts.balances == {node_account(other.node_id): PAY, HOUSE: -PAY}


async def test_more_than_one_report_holds_is_told_in_several(accounts: Accounts) -> None:
    gateway, node = accounts.gateway(), await accounts.tracker.join()
    signers = Signer(gateway), Signer(node)
    place = replace(now_signed(*signers).seam, upstream=SeamEnd(gateway.node_id))
    template = now_signed(*signers)
    assert template.downstream is not None
    made = []
    for number in range(40):
        key = SessionKey(RouteSessionId(f"gen-{number}"), 0)
        seam, work = replace(place, key=key), template.downstream.work
        made.append(
            Receipt(
                seam,
                signers[1].sign(seam, work, Side.DOWNSTREAM),
                signers[0].sign(seam, work, Side.UPSTREAM),
            )
        )
    async with TrackerClient(accounts.tracker.address, gateway) as client:
        outbox = ReceiptOutbox(client)
        outbox.add(made)
        await outbox.send()
        assert outbox.waiting == 0
    assert accounts.balances[node_account(node.node_id)] == 40 * PAY


async def test_receipts_wait_for_a_tracker_that_cannot_write(accounts: Accounts) -> None:
    one, other = await accounts.tracker.join(), await accounts.tracker.join()
    receipt = now_signed(Signer(one), Signer(other))

    class Full:
        def keep(self, *_: object) -> None:
            raise NodeNotReadyError("the disk is full")

    accounts.tracker.service.receipts = ReceiptDesk(Full())  # type: ignore[arg-type]
    async with TrackerClient(accounts.tracker.address, other) as client:
        outbox = ReceiptOutbox(client)
        outbox.add([receipt])
        await outbox.send()
        assert outbox.waiting == 1
        accounts.opened()
        await outbox.send()
        assert outbox.waiting == 0
    assert accounts.balances[node_account(other.node_id)] == PAY


async def test_a_forged_receipt_is_settled_and_pays_nothing(accounts: Accounts) -> None:
    one, other = await accounts.tracker.join(), await accounts.tracker.join()
    receipt = now_signed(Signer(one), Signer(other))
    forged = replace(receipt, upstream=STRANGER.sign(receipt.seam, receipt.work, Side.UPSTREAM))
    with_stranger = now_signed(STRANGER, Signer(other), "gen-2")
    async with TrackerClient(accounts.tracker.address, other) as client:
        messages = tuple(map(ReceiptMessage.of, (forged, with_stranger)))
        assert (await client.send_receipts(ReceiptsReport(receipts=messages))).kept
    assert accounts.balances == {}


async def test_an_admin_has_no_receipts(accounts: Accounts) -> None:
    identity = accounts.tracker.identity(Role.ADMIN)
    async with TrackerClient(accounts.tracker.address, identity) as client:
        with pytest.raises(UnauthenticatedError, match="nodes and gateways"):
            await client.send_receipts(ReceiptsReport(receipts=()))


async def test_an_outbox_is_bounded_and_drops_the_oldest(accounts: Accounts) -> None:
    one, other = await accounts.tracker.join(), await accounts.tracker.join()
    made = [now_signed(Signer(one), Signer(other), f"gen-{number}") for number in range(3)]
    async with TrackerClient(accounts.tracker.address, other) as client:
        outbox = ReceiptOutbox(client, kept=2)
        outbox.add(made)
        assert (outbox.waiting, outbox.dropped) == (2, 1)
        await outbox.send()
    assert accounts.balances[node_account(other.node_id)] == 2 * PAY
