"""Nodes to try the server's contract on: the Python worker, and the C++ node beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.transport.base import ClientSeam, Peer
from meshnet.transport.seam_client import GrpcTransport
from tests.support.external_node import LAYERS, ExternalNode, Language, NodeSetup

TIMEOUT = 5.0


@pytest.fixture(
    scope="session", params=["python", pytest.param("native", marks=pytest.mark.native)]
)
def language(request: pytest.FixtureRequest) -> Language:
    """In which language the node under test is written."""
    written: Language = request.param
    return written


@pytest.fixture(scope="session")
def tail(language: Language) -> Iterator[ExternalNode]:
    """A node with the last three of six layers."""
    with ExternalNode(language, NodeSetup(LayerRange(3, LAYERS), NodeId("tail"))) as node:
        yield node


@pytest.fixture(scope="session")
def whole(language: Language) -> Iterator[ExternalNode]:
    """A node with all layers."""
    with ExternalNode(language, NodeSetup(LayerRange(0, LAYERS), NodeId("whole"))) as node:
        yield node


@pytest.fixture
async def tail_peer(tail: ExternalNode) -> AsyncIterator[Peer]:
    """A connection to the tail."""
    peer = GrpcTransport().peer(tail.address)
    yield peer
    await peer.close()


@pytest.fixture
async def tail_seam(tail_peer: Peer) -> AsyncIterator[ClientSeam]:
    """A stream to the tail."""
    seam = await tail_peer.open_seam(TIMEOUT)
    yield seam
    await seam.close()


@pytest.fixture
async def whole_peer(whole: ExternalNode) -> AsyncIterator[Peer]:
    """A connection to the node with all layers."""
    peer = GrpcTransport().peer(whole.address)
    yield peer
    await peer.close()


@pytest.fixture
async def whole_seam(whole_peer: Peer) -> AsyncIterator[ClientSeam]:
    """A stream to the node with all layers."""
    seam = await whole_peer.open_seam(TIMEOUT)
    yield seam
    await seam.close()
