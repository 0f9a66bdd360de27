"""Receipts: what is signed, and what a receipt is worth."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest, NodeId, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import (
    MOST,
    Receipt,
    ReceiptState,
    Seam,
    SeamEnd,
    SeamWork,
    Side,
    signed_bytes,
)
from tests.support.frames import seam_works
from tests.support.receipts import WORK, one_sided, seam, signed

_texts = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), max_size=6)
_layers = st.builds(lambda start, count: LayerRange(start, start + count), *[st.integers(1, 9)] * 2)


@st.composite
def seams(draw: st.DrawFn) -> Seam:
    up, down = draw(st.lists(_texts.filter(bool), min_size=2, max_size=2, unique=True))
    session = RouteSessionId(draw(_texts.filter(bool)))
    return Seam(
        SessionKey(session, draw(st.integers(0, 3))),
        draw(_texts),
        Digest(draw(_texts)),
        Digest(draw(_texts)),
        SeamEnd(NodeId(up), draw(st.none() | _layers)),
        SeamEnd(NodeId(down), draw(_layers)),
    )


_said = st.tuples(seams(), seam_works(3), st.sampled_from(Side))


@given(_said, _said)
def test_what_differs_in_anything_has_other_bytes(
    one: tuple[Seam, SeamWork, Side], other: tuple[Seam, SeamWork, Side]
) -> None:
    assert (signed_bytes(*one) == signed_bytes(*other)) is (one == other)


def test_only_equal_numbers_of_both_sides_make_a_receipt_signed() -> None:
    more = replace(WORK, end_position=30, decode_rows=10)
    assert signed().state is ReceiptState.SIGNED
    disputed = signed(WORK, more)
    assert disputed.state is ReceiptState.DISPUTED
    assert disputed.differences == ("decode_rows", "end_position")
    assert one_sided(Side.UPSTREAM).state is ReceiptState.UPSTREAM_ONLY
    assert one_sided(Side.DOWNSTREAM).state is ReceiptState.DOWNSTREAM_ONLY
    assert one_sided(Side.DOWNSTREAM).differences == ()
    with pytest.raises(InvalidArgumentError, match="downstream"):
        Receipt(seam())


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("prefill_rows", {"prefill_rows": -1}),
        ("bytes_up", {"bytes_up": MOST}),
        ("end_position", {"first_position": 30}),
        ("ended_unix_nanos", {"ended_unix_nanos": 1}),
        ("engine_nanos", {"engine_nanos": 10**9 + 1}),
    ],
)
def test_numbers_that_cannot_be_are_refused_by_name(field: str, changes: dict[str, int]) -> None:
    with pytest.raises(InvalidArgumentError) as refusal:
        replace(WORK, **changes)
    assert refusal.value.details["field"] == field


def test_what_is_paid_for_is_each_position_once_by_layer() -> None:
    receipt = signed(replace(WORK, decode_rows=500))
    assert (receipt.work.tokens, receipt.seam.layers) == (29, 22)
