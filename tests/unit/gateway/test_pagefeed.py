"""What the dashboard is told, from readings that are handed in."""

import json
from dataclasses import replace
from typing import Any

import pytest

from meshnet.domain.layers import LayerRange
from meshnet.gateway.machines import (
    HopShare,
    LinkView,
    NetworkView,
    NodeState,
    NodeView,
    Operation,
    RequestState,
    RequestView,
    Work,
)
from meshnet.gateway.pagefeed import KEPT_POINTS, PageFeed, Reading

HEAD = NodeView(
    "head",
    NodeState.READY,
    "10.0.0.1:7000",
    LayerRange(0, 2),
    open_sessions=1,
    queued_steps=2,
    kv_used=50,
    kv_limit=200,
    memory_bytes=1000,
    prefill=Work(1, 0.5, 1, 0.1, 10),
    decode=Work(100, 1.0, 100, 0.1, 100),
)
TAIL = replace(HEAD, node_id="tail", layers=LayerRange(2, 4), queued_steps=None)
NETWORK = NetworkView(
    "m", 4, (HEAD, TAIL), (LinkView("", "head", 0.002), LinkView("head", "tail", sent_bytes=1000))
)


def request(**values: Any) -> RequestView:
    terms: dict[str, Any] = {
        "request_id": "r",
        "model": "m",
        "state": RequestState.ANSWER,
        "began_unix": 100.0,
        "seconds": 3.0,
        "prompt_tokens": 10,
        "completion_tokens": 21,
        "first_token_seconds": 1.0,
    }
    return RequestView(**(terms | values))


def worked(node: NodeView, seconds: float, steps: int) -> NodeView:
    assert node.decode is not None
    decode = node.decode
    more = replace(
        decode,
        steps=decode.steps + steps,
        step_seconds=decode.step_seconds + seconds,
        waits=decode.waits + steps,
        rows=decode.rows + steps,
    )
    return replace(node, decode=more)


def told(feed: PageFeed, reading: Reading) -> Any:
    return json.loads(json.dumps(feed.take(reading), allow_nan=False))


def test_rates_are_differences_by_the_time_between_two_readings() -> None:
    feed = PageFeed()
    first = told(feed, Reading(100.0, NETWORK, tokens=5))
    assert (first["nodes"][0]["busy"], first["links"][1]["bytes_per_second"]) == (None, None)
    later = replace(
        NETWORK,
        nodes=(worked(HEAD, 0.5, 40), TAIL),
        links=(NETWORK.links[0], LinkView("head", "tail", sent_bytes=5000)),
    )
    second = told(feed, Reading(102.0, later, tokens=25))
    assert second["nodes"][0]["busy"] == 0.25
    assert second["nodes"][0]["rows_per_second"] == 20.0
    assert second["nodes"][1]["busy"] == 0.0
    assert second["links"][1]["bytes_per_second"] == 2000
    assert second["point"]["tokens_per_second"] == 10.0
    assert second["point"]["nodes"]["head"] == {
        "kv": 0.25,
        "memory_bytes": 1000,
        "busy": 0.25,
        "round_trip_ms": 2.0,
    }
    assert second["point"]["queued_steps"] == 2


def test_a_process_that_began_anew_has_no_rate_instead_of_a_negative_one() -> None:
    feed = PageFeed()
    feed.take(Reading(100.0, NETWORK))
    fresh = replace(HEAD, prefill=Work(), decode=Work())
    anew = told(feed, Reading(101.0, replace(NETWORK, nodes=(fresh, TAIL))))
    assert anew["nodes"][0]["busy"] is None
    assert anew["nodes"][0]["step_ms"] is None


def test_what_isnt_known_is_null_and_what_is_missing_is_named() -> None:
    down = NodeView("tail", NodeState.DOWN, layers=LayerRange(2, 4), reason="refused")
    event = told(
        PageFeed(),
        Reading(
            1.0, replace(NETWORK, nodes=(HEAD, down)), operations=(Operation.JOIN, Operation.DRAIN)
        ),
    )
    assert event["network"]["missing_layers"] == [2, 3]
    assert event["operations"] == ["drain", "join"]
    tail = event["nodes"][1]
    assert (tail["state"], tail["reason"], tail["kv_used"], tail["busy"]) == (
        "down",
        "refused",
        None,
        None,
    )


def test_a_network_that_cant_be_looked_at_is_told_with_the_reason() -> None:
    feed = PageFeed()
    feed.take(Reading(1.0, NETWORK))
    event = told(feed, Reading(2.0, None, problem="the tracker is away"))
    assert (event["network"], event["nodes"], event["problem"]) == (None, [], "the tracker is away")
    assert told(feed, Reading(3.0, NETWORK))["nodes"][0]["busy"] is None


def test_a_new_viewer_gets_the_history_and_it_is_bounded() -> None:
    feed = PageFeed()
    assert feed.opening() is None
    for second in range(KEPT_POINTS + 5):
        feed.take(Reading(float(second), NETWORK))
    opening: Any = feed.opening()
    assert len(opening["history"]) == KEPT_POINTS
    assert opening["history"][-1] == opening["point"]


def test_a_request_under_way_has_the_means_of_what_its_nodes_computed_meanwhile() -> None:
    feed = PageFeed()
    feed.take(Reading(100.0, NETWORK))
    after = replace(NETWORK, nodes=(worked(HEAD, 0.2, 20), worked(TAIL, 0.4, 20)))
    event = told(feed, Reading(103.0, after, (request(),)))
    head, tail = event["requests"][0]["hops"]
    assert not event["requests"][0]["exact"]
    assert (head["node"], head["token_ms"]["engine"]) == ("head", 10.0)
    assert tail["token_ms"]["engine"] == 20.0
    # 20 gaps in 2 s are 100 ms each, of which nodes computed 30.
    assert head["token_ms"]["wait"] == tail["token_ms"]["wait"] == pytest.approx(35.0)
    assert event["requests"][0]["tokens_per_second"] == 10.0


def test_a_prompts_share_is_by_its_own_tokens() -> None:
    feed = PageFeed()
    feed.take(Reading(100.0, NETWORK))
    prefilled = replace(HEAD, prefill=Work(3, 2.5, 3, 0.1, 50))
    event = told(
        feed,
        Reading(
            101.0,
            replace(NETWORK, nodes=(prefilled, TAIL)),
            (request(completion_tokens=0, state=RequestState.PROMPT, first_token_seconds=None),),
        ),
    )
    # 40 rows in 2 s, of which 10 are this request's; two others' chunks waited for nothing.
    assert event["requests"][0]["hops"][0]["prefill_ms"]["engine"] == 500.0
    assert event["requests"][0]["hops"][0]["prefill_ms"]["queue"] == 0.0
    assert event["requests"][0]["tokens_per_second"] is None


def test_a_request_that_is_over_has_its_own_times() -> None:
    done = request(
        state=RequestState.DONE,
        end="stop",
        exact=True,
        hops=(HopShare("head", "[0, 2)", 1.0, 2.0, 3.0, 4.0, 5.0, 20, 6.0, 7.0, 8.0, 9.0),),
    )
    event = told(PageFeed(), Reading(1.0, NETWORK, (done,)))
    (shown,) = event["requests"]
    assert (shown["over"], shown["exact"], shown["end"]) == (True, True, "stop")
    assert shown["hops"][0]["token_ms"] == {"queue": 6.0, "engine": 7.0, "codec": 8.0, "wait": 9.0}
    assert event["point"]["in_flight"] == 0


@pytest.mark.parametrize("lost", ["head", "tail"])
def test_no_share_is_guessed_where_a_node_began_anew(lost: str) -> None:
    feed = PageFeed()
    feed.take(Reading(100.0, NETWORK))
    nodes = tuple(
        replace(it, prefill=Work(), decode=Work()) if it.node_id == lost else it
        for it in NETWORK.nodes
    )
    event = told(feed, Reading(101.0, replace(NETWORK, nodes=nodes), (request(),)))
    assert event["requests"][0]["hops"] == []


def test_a_prompts_share_is_no_longer_than_it_took() -> None:
    feed = PageFeed()
    feed.take(Reading(100.0, NETWORK))
    crowded = replace(HEAD, prefill=Work(3, 8.5, 3, 4.1, 20))
    shown = told(feed, Reading(101.0, replace(NETWORK, nodes=(crowded, TAIL)), (request(),)))[
        "requests"
    ][0]["hops"][0]["prefill_ms"]
    assert shown["queue"] + shown["engine"] == pytest.approx(1000.0, abs=0.1)
    assert shown["queue"] / shown["engine"] == pytest.approx(2 / 8, abs=0.01)


def test_others_prompts_change_nothing_about_one_that_is_answered() -> None:
    feed = PageFeed()
    feed.take(Reading(100.0, NETWORK))
    own = replace(HEAD, prefill=Work(2, 1.5, 2, 0.2, 20))
    first = told(feed, Reading(101.0, replace(NETWORK, nodes=(own, TAIL)), (request(),)))
    others = replace(HEAD, prefill=Work(9, 9.5, 9, 5.2, 90))
    later = told(feed, Reading(102.0, replace(NETWORK, nodes=(others, TAIL)), (request(),)))
    assert first["requests"][0]["hops"][0]["prefill_ms"]["engine"] > 0
    assert (
        later["requests"][0]["hops"][0]["prefill_ms"]
        == first["requests"][0]["hops"][0]["prefill_ms"]
    )
