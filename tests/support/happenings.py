"""Any events of a cluster, for tests that hold for all of them."""

from __future__ import annotations

from hypothesis import strategies as st

from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.tracker import events as ev
from meshnet.tracker.leases import Hours
from meshnet.tracker.messages import Serving
from meshnet.tracker.placement import Demand, ModelShape, Objective
from tests.support.clusters import digest_of

names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=12)
nodes = st.sampled_from([NodeId(name) for name in "abcd"])
digests: st.SearchStrategy[Digest] = st.sampled_from([digest_of("a"), digest_of("b")])
tokens = st.sampled_from(["t1", "t2", ""])
counts = st.integers(0, 2**53 - 1)
minutes = st.integers(0, 24 * 60 - 1)
resources = st.builds(
    ev.Resources,
    counts,
    st.floats(1e-3, 1e15),
    st.none() | st.builds(Hours, minutes, minutes),
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    layers = tuple(draw(st.lists(counts, min_size=1, max_size=6)))
    cuts = tuple(cut for cut in range(1, len(layers)) if draw(st.booleans()))
    sizes = st.tuples(counts, counts, counts, counts, counts)
    embedding, output, shared, kv, boundary = draw(sizes)
    return ModelShape(
        layers, embedding, output, shared, kv, boundary, cuts, tied=draw(st.booleans())
    )


demands = st.builds(
    Demand,
    st.integers(1, 2**20),
    st.integers(1, 64),
    st.sampled_from(list(Objective)),
    st.floats(0, 1),
    counts,
)
servings = st.builds(
    Serving,
    context_length=st.integers(1, 2**20),
    sessions=st.integers(1, 8),
    flash_attention=st.booleans(),
)
ranges = st.builds(
    lambda start, length: LayerRange(start, start + length), st.integers(0, 6), st.integers(1, 6)
)
seats = st.lists(st.builds(ev.Seat, nodes, ranges), max_size=4).map(tuple)

events: st.SearchStrategy[ev.Event] = st.one_of(
    st.builds(ev.ClusterMade, names),
    st.builds(ev.TokenIssued, tokens, st.just("0" * 64), counts, st.integers(0, 3)),
    st.builds(ev.TokenRevoked, tokens),
    st.builds(ev.NodeJoined, nodes, names, tokens),
    st.builds(ev.NodeReincarnated, nodes, counts),
    st.builds(ev.NodeReported, nodes, resources),
    st.builds(ev.NodeDrained, nodes),
    st.builds(ev.NodeUndrained, nodes),
    st.builds(ev.NodeRemoved, nodes),
    st.builds(ev.NodeForgotten, nodes),
    st.builds(ev.ModelOffered, digests, names, shapes(), demands, servings),
    st.builds(ev.ModelWithdrawn, digests),
    st.builds(ev.Placed, digests, st.integers(0, 9), seats),
)
histories = st.lists(events, max_size=25)
