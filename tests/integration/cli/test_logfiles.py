"""Logs on the disk: bounded, for their owner alone, without secrets, and readable when cut off."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.cli import logfiles
from meshnet.cli.logfiles import chunk, folder_of, log_to_files, newest, shown
from meshnet.cli.output import print_error, print_note
from meshnet.tracker.logmessages import MAX_CHUNK_BYTES, MAX_LINES, MAX_TEXT, LogChunk

LOGGER = logging.getLogger("meshnet.cli.machine")


@pytest.fixture(autouse=True)
def kept(tmp_path: Path) -> Iterator[None]:
    root = logging.getLogger(logfiles.ROOT)
    level, before = root.level, list(root.handlers)
    log_to_files(tmp_path, "agent")
    yield
    for handler in set(root.handlers) - set(before):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(level)


def texts(state: Path) -> list[str]:
    return [line.text for line in newest(state, 0, 10_000)]


def test_lines_are_in_order_and_name_their_part_of_the_process(tmp_path: Path) -> None:
    for number in range(50):
        LOGGER.info("line %d", number)
    logging.getLogger("meshnet.gateway").warning("[req-1] failed (node_lost)")
    logging.getLogger("meshnet.node.supervisor").info("n: loaded")
    found = newest(tmp_path, 0, 10_000)
    assert [line.text for line in found[:50]] == [f"line {number}" for number in range(50)]
    assert [(line.process, line.level) for line in found[50:]] == [
        ("gateway", "WARNING"),
        ("worker", "INFO"),
    ]
    assert len({line.at for line in found}) == 52
    assert newest(tmp_path, found[49].at, 10_000) == found[50:]
    assert newest(tmp_path, 0, 2) == found[50:]
    assert shown(found[50]).endswith("WARNING gateway: [req-1] failed (node_lost)")


def test_a_line_that_comes_while_another_file_is_read_is_there_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = logfiles._Files(folder_of(tmp_path), "tracker")
    read, written = Path.read_text, iter(("second", "third"))

    def writes_meanwhile(path: Path, **options: str) -> str:
        if path.name == "tracker.log":
            for text in written:
                record = logging.LogRecord("meshnet", logging.INFO, "", 0, text, (), None)
                (LOGGER if text == "second" else tracker).handle(record)
        return read(path, **options)

    LOGGER.info("first")
    monkeypatch.setattr(Path, "read_text", writes_meanwhile)
    found = newest(tmp_path, 0, 10_000)
    assert [line.text for line in found] == ["first"]
    found = newest(tmp_path, found[-1].at, 10_000)
    assert [line.text for line in found] == ["second", "third"]
    tracker.close()


def test_files_are_for_their_owner_alone_and_take_no_more_room_than_they_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    handler = logging.getLogger(logfiles.ROOT).handlers[-1]
    assert isinstance(handler, logging.handlers.RotatingFileHandler)
    monkeypatch.setattr(handler, "maxBytes", 20_000)
    for number in range(1000):
        LOGGER.info("%d %s", number, "x" * 200)
    files = sorted(folder_of(tmp_path).iterdir())
    assert [file.name for file in files] == ["agent.log", *(f"agent.log.{n}" for n in (1, 2, 3))]
    assert sum(file.stat().st_size for file in files) <= 4 * 20_000
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert folder_of(tmp_path).stat().st_mode & 0o777 == 0o700
    assert texts(tmp_path)[-1].startswith("999 ")


def test_secrets_and_what_faults_hold_are_not_in_them(tmp_path: Path) -> None:
    LOGGER.info("meshnet join mesh1_AAAA.bbb for %s", "sk-mesh-abc")
    asked: dict[str, str] = {}
    try:
        asked["what somebody asked the model"]
    except KeyError:
        LOGGER.exception("an engine operation failed")
    LOGGER.info("\x1b[31mred\nnext")
    print_note("the code is 7F4-K2Q")
    print_note("the tracker is back", kept=True)
    print_error("lost")
    masked, fault, *rest = texts(tmp_path)
    assert masked == "meshnet join (secret) for (secret)"
    assert fault.startswith("an engine operation failed (KeyError at test_logfiles.py:")
    assert rest == ["?[31mred?next", "the tracker is back", "lost"]


def test_a_line_that_was_cut_off_is_passed_over_and_a_long_one_cut(tmp_path: Path) -> None:
    LOGGER.info("first")
    with (folder_of(tmp_path) / "agent.log").open("a") as file:
        file.write('{"at": 17, "lev\n')
    LOGGER.info("y" * 5000)
    assert texts(tmp_path) == ["first", "y" * MAX_TEXT]


def test_what_is_sent_fits_a_message_and_says_what_it_leaves_out(tmp_path: Path) -> None:
    LOGGER.info("seen")
    seen = newest(tmp_path, 0, 1)[0].at
    for number in range(2 * MAX_LINES):
        LOGGER.info("short %d", number)
    sent = chunk(tmp_path, seen)
    assert len(sent) == MAX_LINES
    assert sent[0].text.startswith(f"{MAX_LINES + 1} lines are left out")
    assert sent[-1].text == f"short {2 * MAX_LINES - 1}"
    for _ in range(MAX_LINES):
        LOGGER.info("z" * MAX_TEXT)
    assert sum(len(line.model_dump_json()) for line in chunk(tmp_path, 0)) <= 48 * 1024
    for _ in range(MAX_LINES):
        LOGGER.info("好" * MAX_TEXT)
    message = LogChunk(lines=chunk(tmp_path, 0))
    assert message.lines
    assert len(message.model_dump_json().encode()) <= MAX_CHUNK_BYTES + 1024


def test_without_a_place_for_them_the_process_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    log_to_files(tmp_path / "file", "agent")
    assert "no log is kept" in caplog.text
