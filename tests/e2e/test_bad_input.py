"""Whatever is wrong with what was asked is said in a sentence, with exit status 2."""

import asyncio
import logging
import socket
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.cli.main import run_command
from tests.support.commands import Ended, meshnet, require_clean


@pytest.fixture(scope="module")
def broken(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that aren't models."""
    folder = tmp_path_factory.mktemp("broken")
    whole = tiny.read_bytes()
    (folder / "text.gguf").write_text("Dear model,\n")
    (folder / "empty.gguf").touch()
    (folder / "truncated.gguf").write_bytes(whole[: len(whole) // 2])
    (folder / "header-only.gguf").write_bytes(whole[:100])
    # 2^60 tensors, after magic and version.
    (folder / "lying.gguf").write_bytes(whole[:8] + struct.pack("<Q", 2**60) + whole[16:])
    assert b"llama" in whole
    (folder / "unknown.gguf").write_bytes(whole.replace(b"llama", b"lloma"))
    return folder


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """The command decides who sees libllama's log."""
    logger = logging.getLogger("meshnet.libllama")
    before = logger.propagate
    yield
    logger.propagate = before


def run_here(
    arguments: tuple[str, ...],
    env: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Ended:
    """The command within this process: without the second that Python takes to start."""
    monkeypatch.setattr(sys, "argv", ["meshnet", *arguments])
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as caught:
        run_command()
    captured = capsys.readouterr()
    return Ended(int(caught.value.code or 0), captured.out, captured.err)


def require_refused(ended: Ended, said: str) -> None:
    assert ended.status == 2, ended
    assert ended.out == "", ended
    assert ended.err.startswith("error: "), ended
    assert said in ended.said
    assert len(ended.said) < 500, ended
    require_clean(ended)


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("run {broken}/absent.gguf hi", "absent.gguf"),
        ("run {broken}/text.gguf hi", "GGUF"),
        ("run {broken}/empty.gguf hi", "empty.gguf"),
        ("run {broken}/truncated.gguf hi", "truncated.gguf"),
        ("run {broken}/header-only.gguf hi", "header-only.gguf"),
        ("node -m {broken}/lying.gguf -l 0:3", "lying.gguf"),
        ("run {broken}/unknown.gguf hi", "lloma"),
        ("run {broken} hi", "{broken}"),
        ("node -m {tiny} -l 0:9", "6 layers"),
        ("node -m {tiny} -l 3:3", "[3, 3)"),
        ("node -m {tiny} -l 5:2", "[5, 2)"),
        ("node -m {tiny} -l all", "A:B"),
        ("node -m {tiny} -l 3:6 --next 127.0.0.1:7001", "nothing follows"),
        ("node -m {tiny} -l 0:3 --listen 7000", "listen"),
        ("node -m {tiny} -l 0:3 --next here", "next"),
        ("run {tiny} hi --nodes 7", "7 shards"),
        ("run {tiny} hi --chain nowhere", "chain"),
        ("run {tiny} hi --temperature -1", "temperature"),
        ("run {tiny} hi --top-p 0", "top_p"),
        ("run {tiny} -", "PROMPT"),
        ("serve {tiny} --host 0.0.0.0 --port 0", "key"),
        ("serve {tiny} --port 0 --allow-host box:80", "'box:80'"),
        ("run ~nobody-of-that-name/model.gguf hi", "`demo`"),
        (f"run {'x' * 300} hi", "too long"),
        ("run {tiny} hi --chain 127.0.0.1:1 --mlock -c 64", "leave out --ctx, --mlock"),
        ("serve {tiny} --chain 127.0.0.1:1 --sessions 8", "leave out --sessions"),
        ("run {tiny} hi --otlp http://[::1:4318", "otlp"),
        ("inspect {tiny} --boundary q8_0", "fingerprint: --boundary"),
        ("plan {broken}/unknown.gguf -m a:1GiB:1GB/s", "--allow-unverified"),
    ],
)
def test_what_cant_be_is_refused(
    command, said, tiny, broken, env, monkeypatch, capsys, log_as_before
):
    monkeypatch.setattr(sys, "stdin", (broken / "empty.gguf").open())
    places = {"tiny": tiny, "broken": broken}
    arguments = tuple(part.format(**places) for part in command.split())
    ended = run_here(arguments, env, monkeypatch, capsys)
    sys.stdin.close()
    require_refused(ended, said.format(**places))


@pytest.mark.slow
async def test_the_same_as_processes(tiny, broken, env):
    truncated, range_ = await asyncio.gather(
        meshnet("run", broken / "truncated.gguf", "hi", env=env),
        meshnet("node", "-m", tiny, "-l", "0:9", env=env),
    )
    require_refused(truncated, "truncated.gguf")
    require_refused(range_, "6 layers")


@pytest.mark.slow
async def test_a_port_in_use(tiny, env):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        serve, node = await asyncio.gather(
            meshnet("serve", tiny, "--port", port, env=env),
            meshnet("node", "-m", tiny, "-l", "0:3", "--listen", f"127.0.0.1:{port}", env=env),
        )
    require_refused(serve, port)
    require_refused(node, "in use")
