"""What is charged and what is earned for an answer."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop, HopTimings
from meshnet.tracker.ledger import HOUSE, key_account, node_account
from meshnet.tracker.usage import MOST, GenerationUse, NodeUse, UsageRecord, joined

HOPS = (
    Hop(NodeId("a"), Address("h:1"), LayerRange(0, 3)),
    Hop(NodeId("b"), Address("h:2"), LayerRange(3, 4)),
)


def record(part: GenerationUse) -> UsageRecord:
    return UsageRecord(
        entry_id="chatcmpl-1",
        request_id="r",
        key_id="k",
        model="m",
        began_unix=1,
        seconds=2.0,
        end="done",
        prompt_tokens=part.prompt_tokens,
        cached_tokens=part.cached_tokens,
        completion_tokens=part.completion_tokens,
        token_layers=part.token_layers,
        nodes=joined([part]),
    )


def amounts(part: GenerationUse) -> dict[str, int]:
    return {posting.account: posting.amount for posting in record(part).entry().postings}


def test_all_that_is_paid_is_earned_by_the_layers() -> None:
    part = GenerationUse(10, 4, 5, HOPS)
    assert part.tokens == 10
    assert amounts(part) == {key_account("k"): -40, node_account("a"): 30, node_account("b"): 10}


def test_a_token_behind_the_answer_that_ended_it_makes_its_last_one_computed_too() -> None:
    assert GenerationUse(10, 4, 5, HOPS, ended=True).tokens == 11
    assert GenerationUse(10, 4, 0, HOPS).tokens == GenerationUse(10, 4, 0, HOPS, ended=True).tokens


def test_nodes_that_have_receipts_earn_by_them_and_the_house_gets_what_the_key_pays() -> None:
    part = GenerationUse(10, 4, 5, HOPS, signed=True)
    assert amounts(part) == {key_account("k"): -40, HOUSE: 40}
    assert [node.token_layers for node in joined([part, part])] == [60, 20]
    assert all(node.signed for node in joined([part, GenerationUse(1, 0, 1, HOPS)]))


def test_a_node_that_counts_more_earns_no_more() -> None:
    timings = (
        HopTimings(NodeId("a"), LayerRange(0, 3), 2**31, 700, 2**31, 300, boundary_bytes=64),
        HopTimings(NodeId("b"), LayerRange(0, 4), 6, 2**64 - 1, 8, 2**64 - 1),
        HopTimings(NodeId("stranger"), LayerRange(0, 4), 6, 1, 8, 1),
    )
    told, plain = GenerationUse(10, 4, 5, HOPS, timings), GenerationUse(10, 4, 5, HOPS)
    assert amounts(told) == amounts(plain)
    assert joined([told, told]) == (
        NodeUse("a", 60, 2000, 128),
        NodeUse("b", 20, 2 * MOST, 0),
    )


def test_a_generation_that_no_node_let_in_costs_nothing() -> None:
    assert record(GenerationUse(10, 0, 0, ())).entry().postings == ()


@given(
    cached=st.integers(0, 2**20),
    counts=st.tuples(st.integers(0, 2**20), st.integers(0, 2**20)),
    cuts=st.lists(st.integers(1, 200), max_size=8),
)
def test_whatever_the_chain_nothing_is_left_for_the_house(
    cached: int, counts: tuple[int, int], cuts: list[int]
) -> None:
    ends = [0, *accumulate(cuts)]
    hops = tuple(
        Hop(NodeId(f"n{index}"), Address("h:1"), LayerRange(start, end))
        for index, (start, end) in enumerate(pairwise(ends))
    )
    found = amounts(GenerationUse(counts[0], cached, counts[1], hops))
    assert HOUSE not in found
    assert sum(found.values()) == 0
    assert all((amount < 0) == (name == key_account("k")) for name, amount in found.items())


def test_negative_counts_are_refused_by_name() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        record(GenerationUse(-1, 0, 0, ()))
    assert caught.value.details["field"] == "prompt_tokens"
