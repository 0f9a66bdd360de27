"""A node's configuration travels to its process as JSON and comes out the same."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, LayerRangeError
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.engine.base import EngineLimits
from meshnet.engine.fixture import Fault, FaultKind
from meshnet.node.config import FixtureEngineConfig, LlamaEngineConfig, NodeConfig

DIGEST = Digest("sha256:" + "ab" * 32)
texts = st.text(min_size=1, max_size=20)
engines = st.one_of(
    st.builds(
        FixtureEngineConfig,
        st.lists(
            st.builds(Fault, st.sampled_from(FaultKind), st.integers(0, 99), st.integers(0, 9)),
            max_size=3,
        ).map(tuple),
        st.floats(0, 1),
    ),
    st.builds(
        LlamaEngineConfig,
        texts.filter(lambda text: "\0" not in text).map(Path),
        st.just(DIGEST),
        st.just(DIGEST),
        texts,
        flash_attention=st.booleans(),
    ),
)
configs = st.builds(
    NodeConfig,
    texts.map(NodeId),
    st.integers(0, 5),
    st.integers(6, 9),
    st.just(9),
    engines,
    texts,
    st.none() | texts.map(Address),
    st.builds(EngineLimits, st.integers(1, 9999), st.integers(8, 20), st.integers(1, 4)),
    st.builds(FlowControl, st.integers(1, 9), max_sessions=st.integers(1, 8)),
    st.integers(1, 128),
)


@given(configs)
def test_it_comes_back_from_json_as_it_was(config):
    line = config.to_json()
    assert b"\n" not in line
    assert NodeConfig.from_json(line) == config


def fixture_node(**changed: object) -> NodeConfig:
    values: dict[str, object] = {
        "node_id": NodeId("n"),
        "shard_start": 0,
        "shard_end": 2,
        "total_layers": 4,
        "engine": FixtureEngineConfig(),
        "limits": EngineLimits(max_sessions=4),
        "flow": FlowControl(max_sessions=4),
    }
    return NodeConfig(**(values | changed))  # type: ignore[arg-type]


def test_a_node_cant_take_more_sessions_than_its_engine():
    with pytest.raises(InvalidArgumentError, match=r"5 sessions.*room for 4"):
        fixture_node(flow=FlowControl(max_sessions=5))


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"shard_start": 2}, LayerRangeError),
        ({"shard_start": 3}, LayerRangeError),
        ({"shard_end": 5}, LayerRangeError),
        ({"shard_start": -1}, LayerRangeError),
        ({"chunk_tokens": 0}, InvalidArgumentError),
        ({"chunk_tokens": 129}, InvalidArgumentError),
        ({"node_id": NodeId("")}, InvalidArgumentError),
    ],
    ids=str,
)
def test_impossible_values_are_refused(changed, error):
    with pytest.raises(error):
        fixture_node(**changed)


@pytest.mark.parametrize(
    "text",
    [b"", b"{}", b"[]", b"\xff", b"{", b'{"node_id": 1}'],
)
def test_anything_else_is_an_error_that_says_what_it_is_about(text):
    with pytest.raises(InvalidArgumentError, match="node configuration"):
        NodeConfig.from_json(text)


def test_a_name_that_isnt_a_kind_of_engine_is_refused():
    line = fixture_node().to_json().replace(b'"fixture"', b'"quantum"')
    with pytest.raises(InvalidArgumentError, match="node configuration"):
        NodeConfig.from_json(line)


def test_a_value_the_type_itself_refuses_is_an_error_of_ours():
    line = fixture_node().to_json().replace(b'"chunk_credits":4', b'"chunk_credits":0')
    with pytest.raises(InvalidArgumentError, match="chunk_credits"):
        NodeConfig.from_json(line)
