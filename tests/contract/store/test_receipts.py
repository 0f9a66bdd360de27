"""Receipts and what they pay, the same over every database and in whatever order they come."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshnet.domain.errors import NodeNotReadyError
from meshnet.domain.receipts import Receipt, ReceiptState, Side, Statement
from meshnet.tracker.ledger import HOUSE, node_account
from meshnet.tracker.receipts import KEPT_DAYS, entry_id_of
from meshnet.tracker.store.database import Database, open_database
from meshnet.tracker.store.receipts import Receipts, ReceiptStore, ReceiptSum
from meshnet.tracker.store.usage import UsageStore
from tests.support.receipts import GATEWAY, HEAD, TAIL, WORK, one_sided, seam, signed

NOW = 1e9 + 60
BEGAN = 10**9
TAIL_PAY = 29 * 22


@pytest.fixture
def database(place: str) -> Iterator[Database]:
    opened = open_database(place)
    yield opened
    opened.close()


def disputed(session: str = "gen-1") -> Receipt:
    return signed(WORK, replace(WORK, decode_rows=8), session=session)


def test_a_signed_receipt_pays_once_however_often_it_comes(place: str, database: Database) -> None:
    store, usage, receipt = ReceiptStore(database), UsageStore(database), signed()
    assert store.keep([receipt, receipt], NOW) == {ReceiptState.SIGNED: 1}
    assert not store.keep([receipt, one_sided(Side.DOWNSTREAM)], NOW)
    again = open_database(place)
    assert not ReceiptStore(again).keep([receipt], NOW)
    again.close()
    assert usage.balances() == {node_account(TAIL.node_id): TAIL_PAY, HOUSE: -TAIL_PAY}
    assert store.sums() == {TAIL.node_id: ReceiptSum(signed=TAIL_PAY, receipts=1)}
    assert store.newest(0, list(ReceiptState), 9) == (receipt,)


def test_what_is_not_signed_by_both_is_kept_apart_and_pays_nothing(database: Database) -> None:
    store, apart = ReceiptStore(database), disputed("b")
    store.keep([one_sided(Side.UPSTREAM, signed(session="a")), apart], NOW)
    store.keep([one_sided(Side.DOWNSTREAM, signed(session="c"))], NOW)
    assert UsageStore(database).balances() == {}
    assert store.sums() == {TAIL.node_id: ReceiptSum(0, 2 * TAIL_PAY, TAIL_PAY, 3)}
    assert store.sums(BEGAN + 1) == {}
    (found,) = store.newest(0, [ReceiptState.DISPUTED], 9)
    assert found == apart


def test_the_word_of_one_side_gives_way_to_that_of_both(database: Database) -> None:
    store = ReceiptStore(database)
    whole = signed()
    for receipt in (one_sided(Side.UPSTREAM), one_sided(Side.DOWNSTREAM), disputed(), whole):
        assert store.keep([receipt], NOW) == {receipt.state: 1}
    assert store.newest(0, list(ReceiptState), 9) == (whole,)
    assert UsageStore(database).balances()[node_account(TAIL.node_id)] == TAIL_PAY


def test_two_good_receipts_for_the_same_work_pay_for_one(database: Database) -> None:
    """Two openers who sign for one session of a node: one of them lies with it."""
    store = ReceiptStore(database)
    more = signed(replace(WORK, end_position=1000), upstream=GATEWAY)
    assert store.keep([signed(), more], NOW) == {ReceiptState.SIGNED: 1}
    store.prune(NOW, at_most=0)
    assert not store.keep([more], NOW)
    assert UsageStore(database).balances()[node_account(TAIL.node_id)] == TAIL_PAY


def test_old_receipts_go_and_what_they_paid_stays_paid(database: Database) -> None:
    store, usage = ReceiptStore(database), UsageStore(database)
    shift = 100 * 10**9
    later = replace(
        WORK,
        began_unix_nanos=WORK.began_unix_nanos + shift,
        ended_unix_nanos=WORK.ended_unix_nanos + shift,
    )
    made = [signed(session=f"a{n}") for n in range(3)]
    made += [signed(later, session=f"b{n}") for n in range(3)]
    store.keep(made, NOW)
    store.prune(NOW, at_most=4)
    left = [receipt.seam.key.session_id for receipt in store.newest(0, list(ReceiptState), 9)]
    assert left == ["b0", "b1", "b2"]
    store.prune(BEGAN + KEPT_DAYS * 86_400 + 101)
    assert store.sums() == {}
    store.keep(made, NOW)
    assert usage.balances()[node_account(TAIL.node_id)] == 6 * TAIL_PAY


def test_a_payment_can_be_reversed_and_is_not_made_again(database: Database) -> None:
    store, usage = ReceiptStore(database), UsageStore(database)
    store.keep([signed()], NOW)
    usage.reverse(entry_id_of(signed()))
    store.keep([signed()], NOW)
    assert set(usage.balances().values()) == {0}


def test_receipts_wait_while_their_database_cannot_be_opened(place: str, tmp_path: Path) -> None:
    folder = tmp_path
    (folder / "file").write_text("no folder")
    receipts = Receipts(str(folder / "file" / "accounts.db"))
    with pytest.raises(NodeNotReadyError):
        receipts.keep([signed()], NOW)
    receipts.close()
    there = Receipts(place)
    assert there.keep([signed()], NOW) == {ReceiptState.SIGNED: 1}
    there.close()


_forms = st.sampled_from(["signed", "downstream", "upstream", "disputed"])


@st.composite
def told(draw: st.DrawFn) -> list[list[Receipt]]:
    """What both ends of some seams report, in any order, some of it more than once, in batches."""
    receipts = []
    for session in range(draw(st.integers(1, 3))):
        down = draw(st.sampled_from([HEAD, TAIL]))
        up = GATEWAY if down is HEAD else HEAD
        tokens = draw(st.integers(0, 99))
        work = replace(WORK, end_position=tokens)
        # A store takes signatures as they are.
        one, other = (Statement(each, "aa", "bb") for each in (work, replace(work, bytes_up=1)))
        whole = Receipt(seam(up, down, f"s{session}"), one, one)
        for form in draw(st.lists(_forms, min_size=1, max_size=4)):
            if form == "signed":
                receipts.append(whole)
            elif form == "disputed":
                receipts.append(replace(whole, upstream=other))
            else:
                receipts.append(one_sided(Side(form), whole))
    order = draw(st.permutations(receipts))
    edges = sorted(draw(st.sets(st.integers(0, len(order)), max_size=3)))
    return [list(order[a:b]) for a, b in itertools.pairwise([0, *edges, len(order)])]


@settings(max_examples=30, deadline=None)
@given(batches=told(), again=st.booleans())
def test_whatever_comes_in_whatever_order_the_books_balance_and_each_work_is_paid_once(
    batches: list[list[Receipt]], again: bool
) -> None:
    opened = open_database("sqlite://")
    store, usage = ReceiptStore(opened), UsageStore(opened)
    for batch in batches + (batches[::-1] if again else []):
        store.keep(batch, NOW)
        assert sum(usage.balances().values()) == 0
    every = [receipt for batch in batches for receipt in batch]
    owed: dict[str, int] = {}
    paid = {each.seam.key: each for each in every if each.state is ReceiptState.SIGNED}
    for receipt in paid.values():
        node = str(receipt.seam.downstream.node_id)
        owed[node] = owed.get(node, 0) + receipt.work.tokens * receipt.seam.layers
    balances = usage.balances()
    for node, amount in owed.items():
        assert balances.get(node_account(node), 0) == amount
        assert store.sums()[node].signed == amount
    assert balances.get(HOUSE, 0) == -sum(owed.values())
    assert sum(each.receipts for each in store.sums().values()) == len(
        {(each.seam.key, each.seam.downstream.node_id) for each in every}
    )
    opened.close()
