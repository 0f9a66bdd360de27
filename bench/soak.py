"""Sessions that come and go at random over a chain, for minutes: is everything given back?

    python -m bench.soak [--seconds 300] [--sessions 200] [--model smollm2|gemma3|FILE]

So many readers at once each ask again and again. An answer is read to its end, or left early, or
its deadline passes, or its whole connection breaks. In the end no node may hold a session, a cache,
or more memory than it did after the first round; and every answer read to its end must be the
same as when nobody else asked. Without --model the nodes have the fixture engine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.setup import GREEDY, even_ranges, model_path, prompt_tokens
from meshnet.cli.local import (
    LocalModel,
    cut_model,
    local_nodes,
    node_config,
    split,
)
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.domain.errors import (
    DeadlineExceededError,
    MeshnetError,
    NodeUnreachableError,
    ResourceExhaustedError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.nodes import FlowControl
from meshnet.engine.base import EngineLimits
from meshnet.engine.tokenizer import ByteTokenizer, Tokenizer
from meshnet.node.config import FixtureEngineConfig, NodeConfig
from meshnet.node.supervisor import NodeProcess
from meshnet.session.chain import find_chain
from meshnet.session.generate import ChainModel
from meshnet.session.service import TextDelta, TextRequest
from meshnet.transport.channel import ChannelPool
from meshnet.transport.seam_client import GrpcTransport

ROUND_SECONDS = 10.0
IDLE_SECONDS = 20.0
LONGEST = 24
"""Tokens of an answer at most."""
FATES = ("read", "read", "left", "deadline", "broken")
GROWTH = 1.15
"""A process may end with so many times the memory it had after the first round."""
SLACK_BYTES = 16 * 2**20
LAYERS = 6

Connect = Callable[[], ChannelPool]
Tokens = tuple[int, ...]


class SoakError(Exception):
    """Something wasn't given back, or an answer was another."""


@dataclass(slots=True)
class Soak:
    """Readers over one chain. ``connect`` makes a gateway's connections, which the soak closes."""

    connect: Connect
    addresses: Sequence[Address]
    tokenizer: Tokenizer
    prompts: Sequence[Tokens]
    seed: int = 1
    fates: Counter[str] = field(default_factory=Counter)
    expected: dict[Tokens, Tokens] = field(default_factory=dict)

    async def learn(self) -> None:
        """Ask for each prompt's answer while nobody else does, with nothing kept from before."""
        for prompt in self.prompts:
            async with self._gateway() as model:
                self.expected[prompt] = await read(model, prompt, LONGEST, 600.0)

    async def run(self, seconds: float, readers: int) -> None:
        """Let so many readers ask for so long; raises :class:`SoakError` for a wrong answer."""
        until = time.monotonic() + seconds
        async with self._gateway() as shared, asyncio.TaskGroup() as group:
            for number in range(readers):
                draw = random.Random(f"{self.seed} {number}")
                group.create_task(self._reader(shared, draw, until))

    async def _reader(self, shared: ChainModel, draw: random.Random, until: float) -> None:
        while time.monotonic() < until:
            fate = draw.choice(FATES)
            try:
                await self._request(shared, draw, fate)
            except ResourceExhaustedError:
                self.fates["refused"] += 1
                await asyncio.sleep(draw.uniform(0.01, 0.1))
            else:
                self.fates[fate] += 1

    async def _request(self, shared: ChainModel, draw: random.Random, fate: str) -> None:
        prompt, count = draw.choice(self.prompts), draw.randint(1, LONGEST)
        if fate == "read":
            tokens = await read(shared, prompt, count, 600.0)
            if tokens != self.expected[prompt][:count]:
                raise SoakError(f"{tokens} instead of {self.expected[prompt][:count]}")
        elif fate == "left":
            await leave(shared, prompt, draw)
        elif fate == "deadline":
            # The first ones' time may pass while the stream to the head is opened.
            with contextlib.suppress(DeadlineExceededError, NodeUnreachableError):
                await read(shared, prompt, count, draw.uniform(0.001, 0.1))
        else:
            await self._break(prompt, draw)

    async def _break(self, prompt: Tokens, draw: random.Random) -> None:
        """Lose the connection to the head in the midst of an answer."""
        channels = self.connect()
        reading = asyncio.create_task(self._read_by(channels, prompt))
        await asyncio.wait({reading}, timeout=draw.uniform(0.0, 0.3))
        await channels.close()
        with contextlib.suppress(MeshnetError):
            await reading
        # A stream that was being opened just then.
        await channels.close()

    async def _read_by(self, channels: ChannelPool, prompt: Tokens) -> Tokens:
        chain = await find_chain(channels, self.addresses)
        model = ChainModel("soak", self.tokenizer, chain, channels)
        return await read(model, prompt, LONGEST, 600.0)

    @asynccontextmanager
    async def _gateway(self) -> AsyncIterator[ChainModel]:
        channels = self.connect()
        try:
            chain = await find_chain(channels, self.addresses)
            yield ChainModel("soak", self.tokenizer, chain, channels)
        finally:
            await channels.close()


async def read(model: ChainModel, prompt: Tokens, count: int, timeout_seconds: float) -> Tokens:
    """Read an answer to its end."""
    request = TextRequest(prompt, GREEDY, count, ignore_end=True, timeout_seconds=timeout_seconds)
    tokens: list[int] = []
    async for event in model.generate(request):
        if isinstance(event, TextDelta):
            tokens += [token.token_id for token in event.tokens]
    return tuple(tokens)


async def leave(model: ChainModel, prompt: Tokens, draw: random.Random) -> None:
    """Read a few tokens and go, or go at any moment."""
    reading = asyncio.create_task(_read_some(model, prompt, draw.randint(0, 5)))
    done, _ = await asyncio.wait({reading}, timeout=draw.uniform(0.0, 0.2))
    reading.cancel()
    await asyncio.wait({reading})
    if done and (failure := reading.exception()) is not None:
        raise failure


async def _read_some(model: ChainModel, prompt: Tokens, count: int) -> None:
    request = TextRequest(prompt, GREEDY, LONGEST, ignore_end=True)
    async with contextlib.aclosing(model.generate(request)) as events:
        async for _ in events:
            count -= 1
            if count < 0:
                return


def shared_prompts(known: Sequence[int]) -> list[Tokens]:
    """Prompts of many lengths; half of them begin alike."""
    system = tuple(known[:70])
    alike = [(*system, *known[100 + i : 110 + 3 * i]) for i in range(6)]
    return [*alike, *(tuple(known[200 + i : 203 + i + i * i]) for i in range(6))]


def resident(pid: int) -> int:
    """``VmRSS`` of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmRSS:\s*(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise SystemExit("this system doesn't tell a process's memory")
    return int(found[1]) * 1024


async def idle(processes: Sequence[NodeProcess]) -> None:
    """Wait until no node holds anything; raises :class:`SoakError` if one does for long."""
    deadline = time.monotonic() + IDLE_SECONDS
    while held := [text for process in processes if (text := await _held(process))]:
        if time.monotonic() > deadline:
            raise SoakError("; ".join(held))
        await asyncio.sleep(0.2)


async def _held(process: NodeProcess) -> str:
    now = await process.figures(5.0)
    held = {
        "sessions": now.open_sessions,
        "caches": now.engine.open_sessions,
        "positions": now.engine.positions,
        "reserved": now.positions_reserved,
        "queued steps": now.queued_steps,
    }
    left = ", ".join(f"{count} {name}" for name, count in held.items() if count)
    return f"node {process.node_id} still holds {left}" if left else ""


async def measured(
    soak: Soak, seconds: float, readers: int, processes: Sequence[NodeProcess]
) -> Mapping[str, tuple[int, int]]:
    """Soak; each node's and this process's memory after the first round and at the end, bytes."""
    await soak.learn()
    await soak.run(min(ROUND_SECONDS, seconds / 2), readers)
    await idle(processes)
    pids = {str(process.node_id): process.pid or 0 for process in processes} | {"gateway": 0}
    before = {name: _resident(pid) for name, pid in pids.items()}
    tasks = len(asyncio.all_tasks())
    await soak.run(seconds - min(ROUND_SECONDS, seconds / 2), readers)
    await idle(processes)
    if len(asyncio.all_tasks()) > tasks:
        raise SoakError(f"{len(asyncio.all_tasks())} tasks are left where {tasks} were")
    return {name: (before[name], _resident(pid)) for name, pid in pids.items()}


def _resident(pid: int) -> int:
    return resident(pid) if pid else _own()


def _own() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def fixture_configs(nodes: int, sessions: int) -> list[NodeConfig]:
    """Nodes with the fixture engine, quick but not instant."""
    return [
        NodeConfig(
            NodeId(f"node-{number}"),
            layers.start,
            layers.end,
            LAYERS,
            FixtureEngineConfig(step_seconds=0.001),
            limits=EngineLimits(512, sessions),
            flow=FlowControl(max_sessions=sessions),
        )
        for number, layers in enumerate(even_ranges(LAYERS, nodes), start=1)
    ]


def llama_configs(path: Path, nodes: int, sessions: int) -> list[NodeConfig]:
    """Nodes over slices of a model."""
    options = NodeOptions(nodes, 1, 512, sessions)
    model = LocalModel(path, path.stem)
    cuts = cut_model(model, split(model, options), Settings.from_environment(), options)
    return [
        node_config(number, cut, options, "127.0.0.1:0", None)
        for number, cut in enumerate(cuts, start=1)
    ]


async def main(asked: argparse.Namespace) -> None:
    """Soak and print."""
    if asked.model is None:
        configs = fixture_configs(asked.nodes, asked.places)
        tokenizer: Tokenizer = ByteTokenizer()
        known: Sequence[int] = [32 + (i * 7 + i * i) % 95 for i in range(400)]
        await _soak(asked, configs, tokenizer, known)
        return
    from meshnet.engine.llamacpp.vocabulary import Vocabulary

    path = model_path(asked.model)
    configs = llama_configs(path, asked.nodes, asked.places)
    with Vocabulary.load(path) as vocabulary:
        await _soak(asked, configs, vocabulary, prompt_tokens(path, 400))


async def _soak(
    asked: argparse.Namespace,
    configs: Sequence[NodeConfig],
    tokenizer: Tokenizer,
    known: Sequence[int],
) -> None:
    async with local_nodes(configs) as (addresses, processes):
        soak = Soak(
            lambda: ChannelPool(GrpcTransport()), addresses, tokenizer, shared_prompts(known)
        )
        memory = await measured(soak, asked.seconds, asked.sessions, processes)
    print(", ".join(f"{count} {fate}" for fate, count in sorted(soak.fates.items())))
    grown = False
    for name, (before, after) in memory.items():
        grown = grown or after > before * GROWTH + SLACK_BYTES
        print(
            f"{name}: {before / 2**20:.1f} MiB after the first round, {after / 2**20:.1f} at last"
        )
    print("memory grew" if grown else "all was given back, every answer was right")
    if grown:
        sys.exit(1)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", help="smollm2, gemma3, or a GGUF file; default: the fixture")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--sessions", type=int, default=200, help="readers at once")
    parser.add_argument("--places", type=int, default=16, help="sessions that a node serves")
    return parser.parse_args()


if __name__ == "__main__":
    uvloop.run(main(arguments()))
