"""What a crowd's clients count as wrong, and how the ends of their requests are timed."""

import pytest

from bench.clients import Used, leaks, until_over
from bench.collector import Collector, Exported
from bench.crowd import Answer, Ask, Ending

MILLI = 10**6


def span(name: str, trace: str, began: int, ended: int) -> Exported:
    return Exported("s", "i", name, trace, "span", "", began * MILLI, ended * MILLI)


def test_a_cancel_is_over_with_the_last_node_s_session():
    spans = Collector(
        "",
        [
            span("meshnet.shard", "a", 0, 108),
            span("meshnet.shard", "a", 0, 112),
            span("DELETE /v1/requests/{name}", "told", 103, 104),
            span("meshnet.shard", "over", 0, 90),
        ],
    )
    endings = [
        Ending("DELETE", "a", 100 * MILLI, "told"),
        Ending("disconnect", "over", 100 * MILLI),
        Ending("disconnect", "never began", 100 * MILLI),
    ]
    assert until_over(endings, spans) == {
        "the client's DELETE": [12.0],
        "the gateway's knowing": [9.0],
    }


LINE = 'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":"stop"}]}'
USAGE = 'data: {"choices":[],"usage":{"completion_tokens":1}}'


@pytest.mark.parametrize(
    ("lines", "expected", "wrong"),
    [
        ([LINE, USAGE, "", "data: [DONE]"], "a", None),
        ([LINE, USAGE], "a", "without"),
        ([LINE, "data: [DONE]"], "a", "usage"),
        ([LINE, USAGE, "data: [DONE]"], "b", "instead of"),
        ([USAGE, "data: [DONE]"], None, "0 texts"),
    ],
)
def test_a_stream_is_right_only_as_a_whole(lines, expected, wrong):
    answer = Answer()
    for line in lines:
        answer.take_line(line)
    problem = answer.problem(Ask("?", stream=True), expected)
    assert (problem is None) is (wrong is None)
    assert wrong is None or wrong in str(problem)


def test_memory_threads_and_files_may_not_grow():
    before = {"gateway": Used(100 * 2**20, 10, 20)}
    assert leaks(before, {"gateway": Used(110 * 2**20, 12, 24)}) == []
    assert len(leaks(before, {"gateway": Used(200 * 2**20, 30, 90)})) == 3
