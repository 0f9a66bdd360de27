"""Signatures of receipts, and the book that keeps them."""

from __future__ import annotations

import hashlib
from dataclasses import fields, replace

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ed25519
from hypothesis import given

from meshnet.domain.errors import UnauthenticatedError
from meshnet.domain.ids import Digest, NodeId, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import MOST, ReceiptState, Seam, SeamEnd, SeamWork, Side
from meshnet.transport.receipts import ReceiptBook, require_statement, seam_of
from tests.support.frames import TERMS
from tests.support.receipts import HEAD, STRANGER, TAIL, WORK, one_sided, seam, signed, works


def test_what_both_sides_signed_is_good() -> None:
    receipt = signed()
    for side, statement in receipt.statements:
        require_statement(receipt.seam, statement, side)


@given(works())
def test_no_number_can_be_altered(work: SeamWork) -> None:
    for side, statement in signed().statements:
        altered = replace(statement, work=work)
        if work != WORK:
            with pytest.raises(UnauthenticatedError, match="signed"):
                require_statement(seam(), altered, side)


@pytest.mark.parametrize(
    "altered",
    [
        replace(seam(), key=SessionKey(seam().key.session_id, 1)),
        replace(seam(), trace_id=""),
        replace(seam(), model=Digest("")),
        replace(seam(), recipe=Digest("")),
        replace(seam(), upstream=SeamEnd(HEAD.node_id, LayerRange(0, 7))),
        replace(seam(), downstream=SeamEnd(TAIL.node_id, LayerRange(8, 31))),
        replace(seam(), upstream=SeamEnd(HEAD.node_id)),
    ],
    ids=["epoch", "trace", "model", "recipe", "opener's layers", "layers", "no layers"],
)
def test_a_receipt_is_good_for_its_own_seam_alone(altered: Seam) -> None:
    for side, statement in signed().statements:
        with pytest.raises(UnauthenticatedError, match="signed"):
            require_statement(altered, statement, side)
    assert len(fields(Seam)) == 6, "another field needs another case"


def test_nobody_signs_for_another_or_for_the_other_side() -> None:
    receipt = signed()
    assert receipt.downstream is not None
    assert receipt.upstream is not None
    forged = STRANGER.sign(receipt.seam, WORK, Side.DOWNSTREAM)
    with pytest.raises(UnauthenticatedError, match="key"):
        require_statement(receipt.seam, forged, Side.DOWNSTREAM)
    # With the right key beside a signature of another.
    with pytest.raises(UnauthenticatedError, match="signed"):
        require_statement(
            receipt.seam,
            replace(forged, public_key=receipt.downstream.public_key),
            Side.DOWNSTREAM,
        )
    own = HEAD.sign(receipt.seam, WORK, Side.DOWNSTREAM)
    with pytest.raises(UnauthenticatedError, match="signed"):
        require_statement(receipt.seam, own, Side.UPSTREAM)


def test_a_key_of_another_kind_is_refused() -> None:
    key = ed25519.Ed25519PrivateKey.generate().public_key()
    der = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    for public in (der, b"no key"):
        # The holder of the id that is made from it.
        holder = SeamEnd(NodeId(hashlib.sha256(public).hexdigest()[:16]), LayerRange(8, 30))
        place = replace(seam(), downstream=holder)
        statement = replace(signed().statements[0][1], public_key=public.hex())
        with pytest.raises(UnauthenticatedError, match="key"):
            require_statement(place, statement, Side.DOWNSTREAM)


@pytest.mark.parametrize(
    ("name", "epoch", "recipe", "gets_one"),
    [
        ("sitzung-ä", MOST - 1, "", True),
        ("x" * 64, 0, "y" * 100, True),
        ("x" * 65, 0, "", False),
        ("nul\0", 0, "", False),
        ("\x1b[2J", 0, "", False),
        ("gen-1", MOST, "", False),
        ("gen-1", 0, "y" * 101, False),
    ],
)
def test_a_session_that_no_message_database_or_terminal_could_take_gets_no_receipt(
    name: str, epoch: int, recipe: str, gets_one: bool
) -> None:
    terms = replace(
        TERMS,
        key=SessionKey(RouteSessionId(name), epoch),
        fingerprint=replace(TERMS.fingerprint, runtime_recipe_digest=Digest(recipe)),
    )
    assert (seam_of(terms, SeamEnd(HEAD.node_id)) is not None) is gets_one
    assert seam_of(terms, SeamEnd(terms.hops[0].node_id)) is None


def test_a_book_keeps_the_newest_and_counts_what_it_dropped() -> None:
    book = ReceiptBook(HEAD, kept=2)
    receipts = [signed(session=f"gen-{number}") for number in range(3)]
    for receipt in receipts:
        book.file(receipt)
    alone = one_sided(Side.DOWNSTREAM)
    book.file(alone)
    assert book.dropped == 2
    assert book.counts == {ReceiptState.SIGNED: 3, ReceiptState.DOWNSTREAM_ONLY: 1}
    assert book.take(1) == (receipts[2],)
    assert book.take(9) == (alone,)
    assert book.take(9) == ()
