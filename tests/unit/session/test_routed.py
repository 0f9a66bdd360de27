"""Chains that change while a model is served."""

import asyncio
from dataclasses import replace

import pytest

from meshnet.domain.errors import (
    ContextLengthError,
    DeadlineExceededError,
    FingerprintMismatchError,
    InvalidArgumentError,
    MeshnetError,
    NodeLostError,
    NodeNotReadyError,
    NodeUnreachableError,
)
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Capability, Hop
from meshnet.session import routed as routed_module
from meshnet.session.routed import RoutedChains
from tests.support.frames import CAPABILITY

MODEL = CAPABILITY.fingerprint.model_artifact_digest


def capability(name: str, start: int, end: int) -> Capability:
    return replace(CAPABILITY, node_id=NodeId(name), layers=LayerRange(start, end), total_layers=4)


class Peers:
    """A channel pool without channels: what each address says."""

    def __init__(self, **there: Capability) -> None:
        self.there = there
        self.asked: list[str] = []
        self.wrong: dict[str, MeshnetError] = {}
        self.hold: asyncio.Event | None = None

    def peer(self, address, node_id=None):
        peers = self

        class Peer:
            async def capability(self, timeout_seconds, padding_bytes=0):
                peers.asked.append(address)
                if peers.hold is not None:
                    await peers.hold.wait()
                if address in peers.wrong:
                    raise peers.wrong[address]
                if address not in peers.there:
                    raise NodeUnreachableError(f"{address} is gone")
                return peers.there[address]

        return Peer()


class Table:
    """Routes as a test sets them."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.instead: tuple[str, ...] = ()
        """The names after one of them erred."""
        self.failed: list[str] = []
        self.begun: list[object] = []
        self.done: list[object] = []

    async def route(self):
        if not self.names:
            raise NodeNotReadyError("layers [0, 4)")
        step = 4 // len(self.names)
        return tuple(
            Hop(NodeId(name), Address(name), LayerRange(i * step, (i + 1) * step))
            for i, name in enumerate(self.names)
        )

    def took(self, hops):
        self.begun.append(hops)

    def worked(self, hops):
        self.done.append(hops)

    def erred(self, node_id):
        self.failed.append(node_id)
        self.names = self.instead or self.names


@pytest.fixture
def peers() -> Peers:
    halves = {"a": (0, 2), "b": (2, 4), "c": (2, 4), "d": (0, 4)}
    return Peers(**{name: capability(name, *layers) for name, layers in halves.items()})


def chains(table: Table, peers: Peers, digest: Digest = MODEL) -> RoutedChains:
    return RoutedChains(table, peers, digest, 64)  # type: ignore[arg-type]


async def test_nodes_are_asked_once_as_long_as_the_route_stays(peers):
    table = Table("a", "b")
    routed = chains(table, peers)
    first = await routed.current()
    assert [hop.node_id for hop in first.hops] == ["a", "b"]
    assert await routed.current() is first
    assert peers.asked == ["a", "b"]
    table.names = ("a", "c")
    assert [hop.node_id for hop in (await routed.current()).hops] == ["a", "c"]


async def test_missing_layers_are_told_as_the_routes_tell_them(peers):
    with pytest.raises(NodeNotReadyError, match=r"\[0, 4\)"):
        await chains(Table(), peers).current()


async def test_a_node_that_is_gone_is_told_to_who_keeps_the_routes(peers):
    table = Table("a", "b")
    del peers.there["b"]
    with pytest.raises(NodeUnreachableError, match="b"):
        await chains(table, peers).current()
    assert table.failed == ["b"]


async def test_after_a_failed_generation_the_nodes_are_asked_again(peers):
    table = Table("a", "b")
    routed = chains(table, peers)
    await routed.current()
    with pytest.raises(NodeLostError):
        async with routed.used(5.0):
            raise NodeLostError("gone", node="b")
    assert (table.failed, table.done) == (["b"], [])
    await routed.current()
    assert peers.asked == ["a", "b"] * 2


async def test_generations_are_told_to_who_keeps_the_routes(peers):
    table = Table("a", "b")
    routed = chains(table, peers)
    await routed.current()
    assert table.begun == []
    async with routed.used(5.0) as chain:
        assert (table.begun, table.done) == ([chain.hops], [])
    assert table.done == [chain.hops]
    with pytest.raises(ContextLengthError):
        async with routed.used(5.0):
            raise ContextLengthError("too long")
    assert (len(table.begun), len(table.done), table.failed) == (2, 1, [])


async def test_a_node_with_other_layers_than_the_route_says_is_not_used(peers):
    table = Table("a", "b")
    peers.there["b"] = capability("b", 3, 4)
    with pytest.raises(NodeNotReadyError, match=r"\[3, 4\)"):
        await chains(table, peers).current()
    assert table.failed == ["b"]


async def test_nodes_of_another_model_are_refused(peers):
    with pytest.raises(FingerprintMismatchError, match="another model"):
        await chains(Table("d"), peers, Digest("sha256:" + "9" * 64)).current()


async def test_requests_that_wait_for_a_dead_chain_share_one_check_and_take_the_next(peers):
    table = Table("a", "b")
    table.instead = ("a", "c")
    del peers.there["b"]
    peers.hold = asyncio.Event()
    routed = chains(table, peers)
    waiting = [asyncio.create_task(routed.current()) for _ in range(5)]
    await asyncio.sleep(0)
    peers.hold.set()
    found = await asyncio.gather(*waiting)
    assert {chain.hops[1].node_id for chain in found} == {"c"}
    assert (table.failed, peers.asked) == (["b"], ["a", "b", "a", "c"])


async def test_a_check_goes_on_for_others_when_one_request_is_out_of_time(peers):
    peers.hold = asyncio.Event()
    routed = chains(Table("a", "b"), peers)
    other = asyncio.create_task(routed.current())
    with pytest.raises(DeadlineExceededError, match="before the deadline"):
        async with routed.used(0.01):
            pass
    peers.hold.set()
    assert (await other).hops
    assert peers.asked == ["a", "b"]


async def test_chains_without_the_node_that_erred_stay_checked(peers):
    table = Table("a", "b")
    routed = chains(table, peers)
    first = await routed.current()
    table.names = ("d",)
    other = await routed.current()
    with pytest.raises(NodeLostError):
        async with routed.used(5.0):
            raise NodeLostError("gone", node="b")
    assert table.failed == ["b"]
    peers.asked.clear()
    table.names = ("a", "b")
    assert await routed.current() == first
    assert peers.asked == ["a", "b"]
    table.names = ("d",)
    assert await routed.current() == other


async def test_checked_chains_do_not_pile_up(peers, monkeypatch):
    monkeypatch.setattr(routed_module, "CHAINS_KEPT", 1)
    table = Table("a", "b")
    routed = chains(table, peers)
    for names in (("a", "b"), ("a", "c"), ("a", "b")):
        table.names = names
        await routed.current()
    assert peers.asked == ["a", "b", "a", "c", "a", "b"]


async def test_a_node_whose_address_is_none_is_passed_over(peers):
    table = Table("a", "b")
    table.instead = ("a", "c")
    peers.wrong["b"] = InvalidArgumentError("address", "is not host:port")
    assert (await chains(table, peers).current()).hops[1].node_id == "c"
    assert table.failed == ["b"]


async def test_a_node_that_computes_other_numbers_since_it_was_started_again_is_named(peers):
    table = Table("a", "b")
    recipe = replace(CAPABILITY.fingerprint, runtime_recipe_digest=Digest("sha256:" + "8" * 64))
    peers.there["b"] = replace(peers.there["b"], fingerprint=recipe)
    with pytest.raises(FingerprintMismatchError, match="recipe"):
        await chains(table, peers).current()
    assert table.failed == ["b"]


async def test_a_chain_that_refuses_a_fingerprint_in_use_is_checked_again(peers):
    routed = chains(Table("a", "b"), peers)
    with pytest.raises(FingerprintMismatchError):
        async with routed.used(5.0):
            raise FingerprintMismatchError("the worker was started with another library")
    await routed.current()
    assert peers.asked == ["a", "b"] * 2
