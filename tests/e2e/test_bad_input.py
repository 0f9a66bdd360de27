"""Whatever is wrong with what was asked is said in a sentence, with exit status 2."""

import asyncio
import socket
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.commands import Ended, meshnet, require_clean

AT_ONCE = 3
"""Commands at a time: most of each is the start of Python."""


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
    lying = whole[:8] + struct.pack("<Q", 2**60) + whole[16:]
    (folder / "lying.gguf").write_bytes(lying)
    assert b"llama" in whole
    (folder / "unknown.gguf").write_bytes(whole.replace(b"llama", b"lloma"))
    return folder


async def all_of(commands: Sequence[tuple[str | Path, ...]], env: dict[str, str]) -> list[Ended]:
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(arguments: tuple[str | Path, ...]) -> Ended:
        async with turns:
            return await meshnet(*arguments, env=env)

    return list(await asyncio.gather(*map(one, commands)))


async def require_refused(
    cases: Sequence[tuple[tuple[str | Path, ...], str]], env: dict[str, str], status: int = 2
) -> None:
    ended = await all_of([arguments for arguments, _ in cases], env)
    for (arguments, said), result in zip(cases, ended, strict=True):
        where = f"{arguments}: {result}"
        assert result.status == status, where
        assert result.out == "", where
        assert result.err.startswith("error: "), where
        assert said in result.said, where
        assert len(result.said) < 500, where
        require_clean(result)


async def test_files_that_are_no_models_this_can_run(broken, tmp_path, env):
    await require_refused(
        [
            (("run", tmp_path / "absent.gguf", "hi"), "absent.gguf"),
            (("run", broken / "text.gguf", "hi"), "GGUF"),
            (("run", broken / "empty.gguf", "hi"), "empty.gguf"),
            (("run", broken / "truncated.gguf", "hi"), "truncated.gguf"),
            (("serve", broken / "header-only.gguf", "--port", "0"), "header-only.gguf"),
            (("node", "-m", broken / "lying.gguf", "-l", "0:3"), "lying.gguf"),
            (("run", broken / "unknown.gguf", "hi"), "lloma"),
            (("run", broken, "hi"), broken.name),
        ],
        env,
    )


async def test_ranges_and_numbers_that_cant_be(tiny, env):
    await require_refused(
        [
            (("node", "-m", tiny, "-l", "0:9"), "6 layers"),
            (("node", "-m", tiny, "-l", "3:3"), "[3, 3)"),
            (("node", "-m", tiny, "-l", "5:2"), "[5, 2)"),
            (("node", "-m", tiny, "-l", "all"), "A:B"),
            (("node", "-m", tiny, "-l", "3:6", "--next", "127.0.0.1:7001"), "nothing follows"),
            (("node", "-m", tiny, "-l", "0:3", "--listen", "7000"), "listen"),
            (("run", tiny, "hi", "--nodes", "7"), "7 shards"),
            (("run", tiny, "hi", "--chain", "nowhere"), "chain"),
            (("run", tiny, "hi", "--temperature", "-1"), "temperature"),
            (("run", tiny, " "), "PROMPT"),
        ],
        env,
    )


async def test_a_port_in_use(tiny, env):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        await require_refused(
            [
                (("serve", tiny, "--port", port), port),
                (("node", "-m", tiny, "-l", "0:3", "--listen", f"127.0.0.1:{port}"), "in use"),
            ],
            env,
        )
