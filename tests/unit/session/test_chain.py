"""Whether nodes form a chain, decided from what they say of themselves."""

import dataclasses
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import (
    FingerprintMismatchError,
    InvalidArgumentError,
    LayerRangeError,
)
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Capability, FlowControl
from meshnet.domain.recipe import Recipe
from meshnet.domain.tensors import DType
from meshnet.session.chain import assemble_chain

RECIPE = Recipe(Digest("sha256:" + "0" * 64), "fixture", "1")
TOTAL = 12


def node(start: int, end: int, context: int = 100) -> tuple[Address, Capability]:
    name = f"holds-{start}-{end}"
    capability = Capability(
        NodeId(name),
        LayerRange(start, end),
        TOTAL,
        RECIPE.fingerprint(),
        RECIPE.model_digest,
        "fixture",
        context,
        FlowControl(),
    )
    return Address(f"{name}:1"), capability


def nodes_of(cuts: list[int]) -> list[tuple[Address, Capability]]:
    return [node(a, b) for a, b in itertools.pairwise([0, *cuts, TOTAL])]


cuts = st.sets(st.integers(1, TOTAL - 1)).map(sorted)


@given(cuts)
def test_nodes_whose_ranges_join_are_a_chain(edges):
    found = nodes_of(edges)
    chain = assemble_chain(found)
    assert [hop.address for hop in chain.hops] == [address for address, _ in found]
    assert chain.head is chain.hops[0]
    assert chain.fingerprint == RECIPE.fingerprint()


@given(cuts.filter(bool), st.data())
def test_a_missing_node_is_a_gap(edges, data):
    found = nodes_of(edges)
    del found[data.draw(st.integers(0, len(found) - 1))]
    with pytest.raises(LayerRangeError):
        assemble_chain(found)


@given(cuts.filter(bool), st.randoms())
def test_another_order_is_no_chain(edges, random):
    found = nodes_of(edges)
    shuffled = random.sample(found, len(found))
    if shuffled != found:
        with pytest.raises(LayerRangeError):
            assemble_chain(shuffled)


def test_overlaps_and_repeats_are_refused():
    with pytest.raises(LayerRangeError):
        assemble_chain([node(0, 7), node(6, 12)])
    with pytest.raises(LayerRangeError):
        assemble_chain([node(0, 6), node(0, 6), node(6, 12)])


def test_the_chain_holds_what_its_smallest_node_holds():
    assert assemble_chain([node(0, 6, 50), node(6, 9, 20), node(9, 12, 70)]).context_length == 20


def test_a_node_with_another_recipe_is_named():
    address, other = node(6, 12)
    fingerprint = dataclasses.replace(RECIPE, engine_build="2").fingerprint()
    other = dataclasses.replace(other, fingerprint=fingerprint)
    with pytest.raises(FingerprintMismatchError, match="holds-6-12"):
        assemble_chain([node(0, 6), (address, other)])


def with_dtypes(found: tuple[Address, Capability], *dtypes: DType) -> tuple[Address, Capability]:
    return found[0], dataclasses.replace(found[1], dtypes=dtypes)


def test_seams_carry_what_every_node_takes_under_the_recipes_own_fingerprint():
    everything = with_dtypes(node(0, 6), *DType)
    some = with_dtypes(node(6, 12), DType.FLOAT32, DType.BFLOAT16)
    chain = assemble_chain([everything, some])
    assert chain.dtypes == (DType.FLOAT32, DType.BFLOAT16)
    narrow = chain.with_boundary(DType.BFLOAT16)
    recipe = dataclasses.replace(RECIPE, boundary_dtype=DType.BFLOAT16)
    assert narrow.fingerprint == recipe.fingerprint()
    assert narrow.boundary_dtype is DType.BFLOAT16
    assert chain.with_boundary(DType.FLOAT32) == chain
    with pytest.raises(InvalidArgumentError, match=r"boundary: .* bfloat16 already"):
        narrow.with_boundary(DType.FLOAT32)
    with pytest.raises(InvalidArgumentError, match=r"boundary: .* float32, bfloat16, but not q8_0"):
        chain.with_boundary(DType.Q8_0)


def test_no_node_is_no_chain():
    with pytest.raises(InvalidArgumentError, match="chain"):
        assemble_chain([])
