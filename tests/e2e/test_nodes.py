"""``meshnet node`` on several machines, here on one, and ``meshnet run --chain`` over them."""

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.support.commands import Command, command, meshnet, require_clean, until
from tests.support.tiny_gguf import TinyModel, build
from tests.support.unsplit import unsplit_tokens

pytestmark = pytest.mark.slow

END_SECONDS = 2.0
ASKED = ("hello there", "--temperature", "0", "--raw", "--max-tokens", "30", "--json")


def free_port() -> int:
    """A port that nothing listens at just now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port: int = taken.getsockname()[1]
        return port


@asynccontextmanager
async def node(
    model: Path, layers: str, env: dict[str, str], *more: str
) -> AsyncIterator[tuple[Command, str]]:
    """A node that serves, and its address."""
    options = ("--listen", "127.0.0.1:0", "--ctx", "512", "--threads", "1", "--json", *more)
    async with command("node", "-m", model, "-l", layers, *options, env=env) as started:
        yield started, await ready(started)


async def ready(started: Command) -> str:
    """Wait until a node serves; return its address."""
    event = json.loads(await started.read_line())
    assert event["event"] == "ready"
    started.workers()
    return str(event["address"])


async def test_three_nodes_and_a_run_over_them(tiny, env):
    first, second, third = (f"127.0.0.1:{free_port()}" for _ in range(3))
    common = ("node", "-m", tiny, "--ctx", "512", "--threads", "1", "--json")
    async with (
        command(
            *(*common, "-l", "0:2", "--name", "head", "--listen", first, "--next", second), env=env
        ) as head,
        command(
            *(*common, "-l", "2:4", "--name", "middle", "--listen", second, "--next", third),
            env=env,
        ) as middle,
        command(*(*common, "-l", "4:6", "--name", "tail", "--listen", third), env=env) as tail,
    ):
        assert [await ready(each) for each in (head, middle, tail)] == [first, second, third]
        ask = partial(meshnet, "run", tiny, *ASKED, env=env)
        led, named, gap = await asyncio.gather(
            ask("--chain", first),
            ask("--chain", f"{first},{second},{third}"),
            ask("--chain", f"{first},{third}"),
        )
        for over in (led, named):
            assert (over.status, over.err) == (0, "")
            answer = json.loads(over.out)
            assert answer["token_ids"] == unsplit_tokens(tiny, "hello there", 30)
            assert [hop["node"] for hop in answer["hops"]] == ["head", "middle", "tail"]
        assert gap.status == 2
        assert "the chain breaks at layer 2" in gap.said

        middle.interrupt()
        assert (await middle.end(END_SECONDS)).status == 130
        began = time.monotonic()
        broken = await ask("--chain", first)
        assert time.monotonic() - began < 10
        assert broken.status == 1
        assert second in broken.said
        require_clean(broken)

        for each in (head, tail):
            each.process.send_signal(signal.SIGTERM)
            ended = await each.end(END_SECONDS)
            assert (ended.status, ended.err) == (130, "")


async def test_a_next_node_that_isnt_there_is_named_with_its_address(tiny, env):
    absent = f"127.0.0.1:{free_port()}"
    async with node(tiny, "0:3", env, "--next", absent) as (_, address):
        ended = await meshnet("run", tiny, *ASKED, "--chain", address, env=env)
        assert ended.status == 1
        assert absent in ended.said
        require_clean(ended)


async def test_a_head_alone_is_no_chain(tiny, env):
    async with node(tiny, "0:3", env, "--name", "lonely") as (_, address):
        ended = await meshnet("run", tiny, *ASKED, "--chain", address, env=env)
        assert ended.status == 2
        assert "lonely" in ended.said
        assert "next node" in ended.said


async def test_a_node_whose_worker_dies_says_so_and_serves_again(tiny, env):
    async with node(tiny, "0:6", env) as (served, address):
        (worker,) = served.workers()
        os.kill(worker.pid, signal.SIGKILL)
        await until(lambda: any(each.pid != worker.pid for each in served.workers()), 10)
        # The command asks once; it is for whoever runs it to wait until the node is back.
        await until(lambda: reachable(address), 20)
        over = await meshnet("run", tiny, *ASKED, "--chain", address, env=env)
        assert (over.status, over.err) == (0, "")
        served.interrupt()
        ended = await served.end(END_SECONDS)
    assert ended.status == 130
    assert "node-1 (layers [0, 6)) was killed (SIGKILL)" in ended.said
    require_clean(ended)


def reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 0.2).close()
    except OSError:
        return False
    return True


async def test_nodes_of_another_model_are_refused_with_both_digests(tmp_path, tiny, env):
    other = build(tmp_path / "other.gguf", TinyModel(layers=6, seed=9))
    async with node(tiny, "0:6", env) as (_, address):
        run = await meshnet("run", other, *ASKED, "--chain", address, env=env)
    assert run.status == 1
    assert "another model" in run.said
    assert run.said.count("sha256:") == 2
