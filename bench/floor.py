"""How fast could a chain of processes be here if a node cost nothing?

    python -m bench.floor [--model smollm2|gemma3|FILE] [--runs 5]
    sudo python -m bench.floor --delay-ms 20 [...]

Decodes one stream over bare chains: processes that do libllama's steps and hand on bytes, over
blocking sockets, and over gRPC's Python streams. No session, no check, no codec, no second stream.
Beside them the unsplit model and Meshnet, in turns, a thread each. What a bare chain doesn't reach,
no node over the same transport can. With ``--delay-ms`` once more over two machines so far from
each other (``bench.wan``).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.contest import (
    UNSPLIT,
    Contender,
    chain,
    in_turns,
    meshnet,
    random_prompts,
    require_same_tokens,
    unsplit,
)
from bench.llamacpp import HERE, LEASH, Place, free_port
from bench.report import (
    Column,
    Report,
    Table,
    conditions,
    contest_parser,
    done,
    finish,
    progress,
)
from bench.setup import NodePlace, Run, chain_on, even_ranges, median, model_path, run
from bench.wan.network import Link, enter, network
from meshnet.domain.layers import LayerRange
from meshnet.model.description import describe
from meshnet.model.gguf import read_index

NAME = "floor"
PROMPT, TOKENS, QUICK_TOKENS = 16, 64, 8
KINDS = {"sockets": "bare sockets", "grpc": "bare gRPC"}
COUNTS = (2, 3)
COLUMNS = (
    Column(""),
    Column("tokens/s"),
    Column("÷ limit", 3),
    Column("lowest to highest"),
    Column("lost a token, ms", 2),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What every chain has."""

    path: Path
    context_length: int
    places: tuple[Place, ...]
    """Of the machines, as many as the longest chain has."""

    def ranges(self, count: int) -> tuple[LayerRange, ...]:
        """The layers of each of ``count`` processes."""
        return even_ranges(describe(read_index(self.path)).total_layers, count)


@asynccontextmanager
async def bare_chain(plan: Plan, kind: str, count: int) -> AsyncIterator[Contender]:
    """Bare processes, each sending to the next one and the last to the first."""
    places = plan.places[:count]
    addresses = [f"{place.host}:{free_port(HERE)}" for place in places]
    following = [*addresses[1:], addresses[0]]
    children: list[asyncio.subprocess.Process] = []
    try:
        for place, layers, own, then in zip(
            places, plan.ranges(count), addresses, following, strict=True
        ):
            command = [*LEASH, *place.command, sys.executable, "-m", "bench.floor_worker", kind]
            command += [str(plan.path), str(layers.start), str(layers.end)]
            command += [str(plan.context_length), own, then]
            child = await asyncio.create_subprocess_exec(
                *command, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
            )
            children.append(child)
        for child in children:
            await _line(child)
        head = children[0]

        async def generate(prompt: Sequence[int], tokens: int) -> Run:
            if head.stdin is None:
                raise SystemExit("a bare chain's head can't be told anything")
            head.stdin.write(json.dumps([list(prompt), tokens]).encode() + b"\n")
            made = json.loads(await _line(head))
            return Run(made["first"], made["rest"], tuple(made["tokens"]))

        yield generate
    finally:
        for child in children:
            child.kill()
            await child.wait()


async def _line(child: asyncio.subprocess.Process) -> bytes:
    line = await child.stdout.readline() if child.stdout else b""
    if not line:
        raise SystemExit("a process of a bare chain ended")
    return line


def table_of(made: dict[str, list[Run]], delays_ms: dict[str, float]) -> Table:
    """A line for each chain; ``delays_ms`` is what the links of each cost a token."""
    alone = [1e3 / each.decode_rate for each in made[UNSPLIT]]
    rows: list[tuple[str | float, ...]] = []
    for name, runs in made.items():
        takes = [1e3 / each.decode_rate for each in runs]
        limits = [compute + delays_ms[name] for compute in alone]
        shares = [limit / took for limit, took in zip(limits, takes, strict=True)]
        lost = [took - limit for limit, took in zip(limits, takes, strict=True)]
        spread = f"{min(shares):.2f} to {max(shares):.2f}"
        rate = median([each.decode_rate for each in runs])
        rows.append((name, rate, median(shares), spread, median(lost)))
    far = max(delays_ms.values())
    caption = f"Links that take {far:g} ms of each token:" if far else "One machine:"
    return Table(caption, COLUMNS, tuple(rows))


async def measure(plan: Plan, delay_ms: float, options: argparse.Namespace) -> Table:
    """All in turns."""
    tokens = QUICK_TOKENS if options.quick else TOKENS
    delays = {UNSPLIT: 0.0}
    async with AsyncExitStack() as stack:
        contenders = {UNSPLIT: unsplit(stack, plan.path, 1, plan.context_length)}
        for count in COUNTS[: len(plan.places) - 1]:
            for kind, text in KINDS.items():
                name = f"{text}, {count} processes"
                progress(f"starting {name}")
                bare = bare_chain(plan, kind, count)
                contenders[name] = await stack.enter_async_context(bare)
                delays[name] = count * delay_ms
            progress(f"starting {meshnet(count)}")
            places = [
                NodePlace(place.command, f"{place.host}:{free_port(HERE)}")
                for place in plan.places[:count]
            ]
            nodes = chain_on(places, plan.path, 1, plan.context_length, ranges=plan.ranges(count))
            model, _ = await stack.enter_async_context(nodes)
            contenders[meshnet(count)] = chain(model)
            delays[meshnet(count)] = count * delay_ms
        done()
        prompts = random_prompts(plan.path, PROMPT, options.runs + 1)
        await in_turns(contenders, prompts[:1], tokens)
        made = await in_turns(contenders, prompts[1:], tokens)
    require_same_tokens(made)
    return table_of(made, delays)


def main() -> None:
    parser = contest_parser(NAME, __doc__)
    parser.add_argument("--delay-ms", type=float, help="also over such links, one way; as root")
    options = parser.parse_args()
    path = model_path(options.model)
    tables: list[Table] = []

    async def work(places: tuple[Place, ...], delay_ms: float) -> None:
        plan = Plan(path, PROMPT + TOKENS + 8, places)
        tables.append(await measure(plan, delay_ms, options))

    run(work((Place(HERE),) * max(COUNTS), 0.0))
    if options.delay_ms is not None:
        with network(2) as net:
            enter(net.namespaces[0])
            net.set(Link(options.delay_ms))
            places = tuple(Place(net.address(each), net.command(each)) for each in range(2))
            run(work(places, options.delay_ms))
    about = (
        conditions("bench.floor"),
        f"{path.name}, {TOKENS} tokens after a prompt of {PROMPT}, one stream, 1 thread for each "
        "process. The limit: the unsplit model's time for a token, and the links'. Median of "
        f"{options.runs} runs in turns.",
    )
    finish(Report(NAME, about, tuple(tables)), options)


if __name__ == "__main__":
    main()
