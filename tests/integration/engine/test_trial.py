"""A file that ends a process is found out in a process of its own."""

import logging
import signal
import sys
from pathlib import Path

import pytest

from meshnet.domain.errors import EngineError, ModelFileError
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.domain.recipe import Recipe
from meshnet.domain.tracing import NO_TRACER
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp import trial
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.engine.llamacpp.trial import try_out
from meshnet.model.check import check_loadable
from meshnet.node.config import LlamaEngineConfig, NodeConfig
from meshnet.node.worker import load_node
from meshnet.transport.seam_client import GrpcTransport
from tests.support.tiny_gguf import TINY, TinyModel, build

DIGEST = Digest("sha256:" + "0" * 64)
LAYERS = 4
NONE_SLIDES = TinyModel(
    "gemma3", LAYERS, keys={"attention.sliding_window_pattern": [False] * LAYERS}
)
"""libllama asserts that a model with windows has a layer that slides; the check knows that."""


@pytest.fixture
def aborting(monkeypatch: pytest.MonkeyPatch) -> TinyModel:
    """libllama asserts that a model of this architecture has experts; nobody else knows that."""
    monkeypatch.setitem(TINY, "llada-moe", TINY["llama"])
    return TinyModel("llada-moe", LAYERS)


def request_for(path: Path) -> LoadRequest:
    recipe = Recipe(DIGEST, "libllama", "test")
    return LoadRequest(path, 0, LAYERS, LAYERS, recipe, EngineLimits(64, max_sessions=2))


def anything(_path: Path) -> None:
    """A check that everything passes."""


def command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


async def test_a_good_file_is_tried_once(tmp_path, monkeypatch):
    request, passed = request_for(build(tmp_path / "good.gguf")), tmp_path / "notes"
    await try_out(request, passed, anything)
    assert len(list(passed.iterdir())) == 1
    monkeypatch.setattr(trial, "_COMMAND", command("import os; os.abort()"))
    await try_out(request, passed, anything)
    build(tmp_path / "good.gguf", TinyModel(layers=LAYERS, seed=1, keys={"rope.freq_base": 5.0}))
    with pytest.raises(ModelFileError):
        await try_out(request, passed, anything)


async def test_a_file_that_makes_libllama_abort_is_an_error_with_its_reason(tmp_path, aborting):
    request = request_for(build(tmp_path / "bad.gguf", aborting))
    with pytest.raises(ModelFileError, match=r"bad\.gguf: .*GGML_ASSERT"):
        await try_out(request, tmp_path / "notes", anything)
    assert not (tmp_path / "notes").exists()


async def test_a_crash_without_words_is_an_error_too(tmp_path, monkeypatch):
    request = request_for(build(tmp_path / "m.gguf"))
    monkeypatch.setattr(trial, "_COMMAND", command("import os; os.kill(os.getpid(), 11)"))
    with pytest.raises(ModelFileError, match="gave no reason"):
        await try_out(request, tmp_path / "notes", anything)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("import sys; sys.exit('no such module')", r"\(code 1\).*no such module"),
        ("print('[1]')", r"\(code 0\).*gave no reason"),
        ("print('{')", r"\(code 0\).*gave no reason"),
    ],
)
async def test_a_trial_that_fails_by_itself_doesnt_blame_the_file(
    tmp_path, monkeypatch, program, words
):
    request = request_for(build(tmp_path / "m.gguf"))
    monkeypatch.setattr(trial, "_COMMAND", command(program))
    with pytest.raises(EngineError, match=rf"m\.gguf: its trial failed {words}"):
        await try_out(request, tmp_path / "notes", anything)
    assert not (tmp_path / "notes").exists()


async def test_an_answer_cut_short_by_a_crash_leaves_its_last_words(tmp_path, monkeypatch):
    request = request_for(build(tmp_path / "m.gguf"))
    program = """
import os, sys
sys.stdout.write('{"aborted": "one"}{"abor'); sys.stdout.flush()
sys.stderr.write('last words'); sys.stderr.flush()
os.kill(os.getpid(), 6)
"""
    monkeypatch.setattr(trial, "_COMMAND", command(program))
    with pytest.raises(ModelFileError, match="last words"):
        await try_out(request, tmp_path / "notes", anything)


async def test_of_many_threads_that_abort_the_first_alone_speaks(tmp_path, monkeypatch):
    request = request_for(build(tmp_path / "m.gguf"))
    program = """
import os, threading, time
from meshnet.engine.llamacpp.trial import _tell_abort
say = (b"/src/ops.cpp:1: GGML_ASSERT",)
for number in range(8):
    threading.Thread(target=_tell_abort, args=say, daemon=True).start()
time.sleep(0.5)
os.kill(os.getpid(), 6)
"""
    monkeypatch.setattr(trial, "_COMMAND", command(program))
    with pytest.raises(ModelFileError, match=r"tried to: ops\.cpp:1: GGML_ASSERT"):
        await try_out(request, tmp_path / "notes", anything)


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM])
async def test_a_trial_that_something_outside_ends_proves_nothing(
    tmp_path, monkeypatch, caplog, ending
):
    request = request_for(build(tmp_path / "m.gguf"))
    end = f"import os; os.kill(os.getpid(), {int(ending)})"
    monkeypatch.setattr(trial, "_COMMAND", command(end))
    with caplog.at_level(logging.WARNING):
        await try_out(request, tmp_path / "notes", anything)
    assert "was ended by signal" in caplog.text
    assert not (tmp_path / "notes").exists()


async def test_a_trial_that_takes_too_long_is_given_up(tmp_path, monkeypatch, caplog):
    request = request_for(build(tmp_path / "m.gguf"))
    monkeypatch.setattr(trial, "_COMMAND", command("import time; time.sleep(60)"))
    with caplog.at_level(logging.WARNING):
        await try_out(request, tmp_path / "notes", anything, seconds=0.2)
    assert "was given up" in caplog.text
    assert not (tmp_path / "notes").exists()


async def test_what_libllama_refuses_without_ending_is_left_to_the_load(tmp_path):
    path = build(tmp_path / "m.gguf", TinyModel(layers=LAYERS, keys={"feed_forward_length": 32}))
    await try_out(request_for(path), tmp_path / "notes", anything)
    assert not (tmp_path / "notes").exists()
    with pytest.raises(EngineError, match="can't load"):
        LlamaShardEngine().load(request_for(path))


async def test_a_file_that_is_gone_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"gone\.gguf: file: can't be read"):
        await try_out(request_for(tmp_path / "gone.gguf"), tmp_path / "notes", anything)


async def test_what_the_check_knows_needs_no_trial(tmp_path, monkeypatch):
    request = request_for(build(tmp_path / "bad.gguf", NONE_SLIDES))
    monkeypatch.setattr(trial, "_COMMAND", command("raise SystemExit('not to be started')"))
    with pytest.raises(ModelFileError, match="sliding_window_pattern"):
        await try_out(request, tmp_path / "notes", check_loadable)


async def test_a_node_outlives_a_file_that_would_end_it(tmp_path, aborting):
    path = build(tmp_path / "bad.gguf", aborting)
    engine = LlamaEngineConfig(path, DIGEST, DIGEST, "llada-moe", notes=tmp_path / "notes")
    flow = FlowControl()
    config = NodeConfig(
        NodeId("node-1"), 0, LAYERS, LAYERS, engine, "127.0.0.1:0", None, EngineLimits(64), flow
    )
    with pytest.raises(ModelFileError, match="GGML_ASSERT"):
        await load_node(config, GrpcTransport(flow), NO_TRACER)
