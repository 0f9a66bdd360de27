"""The C++ client drives live Python nodes, and notices when one computes something else."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

import pytest

from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.engine.fixture import Fault, FaultKind
from tests.support.external_node import (
    LAYERS,
    ExternalNode,
    Language,
    NodeSetup,
    external_chain,
    native_binary,
)

pytestmark = pytest.mark.native

TIMEOUT = 60.0


def _drive(addresses: Sequence[Address]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [native_binary("node_client"), *addresses],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


@pytest.mark.parametrize(
    ("languages", "cuts"),
    [
        (("python",), ()),
        (("python", "python", "python"), (2, 4)),
        (("native", "native", "native"), (2, 4)),
        (("native", "python"), (3,)),
    ],
    ids=["python", "pythons", "natives", "mixed"],
)
def test_a_chain_says_what_the_client_computes_for_itself(
    languages: Sequence[Language], cuts: Sequence[int]
) -> None:
    with external_chain(languages, cuts) as nodes:
        addresses = [node.address for node in nodes]
        for part in (addresses, addresses[1:]):
            if part:
                done = _drive(part)
                assert (done.returncode, done.stderr) == (0, ""), done.stdout
                assert done.stdout.endswith(" comparisons, 0 differences\n")


@pytest.mark.parametrize("layers", [LayerRange(0, LAYERS), LayerRange(3, LAYERS)], ids=str)
def test_a_node_that_computes_something_else_is_noticed(layers: LayerRange) -> None:
    wrong = (Fault(FaultKind.WRONG_OUTPUT, at_step=3),)
    with ExternalNode("python", NodeSetup(layers, NodeId("wrong"), faults=wrong)) as node:
        done = _drive([node.address])
    assert done.returncode == 1
    assert "DIFFERENT" in done.stderr


def test_a_chain_with_a_gap_is_noticed() -> None:
    with external_chain(("python", "python", "python"), (2, 4)) as nodes:
        done = _drive([nodes[0].address, nodes[2].address])
    assert done.returncode == 1
    assert "where the layers join" in done.stderr


def test_a_node_that_is_not_there_is_an_error() -> None:
    done = _drive([Address("127.0.0.1:1")])
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
