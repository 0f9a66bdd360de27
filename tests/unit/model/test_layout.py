import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.layout import Layout, Structure, lay_out, nulls_computed
from meshnet.model.rules import Architecture, Kind
from meshnet.model.variants import at_least, by_count, deepseek2_lite

NEEDS: tuple[Kind, ...] = ("sliding", "full", "recurrent", "attention", "sparse")


@st.composite
def structures(draw: st.DrawFn, period: int = 1) -> Structure:
    total = draw(st.integers(max(2, period), 14))
    dense = draw(st.integers(0, total))
    windows: st.SearchStrategy[Kind] = st.sampled_from(("sliding", "full"))
    mixers: st.SearchStrategy[Kind] = st.sampled_from(("recurrent", "attention", "plain"))
    kinds: list[tuple[Kind, ...]] = [
        (draw(windows), draw(mixers), "dense" if layer < dense else "sparse")
        for layer in range(total)
    ]
    return Structure(tuple(kinds), period, vocabulary=1000)


@st.composite
def ranges(draw: st.DrawFn, total: int) -> LayerRange:
    start = draw(st.integers(0, total - 1))
    shortest = 1 if start else 0
    end = draw(st.integers(start + 1, total - (1 - shortest)))
    return LayerRange(start, end)


def held(structure: Structure, layout: Layout) -> set[Kind]:
    return {kind for block in layout.blocks for kind in structure.kinds[block]}


@given(data=st.data())
def test_a_slice_has_every_kind_that_its_model_has_and_needs(data: st.DataObject) -> None:
    structure = data.draw(structures())
    needs = data.draw(st.sets(st.sampled_from(NEEDS)))
    layers = data.draw(ranges(structure.total))
    layout = lay_out(Architecture("a", needs=tuple(sorted(needs))), structure, layers)
    everything = {kind for kinds in structure.kinds for kind in kinds}
    assert needs & everything <= held(structure, layout)
    assert layout.real == layers
    assert layout.blocks[layout.last] == layers.end - 1
    assert len(layout.before) + len(layout.after) <= len(needs) + 1


@given(data=st.data())
def test_no_layer_without_experts_follows_one_with(data: st.DataObject) -> None:
    structure = data.draw(structures())
    layers = data.draw(ranges(structure.total))
    layout = lay_out(Architecture("a", needs=NEEDS), structure, layers)
    dense = ["dense" in structure.kinds[block] for block in layout.blocks]
    assert dense == sorted(dense, reverse=True)


@given(data=st.data(), period=st.integers(2, 5))
def test_every_layer_keeps_what_its_index_means(data: st.DataObject, period: int) -> None:
    structure = data.draw(structures(period))
    layers = data.draw(ranges(structure.total))
    recognise = data.draw(st.sampled_from((at_least(1), at_least(6))))
    rules = Architecture("a", needs=("sliding",), recognise=recognise)
    try:
        layout = lay_out(rules, structure, layers)
    except ModelUnsupportedError:
        # The only sliding layers are dense ones, which can't follow the slice's own with experts.
        assert "sparse" in {kind for layer in layers for kind in structure.kinds[layer]}
        assert not any({"sliding", "sparse"} <= set(kinds) for kinds in structure.kinds)
        return
    everything = {kind for kinds in structure.kinds for kind in kinds}
    assert {"sliding"} & everything <= held(structure, layout)
    assert len(layout.before) == layers.start % period
    assert all(block % period == i % period for i, block in enumerate(layout.blocks))


@given(data=st.data(), count=st.integers(3, 20))
def test_a_slice_is_taken_for_what_its_model_is(data: st.DataObject, count: int) -> None:
    structure = data.draw(structures())
    layers = data.draw(ranges(structure.total))
    recognise = data.draw(st.sampled_from((by_count(count), at_least(count))))
    try:
        layout = lay_out(Architecture("a", recognise=recognise), structure, layers)
    except ModelUnsupportedError:
        # A longer slice than the number that marks its model can't be: it would be the model.
        assert recognise(structure.total, 1000)
        assert len(layers) >= structure.total
        return
    assert recognise(len(layout.blocks), 32) == recognise(structure.total, 1000)


def test_a_kind_that_cant_come_again_is_refused_rather_than_looked_for_without_end() -> None:
    dense: tuple[Kind, ...] = ("sliding", "attention", "dense")
    sparse: tuple[Kind, ...] = ("full", "attention", "sparse")
    structure = Structure((dense, dense, sparse, sparse, sparse), 2, 1000)
    with pytest.raises(ModelUnsupportedError, match=r"\[2, 3\)"):
        lay_out(Architecture("a", needs=("sliding",)), structure, LayerRange(2, 3))


ALIKE: tuple[Kind, ...] = ("full", "attention", "dense")
SIX = Structure((ALIKE,) * 6, 1, 1000)


@pytest.mark.parametrize(
    ("ends", "after"), [((0, 2), (2,)), ((1, 3), ()), ((2, 6), ()), ((0, 5), (5,))]
)
def test_a_plain_slice_has_only_the_heads_stub(
    ends: tuple[int, int], after: tuple[int, ...]
) -> None:
    layout = lay_out(Architecture("a"), SIX, LayerRange(*ends))
    assert (layout.before, layout.after) == ((), after)
    assert nulls_computed(layout, 6) == 0


def test_a_head_that_must_flag_its_rows_has_no_stub() -> None:
    rules = Architecture("a", whole_vocabulary=True)
    assert lay_out(rules, SIX, LayerRange(0, 2)).after == ()


def test_one_layer_of_zeros_that_is_of_two_missing_kinds_is_enough() -> None:
    both: tuple[Kind, ...] = ("sliding", "recurrent", "dense")
    structure = Structure((both, ALIKE, ("sliding", "attention", "dense"), ALIKE), 1, 1000)
    rules = Architecture("a", needs=("sliding", "recurrent"))
    assert lay_out(rules, structure, LayerRange(3, 4)).after == (0,)


def test_a_kind_that_only_layers_without_experts_have_comes_first() -> None:
    structure = Structure(
        (("sliding", "attention", "dense"), *(("full", "attention", "sparse"),) * 3), 1, 1000
    )
    layout = lay_out(Architecture("a", needs=("sliding",)), structure, LayerRange(2, 3))
    assert (layout.before, layout.after) == ((0,), ())
    assert nulls_computed(layout, 4) == 1


def test_a_first_layer_of_the_wrong_kind_gets_one_in_front() -> None:
    structure = Structure((ALIKE, ("full", "plain", "dense"), ALIKE), 1, 1000)
    rules = Architecture("a", first="attention")
    assert lay_out(rules, structure, LayerRange(1, 2)).before == (0,)
    assert lay_out(rules, structure, LayerRange(2, 3)).before == ()


def test_the_stub_is_of_the_kind_that_a_last_layer_must_be() -> None:
    wide: tuple[Kind, ...] = (*ALIKE, "wide")
    structure = Structure((wide, wide, ALIKE, wide), 1, 1000)
    assert lay_out(Architecture("a", last="wide"), structure, LayerRange(0, 2)).after in {
        (1,),
        (3,),
    }


def test_a_slice_that_would_be_taken_for_another_model_whatever_is_added_is_refused() -> None:
    structure = Structure((ALIKE,) * 48, 1, vocabulary=128256)
    rules = Architecture("a", recognise=deepseek2_lite)
    assert len(lay_out(rules, structure, LayerRange(10, 30)).blocks) == 26
    with pytest.raises(ModelUnsupportedError, match="number of layers"):
        lay_out(rules, structure, LayerRange(10, 40))
