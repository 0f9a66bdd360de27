"""Chains from a tracker that may be away: what is asked, what is told, and what memory gives."""

import asyncio

import pytest

from meshnet.domain.errors import NodeNotReadyError, NodeUnreachableError
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop
from meshnet.tracker import remoteroutes
from meshnet.tracker.asking import MAX_TOLD, HopMessage, RouteReply, RouteRequest
from meshnet.tracker.lastroutes import KEPT, LastRoutes, Outcomes
from meshnet.tracker.remoteroutes import RemoteRoutes
from tests.support.clusters import MODEL, OTHER

A, B, C = (NodeId(letter * 16) for letter in "abc")


def hops(*nodes: NodeId) -> tuple[Hop, ...]:
    return tuple(
        Hop(node, Address("10.0.0.1:7000"), LayerRange(at, at + 1)) for at, node in enumerate(nodes)
    )


class Tracker:
    """Names the chain that a test sets, or isn't there."""

    def __init__(self) -> None:
        self.names: tuple[NodeId, ...] = (A, B)
        self.problem = ""
        self.away = False
        self.asked: list[RouteRequest] = []

    async def route(self, request):
        await asyncio.sleep(0)
        self.asked.append(request)
        if self.away:
            raise NodeUnreachableError("nobody there")
        named = () if request.model is None else hops(*self.names)
        return RouteReply(
            hops=tuple(
                HopMessage(
                    node_id=it.node_id,
                    address=it.address,
                    start=it.layers.start,
                    end=it.layers.end,
                )
                for it in named
            ),
            problem=self.problem,
        )


class Bench:
    """Routes with a clock and a tracker of the test's own, whose process may be away."""

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.now = 0.0
        self.settling = self.away = False
        self.routes = RemoteRoutes(self.tracker, self, lambda: self.now)
        self.model = self.routes.of(MODEL)

    def is_away(self) -> bool:
        return self.away

    def is_settling(self) -> bool:
        return self.settling


@pytest.fixture
def bench() -> Bench:
    return Bench()


async def test_the_tracker_names_the_chain_and_is_told_of_the_one_before(bench):
    assert await bench.model.route() == hops(A, B)
    bench.model.took(hops(A, B))
    bench.model.worked(hops(A))
    bench.model.erred(B)
    await bench.model.route()
    assert bench.tracker.asked[1] == RouteRequest(model=MODEL, took=(A, B), worked=(A,), erred=(B,))
    await bench.model.route()
    assert bench.tracker.asked[2] == RouteRequest(model=MODEL)


async def test_who_gets_a_chain_has_it_counted_before_the_next_is_chosen(bench):
    async def generation() -> None:
        bench.model.took(await bench.model.route())

    await asyncio.gather(*(generation() for _ in range(4)))
    assert [len(request.took) for request in bench.tracker.asked] == [0, 2, 2, 2]


async def test_without_the_tracker_its_last_chain_serves_and_nothing_is_untold(bench):
    await bench.model.route()
    bench.tracker.away = True
    bench.model.took(hops(A, B))
    assert await bench.model.route() == hops(A, B)
    assert await bench.model.route() == hops(A, B)
    assert len(bench.tracker.asked) == 2, "one that didn't answer isn't asked again at once"
    bench.tracker.away = False
    bench.now += remoteroutes.AWAY_SECONDS
    await bench.model.route()
    assert bench.tracker.asked[-1].took == (A, B)


async def test_without_the_tracker_a_chain_with_a_node_that_failed_is_no_choice(bench):
    await bench.model.route()
    bench.tracker.names = (A, C)
    await bench.model.route()
    bench.tracker.away = True
    bench.model.erred(C)
    assert await bench.model.route() == hops(A, B)
    bench.model.erred(A)
    with pytest.raises(NodeNotReadyError, match="tracker isn't there"):
        await bench.model.route()
    with pytest.raises(NodeNotReadyError):
        await bench.routes.of(OTHER).route()


async def test_what_the_tracker_says_is_missing_is_missing_unless_it_has_just_begun(bench):
    await bench.model.route()
    bench.tracker.names, bench.tracker.problem = (), "no node is ready with layers [0, 2)"
    bench.settling = True
    assert await bench.model.route() == hops(A, B)
    bench.settling = False
    with pytest.raises(NodeNotReadyError, match=r"\[0, 2\)"):
        await bench.model.route()
    bench.settling = True
    with pytest.raises(NodeNotReadyError, match=r"\[0, 2\)"):
        await bench.model.route()


async def test_a_tracker_whose_process_is_away_is_not_asked(bench):
    await bench.model.route()
    bench.away = True
    assert await bench.model.route() == hops(A, B)
    assert len(bench.tracker.asked) == 1


async def test_a_tracker_that_hangs_holds_a_generation_up_for_a_moment(bench, monkeypatch):
    await bench.model.route()
    monkeypatch.setattr(remoteroutes, "ANSWER_SECONDS", 0.01)

    async def hang(_request):
        await asyncio.Event().wait()

    bench.tracker.route = hang
    async with asyncio.timeout(1.0):
        assert await bench.model.route() == hops(A, B)


async def test_outcomes_are_told_also_when_nobody_wants_a_chain(bench, monkeypatch):
    monkeypatch.setattr(remoteroutes, "TELL_SECONDS", 0.001)
    telling = asyncio.create_task(bench.routes.tell())
    bench.tracker.away = True
    bench.model.worked(hops(A))
    async with asyncio.timeout(2.0):
        while not bench.tracker.asked:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        bench.tracker.away = False
        bench.now += remoteroutes.AWAY_SECONDS
        while len(bench.tracker.asked) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
    telling.cancel()
    assert bench.tracker.asked[1] == RouteRequest(worked=(A,))


def test_memory_is_bounded():
    last, outcomes = LastRoutes(), Outcomes()
    for number in range(KEPT + 1):
        last.named(MODEL, hops(NodeId(f"{number:016x}")))
    for number in range(KEPT, 0, -1):
        assert last.of(MODEL) == hops(NodeId(f"{number:016x}"))
        last.erred(f"{number:016x}")
    assert last.of(MODEL) is None
    outcomes.note("erred", [A] * MAX_TOLD)
    outcomes.note("erred", [B])
    told = outcomes.told(None)
    assert (len(told.erred), told.erred[-1]) == (MAX_TOLD, B)
    outcomes.note("erred", [C])
    outcomes.untold(told)
    assert outcomes.told(None).erred[-2:] == (B, C)
    assert not outcomes
