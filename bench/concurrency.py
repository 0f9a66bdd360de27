"""How many tokens come for 1 to 16 readers at once, and how evenly?

    python -m bench.concurrency [--model smollm2|gemma3|FILE] [--runs 2] [--threads 1]

All systems are servers with the OpenAI API, and one client reads their streams: ``meshnet serve``
over two nodes and over one, ``llama-server`` over two RPC servers, and ``llama-server`` unsplit
with one node's threads and with both nodes' threads. They take turns. Then four readers are under
way when a prompt of 2,048 tokens comes: how long do they wait for their next token?
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.contest import random_prompts
from bench.gateway import MODEL, gateway
from bench.llamacpp import Place, ServerPlan, llama_server
from bench.load import (
    CompletionClient,
    Intrusion,
    Load,
    Readers,
    at_once,
    intrude,
    percentile,
)
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
from bench.setup import median, model_path, run
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.node.config import CHUNK_TOKENS

NAME = "concurrency"
NODES = 2
SMALL_BATCH = CHUNK_TOKENS
"""Of the peer's second try at a long prompt: as many tokens as a Meshnet node takes at a time."""
LOAD_COLUMNS = (
    Column("readers"),
    Column(""),
    Column("tokens/s in all"),
    Column("gap p50, ms"),
    Column("gap p99, ms"),
    Column("Meshnet over 2 ÷ it", 2),
)
INTRUSION_COLUMNS = (
    Column(""),
    Column("gap p50 before, ms", 0),
    Column("gap p99 before, ms", 0),
    Column("gap p50, ms", 0),
    Column("gap p99, ms", 0),
    Column("p99 ÷ before", 1),
    Column("longest, ms", 0),
    Column("long prompt's first token, s"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is asked for."""

    levels: tuple[int, ...] = (1, 2, 4, 8)
    most: int = 16
    """Readers of one more level, which takes long and so comes but once."""
    prompt: int = 16
    tokens: int = 48
    readers: int = 4
    """Under way when the long prompt comes."""
    quiet: int = 64
    """Pieces that each has got by then."""
    long: int = 2048
    room: int = 1536
    """Tokens that a reader may get until the long prompt is through."""

    @property
    def slots(self) -> int:
        """Generations that a server must take at once."""
        return max(*self.levels, self.most, self.readers + 1)

    @property
    def context(self) -> int:
        """Tokens of one generation."""
        return max(self.long, self.prompt + self.room) + 64


QUICK = Sizes(levels=(1,), most=2, tokens=6, readers=2, quiet=8, long=192, room=64)


def meshnet(nodes: int, threads: int) -> str:
    """The name of Meshnet over that many nodes."""
    return f"Meshnet, {nodes} x {threads} thread(s)"


@asynccontextmanager
async def meshnet_serve(path: Path, nodes: int, threads: int, sizes: Sizes) -> AsyncIterator[str]:
    """The gateway over so many nodes, as a user starts it; yields its address."""
    options = ["--nodes", str(nodes), "--threads", str(threads), "--ctx", str(sizes.context)]
    options += ["--sessions", str(sizes.slots), "--speculation", "off"]
    async with gateway(path, *options) as (url, _):
        yield url


class Contest:
    """The servers that are up, each with its client."""

    def __init__(self, stack: AsyncExitStack, forbidden: Sequence[int]) -> None:
        self._stack = stack
        self._forbidden = forbidden
        self.clients: dict[str, CompletionClient] = {}

    def add(self, name: str, url: str) -> None:
        """A server that is up."""
        client = CompletionClient(url, MODEL, self._forbidden)
        self._stack.push_async_callback(client.close)
        self.clients[name] = client

    async def start(self, programs: Peers, plan: ServerPlan, sizes: Sizes) -> None:
        """Start all that are compared; ``plan`` is that of one node's threads."""
        path, threads, total = plan.model, plan.threads, NODES * plan.threads
        both = replace(plan, threads=total)
        small = replace(both, batch=SMALL_BATCH)
        peers_: dict[str, tuple[ServerPlan, list[Place]]] = {
            f"llama-server unsplit, {threads} thread(s)": (plan, []),
            f"llama-server unsplit, {total} threads": (both, []),
            f"llama-server unsplit, {total} threads, batch {SMALL_BATCH}": (small, []),
            f"llama-server over RPC, {NODES} x {threads} thread(s)": (plan, [Place()] * NODES),
        }
        for name, (chosen, places) in peers_.items():
            progress(f"starting {name}")
            server = await self._stack.enter_async_context(llama_server(programs, chosen, places))
            self.add(name, server.url)
        for nodes in (1, NODES):
            name = meshnet(nodes, threads)
            progress(f"starting {name}")
            serving = meshnet_serve(path, nodes, threads, sizes)
            self.add(name, await self._stack.enter_async_context(serving))
        done()


async def load_table(contest: Contest, path: Path, sizes: Sizes, runs: int, split: str) -> Table:
    """Every level, every server, in turns; ``split`` is the one that the others compare with."""
    names = [name for name in contest.clients if not name.endswith(f"batch {SMALL_BATCH}")]
    rows: list[tuple[str | int | float, ...]] = []
    for level in (*sizes.levels, sizes.most):
        made: dict[str, list[Load]] = {name: [] for name in names}
        for number in range(1 if level == sizes.most else runs):
            prompts = random_prompts(path, sizes.prompt, level, first=1000 * number)
            first = number % len(names)
            for name in names[first:] + names[:first]:
                progress(f"{level} reader(s), run {number + 1}: {name}")
                made[name].append(await at_once(contest.clients[name], prompts, sizes.tokens))
        rates = {name: [load.rate for load in loads] for name, loads in made.items()}
        for name in names:
            gaps = [gap for load in made[name] for gap in load.gaps_ms]
            p50, p99 = percentile(gaps, 50), percentile(gaps, 99)
            over = ratio(rates[split], rates[name])
            rows.append((level, name, median(rates[name]), p50, p99, over))
    done()
    return Table("Readers at once:", LOAD_COLUMNS, tuple(rows))


async def intrusion_table(contest: Contest, path: Path, sizes: Sizes, left_out: str) -> Table:
    """Every server once, but the one left out: a long prompt while readers are under way."""
    prompts = random_prompts(path, sizes.prompt, sizes.readers, first=20_000)
    readers = Readers(prompts, sizes.room, sizes.quiet)
    (long,) = random_prompts(path, sizes.long, 1, first=30_000)

    def row(name: str, made: Intrusion) -> tuple[str | float, ...]:
        before, gaps = made.before_ms, made.gaps_ms
        usual, beside = percentile(before, 99), percentile(gaps, 99)
        middle = (percentile(before, 50), usual, percentile(gaps, 50), beside, beside / usual)
        return (name, *middle, max(gaps), made.first)

    rows = []
    for name, client in contest.clients.items():
        if name != left_out:
            progress(f"a prompt of {sizes.long} beside {sizes.readers} readers: {name}")
            rows.append(row(name, await intrude(client, readers, long)))
    done()
    caption = (
        f"{sizes.readers} readers before and while a prompt of {sizes.long} tokens is computed:"
    )
    return Table(caption, INTRUSION_COLUMNS, tuple(rows))


async def main(options: argparse.Namespace) -> None:
    path, programs = model_path(options.model), peers()
    sizes = QUICK if options.quick else Sizes()
    with Vocabulary.load(path) as vocabulary:
        forbidden = sorted(vocabulary.end_of_generation)
    async with AsyncExitStack() as stack:
        contest = Contest(stack, forbidden)
        plan = ServerPlan(path, options.threads, sizes.context, sizes.slots)
        await contest.start(programs, replace(plan, extra=options.peer_args), sizes)
        warm_up = random_prompts(path, sizes.prompt, 2, first=40_000)
        for client in contest.clients.values():
            await at_once(client, warm_up, sizes.tokens)
        one, split = (meshnet(nodes, options.threads) for nodes in (1, NODES))
        tables = (
            await load_table(contest, path, sizes, options.runs, split),
            await intrusion_table(contest, path, sizes, one),
        )
    about = (
        conditions("bench.concurrency"),
        f"{path.name}, {sizes.tokens} tokens after prompts of {sizes.prompt}, streamed over HTTP. "
        f"Tokens/s: median of {options.runs} runs in turns (one of {sizes.most} readers), prompts "
        "included in the time; a ratio is the median of the runs'; gaps: of all readers and runs.",
    )
    finish(Report(NAME, about, tables), options)


if __name__ == "__main__":
    parser = contest_parser(NAME, __doc__)
    parser.set_defaults(runs=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of each node and server")
    run(main(parser.parse_args()))
