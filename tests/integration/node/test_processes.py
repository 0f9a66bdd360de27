"""Workers as processes: started, watched over, and gone when their supervisor is."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import psutil
import pytest

from meshnet.domain.errors import (
    EngineError,
    InvalidArgumentError,
    NodeLostError,
    NodeNotReadyError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import FlowControl
from meshnet.engine.base import EngineLimits
from meshnet.engine.fixture import Fault, FaultKind
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.node import keeper as keeper_module
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.node.keeper import NodeKeeper
from meshnet.node.supervisor import NodeProcess, WorkerDeath
from meshnet.session.chain import find_chain
from meshnet.session.generate import ChainModel
from meshnet.transport.channel import ChannelPool
from meshnet.transport.seam_client import GrpcTransport
from tests.support.mesh import LAYERS, Setup, alone, ask, prompt_of

WORKER = (sys.executable, "-m", "meshnet.cli.worker")
GONE_SECONDS = 2.0


def config(
    start: int = 0,
    end: int = LAYERS,
    faults: Sequence[Fault] = (),
    step_seconds: float = 0.0,
    listen: str = "127.0.0.1:0",
) -> NodeConfig:
    return NodeConfig(
        NodeId(f"node-{start}"),
        start,
        end,
        LAYERS,
        FixtureEngineConfig(tuple(faults), step_seconds),
        listen,
        limits=EngineLimits(4096, 4),
        flow=FlowControl(max_sessions=4),
        chunk_tokens=Setup().chunk_tokens,
    )


def script(text: str) -> tuple[str, ...]:
    """A worker that does as the text says after it has read its configuration."""
    return (sys.executable, "-c", f"import sys, time\nsys.stdin.readline()\n{text}")


@asynccontextmanager
async def running(*configs: NodeConfig) -> AsyncIterator[list[NodeProcess]]:
    processes = [NodeProcess(WORKER, each) for each in configs]
    try:
        await asyncio.gather(*(process.start() for process in processes))
        yield processes
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


@asynccontextmanager
async def model_over(addresses: Sequence[Address]) -> AsyncIterator[ChainModel]:
    channels = ChannelPool(GrpcTransport())
    try:
        chain = await find_chain(channels, addresses)
        yield ChainModel("fixture", ByteTokenizer(), chain, channels)
    finally:
        await channels.close()


async def died(process: NodeProcess, within_seconds: float) -> WorkerDeath | None:
    """How a worker died, if it does within that time."""
    try:
        async with asyncio.timeout(within_seconds):
            return await process.wait()
    except TimeoutError:
        return None


async def test_workers_serve_a_chain_and_end_when_told():
    processes = [NodeProcess(WORKER, config(0, 3)), NodeProcess(WORKER, config(3, 6))]
    addresses = await asyncio.gather(*(process.start() for process in processes))
    try:
        async with model_over(addresses) as model:
            assert (await ask(model, prompt_of(30), 20)).tokens == alone(prompt_of(30), 20)
            states = [health.state for _, health in await model.chain()]
            assert states == [LifecycleState.READY] * 2
    finally:
        began = time.perf_counter()
        await asyncio.gather(*(process.stop() for process in processes))
    assert time.perf_counter() - began < GONE_SECONDS
    deaths = [await process.wait() for process in processes]
    assert [death.returncode for death in deaths] == [0, 0]
    assert [death.last_words for death in deaths] == [(), ()]
    await processes[0].stop()


@pytest.mark.parametrize("fault", ["killed", "exits hard"])
async def test_a_worker_that_dies_takes_its_generations_along_but_nobody_else(fault):
    step = 40
    faults = [Fault(FaultKind.HARD_EXIT, step)] if fault == "exits hard" else []
    tail = NodeProcess(WORKER, config(3, 6, faults, step_seconds=0.005))
    head = NodeProcess(WORKER, config(0, 3))
    try:
        addresses = await asyncio.gather(head.start(), tail.start())
        async with model_over(addresses) as model:
            asking = asyncio.create_task(ask(model, prompt_of(9), 4000))
            if fault == "killed":
                await asyncio.sleep(0.2)
                assert tail.pid is not None
                os.kill(tail.pid, signal.SIGKILL)
            death = await asyncio.wait_for(tail.wait(), 5)
            began = time.perf_counter()
            with pytest.raises(NodeLostError) as caught:
                await asyncio.wait_for(asking, 3)
            assert time.perf_counter() - began < 1.0
            assert caught.value.details["node"] == "node-3"
        assert death.returncode == (-signal.SIGKILL if fault == "killed" else 134)
        assert "node-3" in death.describe()
        assert "[3, 6)" in death.describe()
        assert await died(head, 0.1) is None
        assert (await died(tail, 0.1)) == death
    finally:
        await asyncio.gather(head.stop(), tail.stop())


@pytest.mark.parametrize("when", ["idle", "in a step that hangs"])
async def test_a_worker_ends_when_its_supervisor_is_gone(when):
    faults = [Fault(FaultKind.HANG, 1)] if when != "idle" else []
    process = await asyncio.create_subprocess_exec(
        *WORKER, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(config(faults=faults).to_json() + b"\n")
    event = json.loads(await process.stdout.readline())
    if faults:
        async with model_over([event["address"]]) as model:
            asking = asyncio.create_task(ask(model, prompt_of(9)))
            await asyncio.sleep(0.2)
            asking.cancel()
            await asyncio.wait({asking})
    process.stdin.close()
    await asyncio.wait_for(process.wait(), GONE_SECONDS)


async def test_a_worker_outlives_ctrl_c_and_ends_at_sigterm():
    async with running(config()) as (process,):
        assert process.pid is not None
        os.kill(process.pid, signal.SIGINT)
        assert await died(process, 0.3) is None
        os.kill(process.pid, signal.SIGTERM)
        death = await asyncio.wait_for(process.wait(), GONE_SECONDS)
        assert death.returncode == 0
        assert death.last_words == ()


async def test_a_start_that_is_given_up_leaves_no_process():
    process = NodeProcess(script("time.sleep(60)"), config())
    starting = asyncio.create_task(process.start())
    await asyncio.sleep(0.2)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert process.pid is not None
    assert not psutil.pid_exists(process.pid)


async def test_a_start_that_takes_too_long_is_an_error_that_names_the_node():
    process = NodeProcess(script("time.sleep(60)"), config())
    with pytest.raises(NodeNotReadyError, match=r"node-0.*within 0\.3 s"):
        await process.start(timeout_seconds=0.3)


@pytest.mark.parametrize(
    ("does", "error", "said"),
    [
        ("print('out of paper', file=sys.stderr); sys.exit(3)", NodeLostError, "out of paper"),
        ("sys.exit(0)", NodeLostError, "ended with status 0"),
        ("print('hello')", NodeNotReadyError, "hello"),
        ("print('x' * 200_000)", NodeNotReadyError, "more than fits"),
        ('print(\'{"event": "resting"}\')', NodeNotReadyError, "resting"),
    ],
    ids=["dies", "ends", "says something else", "says too much", "says an unknown event"],
)
async def test_a_worker_that_doesnt_start_is_explained(does, error, said):
    with pytest.raises(error, match=said) as caught:
        await NodeProcess(script(does), config()).start()
    assert "node-0" in caught.value.message


async def test_a_command_that_isnt_there_is_an_error_of_ours():
    with pytest.raises(NodeNotReadyError, match="can't be started"):
        await NodeProcess(("/no/such/program",), config()).start()


async def test_a_port_in_use_is_the_workers_own_error():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InvalidArgumentError, match="in use"):
            await NodeProcess(WORKER, config(listen=address)).start()


async def test_an_engine_that_fails_its_first_step_is_never_ready():
    broken = config(faults=[Fault(FaultKind.EXCEPTION, 0)])
    with pytest.raises(EngineError, match="told to fail at step 0"):
        await NodeProcess(WORKER, broken).start()


@pytest.mark.parametrize("line", [b"", b"\n", b"{}\n", b"\xff\xfe\n"])
async def test_a_worker_without_a_configuration_says_so_in_an_event(line):
    process = await asyncio.create_subprocess_exec(
        *WORKER,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(line), 10)
    event = json.loads(out)
    assert event["event"] == "failed"
    assert "node configuration" in event["status"]["message"]
    assert (process.returncode, err) == (1, b"")


async def test_a_flood_on_standard_error_neither_stops_nor_fills_the_supervisor():
    flood = (
        "for _ in range(40): sys.stderr.write('x' * 100_000 + '\\n')\n"
        "print('last words', file=sys.stderr, flush=True)\n"
        'print(\'{"event": "ready", "address": "h:1"}\', flush=True)\n'
        "sys.stdin.read()"
    )
    process = NodeProcess(script(flood), config())
    assert await process.start(timeout_seconds=10) == "h:1"
    await process.stop()
    assert (await process.wait()).last_words[-1] == "last words"


async def test_a_keeper_starts_its_worker_again_at_the_same_address():
    deaths: list[WorkerDeath] = []
    kept = NodeKeeper(WORKER, config(), deaths.append)
    try:
        address = await kept.start()
        first = kept.process.pid
        assert first is not None
        os.kill(first, signal.SIGKILL)
        async with asyncio.timeout(10), model_over_soon(address) as model:
            assert (await ask(model, prompt_of(9), 5)).tokens == alone(prompt_of(9), 5)
        assert kept.process.pid != first
        assert [death.returncode for death in deaths] == [-signal.SIGKILL]
    finally:
        await kept.stop()
    assert len(deaths) == 1, "a worker that is stopped on purpose didn't die"


@asynccontextmanager
async def model_over_soon(address: Address) -> AsyncIterator[ChainModel]:
    """Like :func:`model_over`, once the node answers."""
    channels = ChannelPool(GrpcTransport())
    try:
        await channels.channel(address, 8.0)
        chain = await find_chain(channels, [address])
        yield ChainModel("fixture", ByteTokenizer(), chain, channels)
    finally:
        await channels.close()


READY_THEN = (
    'print(\'{"event": "ready", "address": "h:1"}\', flush=True)\ntime.sleep(0.05)\nsys.exit(7)'
)


async def test_a_keeper_gives_up_on_a_worker_that_dies_again_and_again(monkeypatch):
    monkeypatch.setattr(keeper_module, "FIRST_PAUSE_SECONDS", 0.01)
    deaths: list[WorkerDeath] = []
    kept = NodeKeeper(script(READY_THEN), config(), deaths.append)
    await kept.start()
    await asyncio.wait_for(kept.gone(), 10)
    assert [death.returncode for death in deaths] == [7] * keeper_module.MAX_DEATHS
    await kept.stop()


async def test_a_keeper_counts_a_restart_that_fails(monkeypatch, caplog, tmp_path):
    monkeypatch.setattr(keeper_module, "FIRST_PAUSE_SECONDS", 0.01)
    deaths: list[WorkerDeath] = []
    once = (
        f"import pathlib; seen = pathlib.Path({str(tmp_path / 'seen')!r})\n"
        "if seen.exists(): sys.exit('no second time')\n"
        f"seen.touch()\n{READY_THEN}"
    )
    kept = NodeKeeper(script(once), config(), deaths.append)
    await kept.start()
    await asyncio.wait_for(kept.gone(), 10)
    await kept.stop()
    assert len(deaths) == 1
    assert caplog.text.count("no second time") == keeper_module.MAX_DEATHS - 1


async def test_a_keeper_that_is_stopped_between_two_lives_leaves_nothing():
    kept = NodeKeeper(script(READY_THEN), config(), lambda _: None)
    await kept.start()
    await asyncio.sleep(0.3)
    await kept.stop()


async def test_a_keeper_whose_first_start_fails_says_why_and_watches_nothing():
    kept = NodeKeeper(script("sys.exit(3)"), config(), lambda _: None)
    with pytest.raises(NodeLostError, match="status 3"):
        await kept.start()
    await asyncio.wait_for(kept.gone(), 0.1)
    await kept.stop()
