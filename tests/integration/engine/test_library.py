"""libllama's log as Python's, its identity, and calls that need a deep stack."""

from __future__ import annotations

import logging
import re
import sys
import threading
from pathlib import Path

import pytest

from meshnet.engine.llamacpp.library import (
    LineAssembler,
    call_with_stack,
    libraries_digest,
    library_identity,
    llama_ready,
)
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from tests.support.tiny_gguf import build

DEBUG, INFO, WARN, ERROR, CONTINUES = 1, 2, 3, 4, 5


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> LineAssembler:
    caplog.set_level(logging.DEBUG, "meshnet.test")
    return LineAssembler(logging.getLogger("meshnet.test"))


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(record.levelno, record.getMessage()) for record in caplog.records]


def test_pieces_become_lines_of_the_level_of_their_first_piece(
    lines: LineAssembler, caplog: pytest.LogCaptureFixture
) -> None:
    for level, text in (
        (WARN, b"half "),
        (CONTINUES, b"a line"),
        (CONTINUES, b"\n"),
        (ERROR, b"two\nlines\n"),
        (INFO, b"."),
        (CONTINUES, b".\xff."),
        (DEBUG, b"the dots were never ended\n"),
        (INFO, b"\n"),
    ):
        lines.add(level, text)
    assert logged(caplog) == [
        (logging.WARNING, "half a line"),
        (logging.ERROR, "two"),
        (logging.ERROR, "lines"),
        (logging.INFO, "..\ufffd."),
        (logging.DEBUG, "the dots were never ended"),
    ]


def test_a_percent_sign_isnt_a_format(
    lines: LineAssembler, caplog: pytest.LogCaptureFixture
) -> None:
    lines.add(INFO, b"100%s done\n")
    assert logged(caplog) == [(logging.INFO, "100%s done")]


def test_threads_that_log_at_the_same_time_dont_mix_their_lines(
    lines: LineAssembler, caplog: pytest.LogCaptureFixture
) -> None:
    lines.add(WARN, b"from ")
    other = threading.Thread(target=lines.add, args=(INFO, b"elsewhere\n"))
    other.start()
    other.join()
    lines.add(CONTINUES, b"here\n")
    assert logged(caplog) == [(logging.INFO, "elsewhere"), (logging.WARNING, "from here")]


def test_libllama_logs_to_python_and_prints_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO, "meshnet.libllama")
    llama_ready()
    Vocabulary.load(build(tmp_path / "tiny.gguf")).close()
    messages = [message for _, message in logged(caplog)]
    assert any("general.architecture" in message for message in messages)
    assert not any("\n" in message or not message for message in messages)
    assert capfd.readouterr() == ("", "")


def test_the_identity_names_the_version_and_the_bytes() -> None:
    pattern = r"llama-cpp-python \d+\.\d+\.\d+ llama.cpp [0-9a-z-]+ sha256:[0-9a-f]{64}"
    assert re.fullmatch(pattern, library_identity())
    assert library_identity() is library_identity()


def elf(folder: bytes, build_id: bytes, code: bytes = b"code") -> bytes:
    """What builds differ in: two messages with the build's folder, and the sum over them."""
    text = b"\0" + folder + b"/vendor/llama.cpp/ggml/src/ggml.c\0" + b"%s failed\0"
    note = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0" + build_id
    return b"\x7fELF" + note + code + text + text


def test_where_a_build_ran_is_no_part_of_what_computes(tmp_path: Path) -> None:
    def digest(name: str, content: bytes) -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "libllama.so").write_bytes(content)
        (folder / "libggml-cpu.so").write_bytes(b"the same")
        (folder / "notes.txt").write_text(name)
        return libraries_digest(folder)

    plain = digest("plain", elf(b"/tmp/pip-wheel-abc", b"1" * 20))
    assert digest("elsewhere", elf(b"/tmp/pip-wheel-xyz", b"\n" * 20)) == plain
    assert digest("other-code", elf(b"/tmp/pip-wheel-abc", b"1" * 20, b"c0de")) != plain
    products = tmp_path / "libopenblas.so"
    products.write_bytes(b"another library")
    assert libraries_digest(tmp_path / "plain", [products]) != plain


def test_a_call_with_a_deep_stack_returns_raises_and_leaves_the_usual_size() -> None:
    usual = threading.stack_size()
    assert call_with_stack(1 << 26, threading.current_thread) is not threading.current_thread()
    assert call_with_stack(1 << 26, sys.getrecursionlimit) == sys.getrecursionlimit()
    with pytest.raises(ZeroDivisionError):
        call_with_stack(1 << 26, lambda: 1 // 0)
    assert threading.stack_size() == usual
