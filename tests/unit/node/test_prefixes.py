"""How much of a kept cache a prompt may use, against an engine whose bits depend on the borders."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.ids import Address, Digest, NodeId, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop
from meshnet.domain.recipe import Recipe
from meshnet.node.prefixes import (
    Pieces,
    Prefix,
    Reuse,
    Route,
    best_reuse,
    common_length,
    joined_pieces,
    reusable_tokens,
)

HOPS = (Hop(NodeId("n"), Address("n"), LayerRange(0, 4)),)
ROUTE = Route(HOPS, Recipe(Digest("sha256:" + "0" * 64), "fixture", "1").fingerprint())
tokens = st.lists(st.integers(0, 2), min_size=1, max_size=40).map(tuple)
chunks = st.integers(1, 8)


def key(name: object) -> SessionKey:
    return SessionKey(RouteSessionId(str(name)), 0)


def computed(prompt: Sequence[int], chunk: int, start: int = 0) -> list[int]:
    """How many rows each of the prompt's positions shares its step with, from ``start`` on."""
    rows: list[int] = []
    position = start
    while position < len(prompt):
        end = min((position // chunk + 1) * chunk, len(prompt))
        rows += [end - position] * (end - position)
        position = end
    return rows


def kernel(rows: int, pieces: Pieces | None) -> object:
    """Steps of so many rows have the same bits if their kernels are equal."""
    if pieces is not None and pieces[0] <= rows <= pieces[1]:
        return "any"
    return rows


prompts = st.tuples(tokens, tokens, tokens, tokens)


@given(prompts, chunks, st.none() | st.sampled_from([(1, 8), (2, 8), (3, 4)]))
def test_what_is_reused_has_the_bits_of_a_fresh_prefill(parts, chunk, pieces):
    shared, old_rest, new_rest, generated = parts
    old, new = shared + old_rest, shared + new_rest
    prefix = Prefix(key("old"), ROUTE, old, generated, pieces)
    count = reusable_tokens(new, prefix, chunk)
    assert 0 <= count < len(new)
    assert (old + generated)[:count] == new[:count]
    held = computed(old, chunk) + [1] * len(generated)
    fresh = [kernel(rows, pieces) for rows in computed(new, chunk)]
    after = computed(new, chunk, count)
    made = [kernel(rows, pieces) for rows in (*held[:count], *after)]
    assert made == fresh


@given(tokens, tokens, tokens)
def test_where_borders_dont_matter_everything_shared_is_reused_but_the_last_token(
    shared, old_rest, new_rest
):
    old, new = shared + old_rest, shared + new_rest
    prefix = Prefix(key("old"), ROUTE, old, (), (1, 8))
    expected = min(common_length(old, new), len(new) - 1)
    assert reusable_tokens(new, prefix, 8) == expected


def test_a_next_turn_reuses_the_answer_too_if_single_rows_have_the_same_bits():
    turn = Prefix(key("turn"), ROUTE, (1,) * 10, (2,) * 7, (1, 8))
    following = (1,) * 10 + (2,) * 7 + (3,) * 5
    assert reusable_tokens(following, turn, 8) == 17
    two = Prefix(key("turn"), ROUTE, (1,) * 10, (2,) * 7, (2, 8))
    assert reusable_tokens(following, two, 8) == 10
    none = Prefix(key("turn"), ROUTE, (1,) * 10, (2,) * 7, None)
    assert reusable_tokens(following, none, 8) == 8


def test_the_prefix_that_saves_the_most_is_taken_and_only_along_its_own_route():
    prompt = tuple(range(30))
    short = Prefix(key("short"), ROUTE, prompt[:9], (), (1, 8))
    long = Prefix(key("long"), ROUTE, prompt[:20], (), (1, 8))
    assert best_reuse(prompt, [short, long], ROUTE, 8) == Reuse(key("long"), 20)
    assert best_reuse(prompt, [short], ROUTE, 16) is None, "less than a chunk saves too little"
    later = Prefix(key("later"), ROUTE, prompt[:20], (), (1, 8))
    assert best_reuse(prompt, [long, later], ROUTE, 8) == Reuse(key("later"), 20)
    elsewhere = Route(HOPS * 2, ROUTE.fingerprint)
    assert best_reuse(prompt, [short, long], elsewhere, 8) is None


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_the_common_length_is_where_the_first_difference_is(one, other):
    length = common_length(one, other)
    assert one[:length] == other[:length]
    assert one[length : length + 1] != other[length : length + 1] or length == len(one)


def test_pieces_of_a_chain_are_those_of_all_its_nodes():
    assert joined_pieces((1, 32), (2, 16)) == (2, 16)
    assert joined_pieces((4, 8), (16, 32)) is None
    assert joined_pieces(None, (1, 2)) is None
