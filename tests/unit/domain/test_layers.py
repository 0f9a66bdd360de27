import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, LayerRangeError
from meshnet.domain.layers import (
    LayerRange,
    balanced_ranges,
    parse_layer_range,
    require_chain,
)


@pytest.mark.parametrize(("start", "end"), [(0, 0), (3, 2), (-1, 2)])
def test_an_empty_or_negative_range_is_refused(start, end):
    with pytest.raises(LayerRangeError):
        LayerRange(start, end)


def test_ranges_are_half_open():
    layers = LayerRange(2, 5)
    assert list(layers) == [2, 3, 4]
    assert 5 not in layers
    assert str(layers) == "[2, 5)"


@given(st.integers(1, 80), st.data())
def test_layers_of_equal_weight_form_a_chain_of_nearly_equal_parts(total, data):
    shards = data.draw(st.integers(1, min(total, 6)))
    ranges = balanced_ranges([1] * total, 0, shards, range(1, total))
    require_chain(ranges, total)
    sizes = {len(held) for held in ranges}
    assert len(ranges) == shards
    assert max(sizes) - min(sizes) <= 1


def _heaviest(weights: Sequence[int], tail: int, edges: Sequence[int]) -> int:
    parts = [sum(weights[a:b]) for a, b in itertools.pairwise(edges)]
    parts[-1] += tail
    return max(parts)


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=9),
    st.integers(0, 100),
    st.data(),
)
def test_balanced_ranges_are_as_good_as_the_best_of_all_ways(weights, tail, data):
    total = len(weights)
    cuts = data.draw(st.sets(st.integers(1, total - 1)) if total > 1 else st.just(set()))
    shards = data.draw(st.integers(1, len(cuts) + 1))
    ranges = balanced_ranges(weights, tail, shards, cuts)
    require_chain(ranges, total)
    assert {held.start for held in ranges} <= cuts | {0}
    edges = [*(held.start for held in ranges), total]
    best = min(
        _heaviest(weights, tail, (0, *chosen, total))
        for chosen in itertools.combinations(sorted(cuts), shards - 1)
    )
    assert _heaviest(weights, tail, edges) == best


def test_a_heavy_tail_gets_fewer_layers_and_equal_layers_are_dealt_out_evenly():
    assert balanced_ranges([1] * 30, 8, 2, range(30)) == (LayerRange(0, 19), LayerRange(19, 30))
    sizes = sorted(map(len, balanced_ranges([1] * 32, 0, 5, range(32))))
    assert sizes == [6, 6, 6, 7, 7]


@pytest.mark.parametrize("shards", [0, 4])
def test_more_shards_than_the_cuts_allow_name_the_option(shards):
    with pytest.raises(InvalidArgumentError, match=r"nodes.*1 to 3"):
        balanced_ranges([1] * 30, 0, shards, {10, 20})


@pytest.mark.parametrize(
    ("ranges", "layer"),
    [
        ([(0, 10), (11, 30)], "10"),
        ([(0, 10), (9, 30)], "10"),
        ([(5, 30)], "0"),
        ([(0, 10)], "30"),
    ],
)
def test_a_broken_chain_names_the_layer(ranges, layer):
    with pytest.raises(LayerRangeError, match=layer):
        require_chain([LayerRange(*held) for held in ranges], 30)


@pytest.mark.parametrize("text", ["", "3", "a:b", "1-2", "1:2:3", "-1:3"])
def test_a_range_that_cant_be_read_is_named(text):
    with pytest.raises(InvalidArgumentError, match="A:B"):
        parse_layer_range(text)


def test_a_range_past_the_model_says_how_many_layers_there_are():
    with pytest.raises(LayerRangeError, match="30 layers"):
        LayerRange(0, 31).within(30)
