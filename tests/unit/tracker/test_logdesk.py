"""Logs that somebody looks at: what a machine is asked for, what is kept, and for how long."""

import pytest
from pydantic import ValidationError

from meshnet.domain.errors import ResourceExhaustedError
from meshnet.domain.ids import NodeId
from meshnet.tracker.logdesk import KEPT_LINES, MAX_MACHINES, WANTED_SECONDS, LogDesk
from meshnet.tracker.logmessages import MAX_LINES, MAX_TEXT, LogChunk, LogLine

NODE = NodeId("a" * 16)


def lines(*times: int) -> LogChunk:
    made = (LogLine(at=at, level="INFO", process="agent", text=f"line {at}") for at in times)
    return LogChunk(lines=tuple(made))


def times(desk: LogDesk, after: int = 0, now: float = 0.0) -> list[int]:
    return [line.at for line in desk.want(NODE, after, now).lines]


def test_a_machine_is_asked_only_while_somebody_looks_and_for_what_is_new():
    desk = LogDesk()
    assert desk.wanted_after(NODE, 0.0) is None
    desk.take(NODE, lines(1))
    assert desk.want(NODE, 0, 0.0).chunks == 0
    assert desk.wanted_after(NODE, 1.0) == 0
    desk.take(NODE, lines(1, 2))
    assert desk.wanted_after(NODE, 2.0) == 2
    assert desk.wanted_after(NODE, WANTED_SECONDS + 1.0) is None


def test_two_who_look_get_the_same_lines_each_once():
    desk = LogDesk()
    assert times(desk) == times(desk) == []
    desk.take(NODE, lines(1, 2))
    assert times(desk) == times(desk) == [1, 2]
    desk.take(NODE, lines(2, 3))
    assert times(desk, after=2) == times(desk, after=2) == [3]


def test_lines_of_two_processes_at_the_same_time_are_both_there():
    desk = LogDesk()
    times(desk)
    desk.take(NODE, lines(1, 2, 2))
    desk.take(NODE, lines(2, 3, 3))
    assert times(desk) == [1, 2, 2, 3, 3]


def test_an_answer_without_lines_is_one():
    desk = LogDesk()
    before = desk.want(NODE, 0, 0.0).chunks
    desk.take(NODE, LogChunk())
    assert desk.want(NODE, 0, 0.0).chunks == before + 1


def test_what_is_kept_is_bounded():
    desk = LogDesk()
    times(desk)
    for start in range(0, KEPT_LINES + MAX_LINES, MAX_LINES):
        desk.take(NODE, lines(*range(start + 1, start + MAX_LINES + 1)))
    assert times(desk) == list(range(KEPT_LINES + 1, KEPT_LINES + MAX_LINES + 1))
    for number in range(MAX_MACHINES - 1):
        desk.want(NodeId(f"{number:016x}"), 0, 0.0)
    with pytest.raises(ResourceExhaustedError):
        desk.want(NodeId("f" * 16), 0, 0.0)
    desk.want(NodeId("f" * 16), 0, WANTED_SECONDS + 1.0)


def test_too_much_is_refused_by_its_name():
    with pytest.raises(ValidationError, match="lines"):
        lines(*range(MAX_LINES + 1))
    with pytest.raises(ValidationError, match="text"):
        LogLine(at=1, level="INFO", process="agent", text="x" * (MAX_TEXT + 1))
    with pytest.raises(ValidationError, match="level"):
        LogLine.model_validate({"at": 1, "level": "LOUD", "process": "agent", "text": ""})
