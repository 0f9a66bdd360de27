"""An error of a machine says which one; an error of a request isn't blamed on one."""

import pytest

from meshnet.domain.errors import (
    CancelledError,
    ContextLengthError,
    DeadlineExceededError,
    EngineError,
    InternalError,
    InvalidArgumentError,
    NodeLostError,
    ResourceExhaustedError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop
from meshnet.node.blame import at_node

HOP = Hop(NodeId("node-2"), Address("10.0.0.2:7000"), LayerRange(2, 4))


@pytest.mark.parametrize("kind", [EngineError, InternalError, ResourceExhaustedError])
def test_a_machines_trouble_is_placed(kind):
    placed = at_node(kind("no memory", needed="7"), HOP)
    assert type(placed) is kind
    assert placed.message == "node node-2 (layers [2, 4), 10.0.0.2:7000): no memory"
    assert placed.details == {"needed": "7", "node": "node-2", "layers": "[2, 4)"}


def test_what_names_a_node_already_keeps_that_name():
    lost = NodeLostError("lost node-3", node="node-3", layers="[4, 6)")
    assert at_node(lost, HOP) is lost


@pytest.mark.parametrize(
    "error",
    [
        InvalidArgumentError("top_p", "no"),
        ContextLengthError("too long"),
        CancelledError("enough"),
        DeadlineExceededError("late"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_requests_own_trouble_is_left_alone(error):
    assert at_node(error, HOP) is error
