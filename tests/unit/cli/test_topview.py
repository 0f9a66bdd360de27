import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from meshnet.cli.topview import drawn, headline, plain, strip
from meshnet.gateway.machines import NodeState, RequestState, RequestView
from meshnet.gateway.pagefeed import PageFeed, Reading
from tests.support.scripted_machines import scripted_view

REQUEST = RequestView("chatcmpl-1", "m", RequestState.ANSWER, 1.0, 2.0, 7, 21, 0.5)
OVER = replace(REQUEST, request_id="chatcmpl-0", state=RequestState.DONE, end="stop")


def state(**changes: Any) -> Any:
    reading = Reading(100.0, scripted_view(), (REQUEST, OVER), 5)
    return PageFeed().take(replace(reading, **changes))


def test_a_pipe_gets_a_row_for_each_machine_and_request() -> None:
    lines = list(plain(state()))
    assert lines[0] == "scripted · 32 layers · 0.0 tokens/s · 1 in flight"
    rows = [line.split("\t") for line in lines[1:]]
    assert [row[0] for row in rows] == [
        "machine", "attic-pc", "laptop", "mac-mini", "pi-5", "request", "chatcmpl-1", "chatcmpl-0",
    ]  # fmt: skip
    assert {len(row) for row in rows[:5]} == {10}
    attic = dict(zip(rows[0], rows[1], strict=True))
    assert (attic["state"], attic["layers"], attic["kv"]) == ("ready", "0:12", "1200/32768")
    assert (attic["memory"], attic["step"], attic["busy"]) == ("2.00 GiB", "8.00 ms", "-")
    assert rows[4][1:3] == ["spare", "-"]
    assert rows[6][1:5] == ["answer", "7", "21", "13.3"]
    assert rows[7][1] == "done (stop)"


def test_a_network_that_cant_be_looked_at_says_why() -> None:
    told = state(network=None, problem="the tracker is away", requests=())
    assert list(plain(told)) == ["the network can't be looked at: the tracker is away"]


def test_layers_that_nobody_computes_are_in_the_headline_and_the_strip() -> None:
    view = scripted_view()
    gone = replace(view, nodes=(replace(view.nodes[0], state=NodeState.DOWN), *view.nodes[2:]))
    told = state(network=gone)
    assert headline(told).endswith("24 layers can't be computed")
    shown = strip(told["nodes"], 32, 32).plain
    assert shown[:12] == "▚" * 12
    assert shown[12:24] == "·" * 12
    assert shown[25:] == "█" * 7


@pytest.mark.parametrize("width", [1, 10, 31, 32, 200])
def test_the_strip_is_as_wide_as_it_is_told_to_be(width: int) -> None:
    assert len(strip(state()["nodes"], 32, width).plain) == width


def test_a_terminal_shows_marks_and_why_the_state_is_old() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(drawn(state(), 120, "the gateway is gone"))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "the gateway is gone" in text
    assert "● ready" in text
    assert "chatcmpl-1" in text
