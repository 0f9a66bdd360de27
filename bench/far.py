"""How many tokens come for several readers where the machines are far apart?

    sudo python -m bench.far [--model smollm2|gemma3|FILE] [--runs 3] [--before TREE]

Two network namespaces behind a router (``bench.wan``) with a fixed delay one way, and a server with
the OpenAI API on the first: Meshnet over a node on each machine, llama.cpp over an RPC server on
each. One client reads all streams; the systems take turns. With ``--before``, another checkout's
nodes (its tap built) are one more, for comparison.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.contest import random_prompts
from bench.gateway import MODEL, gateway
from bench.llamacpp import Place, ServerPlan, llama_server
from bench.load import CompletionClient, Load, at_once, percentile
from bench.peers import Peers, peers
from bench.report import (
    Column,
    Report,
    Table,
    conditions,
    contest_parser,
    done,
    finish,
    progress,
    ratio,
)
from bench.setup import NodePlace, chain_on, median, model_path, run
from bench.wan.network import Link, Network, enter, network
from meshnet.engine.llamacpp.vocabulary import Vocabulary

NAME = "far"
MESHNET, BEFORE, RPC = "Meshnet", "Meshnet, before", "llama-server over RPC"
MACHINES = 2
PORT = 7000
COLUMNS = (
    Column("one way"),
    Column("readers"),
    Column(""),
    Column("tokens/s in all"),
    Column("gap p50, ms"),
    Column("gap p99, ms"),
    Column("Meshnet ÷ it", 2),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked for."""

    delays: tuple[float, ...] = (0.2, 5.0, 20.0)
    levels: tuple[int, ...] = (1, 4, 8)
    prompt: int = 16
    tokens: int = 48

    @property
    def context(self) -> int:
        """Tokens of one generation."""
        return self.prompt + self.tokens + 64


QUICK = Sizes((5.0,), (2,), 16, 6)


@asynccontextmanager
async def meshnet_on(net: Network, plan: ServerPlan, tree: Path | None) -> AsyncIterator[str]:
    """A gateway in this process's network over a node on each machine; yields its address."""
    tree_first = () if tree is None else ("env", f"PYTHONPATH={tree / 'src'}")
    listen = [f"{net.address(number)}:{PORT}" for number in range(MACHINES)]
    places = [
        NodePlace((*net.command(number), *tree_first), address)
        for number, address in enumerate(listen)
    ]
    nodes = chain_on(places, plan.model, plan.threads, plan.context_length, sessions=plan.slots)
    options = ("--chain", ",".join(listen), "--speculation", "off")
    async with nodes, gateway(plan.model, *options) as (url, _):
        yield url


async def measure(
    net: Network, programs: Peers, plan: ServerPlan, sizes: Sizes, options: argparse.Namespace
) -> Table:
    """Every link, every level, every system in turns; one system at a time is up."""
    made: dict[tuple[float, int, str], list[Load]] = {}
    trees = {MESHNET: None} if options.before is None else {BEFORE: options.before, MESHNET: None}
    with Vocabulary.load(plan.model) as vocabulary:
        forbidden = sorted(vocabulary.end_of_generation)

    async def ask(name: str, url: str, number: int) -> None:
        client = CompletionClient(url, MODEL, forbidden)
        net.set(Link(0.0))
        await at_once(client, random_prompts(plan.model, sizes.prompt, 2, 40_000), sizes.tokens)
        for delay in sizes.delays:
            net.set(Link(delay))
            for level in sizes.levels:
                progress(f"run {number + 1}: {name}, {delay:g} ms, {level} reader(s)")
                prompts = random_prompts(plan.model, sizes.prompt, level, first=1000 * number)
                load = await at_once(client, prompts, sizes.tokens)
                made.setdefault((delay, level, name), []).append(load)
        net.set(Link(0.0))
        await client.close()

    places = [Place(net.address(number), net.command(number)) for number in range(MACHINES)]

    async def ask_peer(number: int) -> None:
        async with llama_server(programs, plan, places) as server:
            await ask(RPC, server.url, number)

    async def ask_meshnet(name: str, number: int) -> None:
        async with meshnet_on(net, plan, trees[name]) as url:
            await ask(name, url, number)

    turns: list[Callable[[int], Awaitable[None]]]
    turns = [*(partial(ask_meshnet, name) for name in trees), ask_peer]
    for number in range(options.runs):
        first = number % len(turns)
        for turn in turns[first:] + turns[:first]:
            await turn(number)
    done()
    return table_of(made)


def table_of(made: dict[tuple[float, int, str], list[Load]]) -> Table:
    """A line for each system, by link and readers."""
    rows: list[tuple[str | int | float, ...]] = []
    order = [BEFORE, MESHNET, RPC]
    for delay, level, name in sorted(made, key=lambda each: (*each[:2], order.index(each[2]))):
        loads = made[delay, level, name]
        ours = [load.rate for load in made[delay, level, MESHNET]]
        rates = [load.rate for load in loads]
        gaps = [gap for load in loads for gap in load.gaps_ms]
        shares = (percentile(gaps, 50), percentile(gaps, 99), ratio(ours, rates))
        rows.append((f"{delay:g} ms", level, name, median(rates), *shares))
    return Table("", COLUMNS, tuple(rows))


def main() -> None:
    parser = contest_parser(NAME, __doc__)
    parser.add_argument(
        "--before", type=lambda text: Path(text).resolve(), help="another checkout to compare with"
    )
    parser.set_defaults(runs=3)
    options = parser.parse_args()
    path, programs = model_path(options.model), peers()
    sizes = QUICK if options.quick else Sizes()
    plan = ServerPlan(path, 1, sizes.context, max(sizes.levels), extra=options.peer_args)
    tables: list[Table] = []

    async def work() -> None:
        tables.append(await measure(net, programs, plan, sizes, options))

    with network(MACHINES) as net:
        enter(net.namespaces[0])
        run(work())
    about = (
        conditions("bench.far"),
        f"{path.name} over {MACHINES} machines with one thread each, {sizes.tokens} tokens after "
        f"prompts of {sizes.prompt}, streamed over HTTP. Tokens/s: median of {options.runs} runs "
        "in turns, prompts included in the time; a ratio is the median of the runs'; gaps: of all "
        "readers and runs.",
    )
    finish(Report(NAME, about, tuple(tables)), options)


if __name__ == "__main__":
    main()
