import asyncio

import pytest
from starlette.requests import ClientDisconnect

from meshnet.domain.errors import CancelledError, NodeLostError
from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.domain.ids import NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import HopTimings
from meshnet.gateway.flights import KEPT, Flight, Flights
from meshnet.gateway.machines import RequestState
from meshnet.session.service import GenerationSummary, TextDelta

DELTA = TextDelta("ab", (GeneratedToken(0, 1), GeneratedToken(1, 2)))
HOP = HopTimings(NodeId("head"), LayerRange(0, 2), 3, 5_000_000, 4, 8_000_000)


def flight(name: str = "r", choices: int = 1) -> Flight:
    return Flight(name, "m", 7, choices)


def summary(reason: FinishReason = FinishReason.STOP) -> GenerationSummary:
    return GenerationSummary(reason, 7, 4, 0.1, 0.5, timings=(HOP,))


def test_a_request_waits_reads_its_prompt_answers_and_is_done() -> None:
    flights = Flights()
    with flights.entered(flight()) as it:
        assert it.view().state is RequestState.WAITING
        with it.generating():
            assert it.view().state is RequestState.PROMPT
            it.take(DELTA)
            (seen,) = flights.views()
            assert (seen.state, seen.completion_tokens, seen.hops) == (RequestState.ANSWER, 2, ())
            it.take(summary())
    (over,) = flights.views()
    assert (over.state, over.end, over.exact) == (RequestState.DONE, "stop", True)
    assert over.hops[0].prefill_engine == 5.0
    assert over.hops[0].decode_engine == 2.0
    assert over.first_token_seconds is not None


@pytest.mark.parametrize(
    ("error", "state", "end"),
    [
        (CancelledError("by its id"), RequestState.CANCELLED, "cancelled"),
        (ClientDisconnect("gone"), RequestState.CANCELLED, "left"),
        (asyncio.CancelledError(), RequestState.CANCELLED, "left"),
        (NodeLostError("head is gone"), RequestState.FAILED, "node_lost"),
        (RuntimeError("a bug"), RequestState.FAILED, "internal"),
    ],
)
def test_how_it_ended_is_told(error: BaseException, state: RequestState, end: str) -> None:
    flights = Flights()
    with pytest.raises(type(error)), flights.entered(flight()):
        raise error
    (over,) = flights.views()
    assert (over.state, over.end, over.state.over) == (state, end, True)


def test_tokens_are_those_of_all_answers_and_the_oldest_are_forgotten_as_requests_alone() -> None:
    flights = Flights()
    for number in range(KEPT + 3):
        with flights.entered(flight(str(number))) as it:
            it.take(DELTA)
    with flights.entered(flight("now")) as it:
        it.take(DELTA)
        views = flights.views()
        assert views[0].request_id == "now"
        assert [it.request_id for it in views[1:3]] == [str(KEPT + 2), str(KEPT + 1)]
        assert len(views) == KEPT + 1
        assert flights.tokens == 2 * (KEPT + 4)
