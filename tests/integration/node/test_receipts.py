"""What a chain's members sign when a session is over, however it ended."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from meshnet.domain.errors import MeshnetError
from meshnet.domain.frames import SessionOpened, TokenReply
from meshnet.domain.generation import GenerationSpec, Speculation
from meshnet.domain.receipts import Receipt, ReceiptState
from meshnet.engine.fixture import Fault, FaultKind
from meshnet.session.service import TextRequest
from meshnet.transport import countersigning
from meshnet.transport.receipts import ReceiptBook, require_statement
from tests.support.mesh import GREEDY, Mesh, Setup, ask, mesh, prompt_of, start, until

SIGNED = Setup(signed=True)
CUTS = (2, 4)


def books(made: Mesh) -> list[ReceiptBook]:
    """The gateway's, and those of the nodes, head first."""
    found = [made.channels.receipts, *(node.shard.parts.channels.receipts for node in made.nodes)]
    assert all(book is not None for book in found)
    return [book for book in found if book is not None]


async def filed(made: Mesh, *numbers: int, within: float = 2.0) -> list[tuple[Receipt, ...]]:
    """The receipts of everybody, once each has so many."""
    kept = books(made)
    try:
        await until(lambda: [sum(book.counts.values()) for book in kept] == list(numbers), within)
    except TimeoutError:
        raise AssertionError([book.counts for book in kept]) from None
    return [book.take(100) for book in kept]


def require_good(receipts: Iterable[Receipt]) -> None:
    for receipt in receipts:
        for side, statement in receipt.statements:
            require_statement(receipt.seam, statement, side)


def pairs(found: list[tuple[Receipt, ...]]) -> list[tuple[Receipt, Receipt]]:
    """By seam, what its opener and its receiver have; for one session."""
    every = [receipt for receipts in found for receipt in receipts]
    return [
        (one, other)
        for number, one in enumerate(every)
        for other in every[number + 1 :]
        if one.seam == other.seam
    ]


@pytest.mark.parametrize("speculation", [Speculation.OFF, Speculation.ON])
async def test_both_sides_of_every_seam_sign_the_same_numbers(speculation: Speculation) -> None:
    async with mesh(CUTS, SIGNED) as made:
        model = await made.model()
        prompt = prompt_of(30)
        answer = await ask(model, prompt, 20, speculation=speculation)
        found = await filed(made, 1, 2, 2, 1)
    require_good(receipt for receipts in found for receipt in receipts)
    both = pairs(found)
    assert len(both) == 3
    assert all(one == other and one.state is ReceiptState.SIGNED for one, other in both)
    # The last token was chosen, and its own position never computed.
    positions = len(prompt) + len(answer.tokens) - 1
    assert [one.work.tokens for one, _ in both] == [positions] * 3
    for one, _ in both:
        assert one.work.prefill_rows == 30
        assert 0 < one.work.engine_nanos <= one.work.wall_nanos
        assert one.seam.trace_id
    gateway, *seams = (one for one, _ in both)
    assert (gateway.work.bytes_down, gateway.work.bytes_up) == (4 * 30, 4 * 20)
    width = made.head.engine.capabilities().n_embd
    for receipt in seams:
        rows = receipt.work.prefill_rows + receipt.work.decode_rows
        assert receipt.work.bytes_down == rows * width * 4
        # Tokens went straight from the tail to the head.
        assert receipt.work.bytes_up == 0


async def test_tokens_that_go_back_over_the_seam_are_counted_there() -> None:
    async with mesh((3,), SIGNED) as made:
        await ask(await made.model(), prompt_of(9), 5)
        _, _, (tail,) = await filed(made, 1, 2, 1)
    assert tail.state is ReceiptState.SIGNED
    assert tail.work.bytes_up == 4 * 5


async def test_a_reader_who_leaves_and_the_nodes_still_agree() -> None:
    async with mesh(CUTS, SIGNED) as made:
        model = await made.model()
        events = model.generate(TextRequest(prompt_of(20), GREEDY, 100))
        for _ in range(4):
            await anext(events)
        await events.aclose()
        found = await filed(made, 1, 2, 2, 1)
    require_good(receipt for receipts in found for receipt in receipts)
    both = pairs(found)
    assert len(both) == 3
    assert all(one == other and one.state is ReceiptState.SIGNED for one, other in both)
    assert all(one.work.tokens >= 20 + 3 for one, _ in both)


@pytest.mark.parametrize(("place", "step"), [(0, 7), (1, 2), (2, 2), (2, 9)])
async def test_a_session_that_failed_has_receipts_for_what_passed(place: int, step: int) -> None:
    fault = Fault(FaultKind.EXCEPTION, step)
    async with mesh(CUTS, Setup(signed=True, faults={place: (fault,)})) as made:
        with pytest.raises(MeshnetError):
            await ask(await made.model(), prompt_of(30), 20)
        found = await filed(made, 1, 2, 2, 1)
    both = pairs(found)
    assert len(both) == 3
    assert all(one == other and one.state is ReceiptState.SIGNED for one, other in both)


async def test_what_a_kept_cache_stands_for_is_in_no_receipt() -> None:
    async with mesh((3,), Setup(signed=True, keep_seconds=60)) as made:
        model, prompt = await made.model(), prompt_of(40)
        await ask(model, prompt, 4)
        again = await ask(model, prompt, 4)
        gateway, head, tail = await filed(made, 2, 4, 2)
        # What is kept for a gateway goes with it.
        await made.channels.close()
    cached = again.summary.cached_tokens
    assert cached > 0
    for receipts in (gateway, head[::2], tail):
        tokens = sorted(receipt.work.tokens for receipt in receipts)
        assert tokens == [40 + 3 - cached, 40 + 3]


async def test_a_node_that_is_lost_leaves_the_word_of_its_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(countersigning, "PATIENCE_SECONDS", 0.2)
    async with mesh(CUTS, SIGNED) as made:
        channel = await made.channel()
        spec = GenerationSpec(prompt_of(20), GREEDY, 200)
        listener, _ = start(channel, made.terms(), spec, 4)
        await listener.until(TokenReply)
        await made.lose(2)
        kept = books(made)
        await until(lambda: kept[2].counts.total() == 2, 4.0)
        receipts = kept[2].take(10)
        await made.lose(1)
    alone = [each for each in receipts if each.state is ReceiptState.UPSTREAM_ONLY]
    assert [each.seam.downstream.node_id for each in alone] == [made.hops[2].node_id]
    require_good(receipts)
    assert alone[0].work.tokens >= 20


async def test_an_opener_that_names_nobody_gets_no_receipt() -> None:
    async with mesh((), SIGNED) as made:
        channel = await made.channel()
        spec = GenerationSpec(prompt_of(9), GREEDY, 3)
        listener, _ = start(channel, made.terms(), spec)
        assert isinstance(await listener.next(), SessionOpened)
        await made.idle()
        assert [book.counts.total() for book in books(made)] == [0, 0]
