"""What does a link with a delay or a low rate cost?

    sudo python -m bench.links [--model smollm2|gemma3|FILE] [--runs 3] [--machines 2]

The machines are network namespaces behind a router (``bench.wan``) with a fixed delay one way, and
on some links a rate; the sender of the prompt is the first of them. Meshnet has a node on each
machine, llama.cpp an RPC server on each and its main process on the first. They take turns. The
limit is what no chain can beat without guessing: the unsplit model's time for a token, the delay
once for each machine (a token goes through all, and back), and the bytes of the boundary over the
rate.

With speculation, both guess the next tokens from what the text has had before. There both have
flash attention, with which several rows of a session at once are exact in this libllama.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from bench.contest import (
    UNSPLIT,
    Contender,
    chain,
    in_turns,
    random_prompts,
    require_equal,
    require_same_tokens,
    unsplit,
)
from bench.llamacpp import Place, ServerPlan, llama_server
from bench.peers import Peers, peers
from bench.prompts import Kind, prompt_of
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
from bench.setup import NodePlace, Run, chain_on, median, model_path, run
from bench.wan.network import Link, Network, enter, network
from bench.wan.probe import round_trips_ms
from meshnet.domain.generation import Speculation
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.model.description import describe
from meshnet.model.gguf import read_index

NAME = "links"
RPC, MESHNET = "llama.cpp RPC", "Meshnet"
GUESSING_RPC = "llama.cpp RPC, ngram-simple"
GUESSING_MESHNET = {mode: f"Meshnet, speculation {mode.value}" for mode in Speculation}
GUESSING = ("--spec-type", "ngram-simple", "--flash-attn", "on")
NODE_PORTS = {False: 7000, True: 7001}
"""Without and with flash attention."""
DECODE_COLUMNS = (
    Column("one way"),
    Column("round trip, ms", 2),
    Column("limit"),
    Column("Meshnet"),
    Column("llama.cpp RPC"),
    Column("Meshnet ÷ limit", 2),
    Column("RPC ÷ limit", 2),
    Column("Meshnet ÷ RPC", 2),
)
PREFILL_COLUMNS = (
    Column("one way"),
    Column("Meshnet, s", 2),
    Column("llama.cpp RPC, s", 2),
    Column("RPC ÷ Meshnet", 2),
)
GUESS_COLUMNS = (
    Column("one way"),
    Column("prompt"),
    Column("off"),
    Column("auto"),
    Column("on"),
    Column("auto ÷ off", 2),
    Column("auto ÷ limit", 2),
    Column("llama.cpp RPC, ngram-simple"),
)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured."""

    links: tuple[Link, ...] = (
        *(Link(delay) for delay in (0.2, 1.0, 5.0, 20.0, 50.0)),
        Link(1.0, 1000.0),
        Link(1.0, 100.0),
        Link(20.0, 100.0),
    )
    guess_links: tuple[Link, ...] = (Link(1.0), Link(20.0))
    prompt: int = 16
    tokens: int = 32
    long: int = 512
    guess_tokens: int = 96

    @property
    def context(self) -> int:
        """Tokens that any of the generations has."""
        return max(self.long, 400 + self.guess_tokens) + 64


QUICK = Sizes((Link(1.0), Link(20.0, 100.0)), (Link(20.0),), 16, 6, 64, 16)


def limit_per_second(compute: float, link: Link, machines: int, boundary_bytes: int) -> float:
    """Tokens a second of a chain that loses nothing: compute, each link once, and the bytes."""
    transfer = boundary_bytes * 8 / link.mbit / 1e6 if link.mbit else 0.0
    return 1 / (compute + machines * link.delay_ms / 1e3 + (machines - 1) * transfer)


@asynccontextmanager
async def contenders_on(
    net: Network, programs: Peers, plan: ServerPlan, machines: int
) -> AsyncIterator[dict[str, Contender]]:
    """All that is compared, up and without a delay yet."""
    places = [Place(net.address(number), net.command(number)) for number in range(machines)]
    async with AsyncExitStack() as stack:
        made = {UNSPLIT: unsplit(stack, plan.model, plan.threads, plan.context_length)}
        for name, guessing in ((RPC, ()), (GUESSING_RPC, GUESSING)):
            progress(f"starting {name}")
            chosen = replace(plan, extra=(*plan.extra, *guessing))
            server = await stack.enter_async_context(llama_server(programs, chosen, places))
            made[name] = server.generate
        for flash, port in NODE_PORTS.items():
            progress(f"starting {MESHNET}")
            where = [NodePlace(place.command, f"{place.host}:{port}") for place in places]
            nodes = chain_on(
                where, plan.model, plan.threads, plan.context_length, flash_attention=flash
            )
            model, _ = await stack.enter_async_context(nodes)
            modes = GUESSING_MESHNET if flash else {Speculation.OFF: MESHNET}
            made |= {name: chain(model, mode) for mode, name in modes.items()}
        done()
        yield made


class Measurement:
    """What is up, and the measurements one after the other."""

    def __init__(
        self, net: Network, contenders: dict[str, Contender], path: Path, sizes: Sizes, runs: int
    ) -> None:
        self._net = net
        self._contenders = contenders
        self._path = path
        self._sizes = sizes
        self._runs = runs

    async def _measure(
        self, names: Sequence[str], prompts: Sequence[Sequence[int]], tokens: int
    ) -> dict[str, list[Run]]:
        return await in_turns({name: self._contenders[name] for name in names}, prompts, tokens)

    async def decode_and_prefill(self) -> tuple[Table, Table]:
        """Each link: a short prompt's tokens, and a long prompt's first token."""
        sizes, index = self._sizes, read_index(self._path)
        boundary_bytes = 4 * describe(index).n_embd
        decoded, prefilled = [], []
        for link in sizes.links:
            self._net.set(link)
            trip = min(round_trips_ms(self._net, 5))
            prompts = random_prompts(self._path, sizes.prompt, self._runs)
            made = await self._measure((UNSPLIT, MESHNET, RPC), prompts, sizes.tokens)
            require_same_tokens(made)
            rates = {name: [run.decode_rate for run in runs] for name, runs in made.items()}
            bound = limit_per_second(
                1 / median(rates[UNSPLIT]), link, len(self._net.namespaces), boundary_bytes
            )
            ours, theirs = median(rates[MESHNET]), median(rates[RPC])
            over = ratio(rates[MESHNET], rates[RPC])
            shares = (ours / bound, theirs / bound)
            decoded.append((str(link), trip, bound, ours, theirs, *shares, over))
            longs = random_prompts(self._path, sizes.long, max(1, self._runs - 1), first=100)
            made = await self._measure((MESHNET, RPC), longs, 1)
            firsts = {name: [run.first for run in runs] for name, runs in made.items()}
            faster = ratio(firsts[RPC], firsts[MESHNET])
            prefilled.append((str(link), median(firsts[MESHNET]), median(firsts[RPC]), faster))
        return (
            Table("Decode, tokens/s:", DECODE_COLUMNS, tuple(decoded)),
            Table(f"First token of a prompt of {sizes.long}:", PREFILL_COLUMNS, tuple(prefilled)),
        )

    async def guessing(self) -> Table:
        """Some links: prompts of each kind, without and with speculation."""
        with Vocabulary.load(self._path) as vocabulary:
            prompts = {kind: prompt_of(kind, vocabulary) for kind in Kind}
        rows = []
        names = (UNSPLIT, *GUESSING_MESHNET.values(), GUESSING_RPC)
        boundary_bytes = 4 * describe(read_index(self._path)).n_embd
        for link in self._sizes.guess_links:
            self._net.set(link)
            for kind, prompt in prompts.items():
                made = await self._measure(names, [prompt] * self._runs, self._sizes.guess_tokens)
                require_equal({name: made[name] for name in GUESSING_MESHNET.values()})
                rates = {name: [run.decode_rate for run in runs] for name, runs in made.items()}
                alone, auto, off, on, theirs = (median(rates[name]) for name in names)
                guessed, plain = (
                    rates[GUESSING_MESHNET[mode]] for mode in (Speculation.AUTO, Speculation.OFF)
                )
                bound = limit_per_second(1 / alone, link, len(self._net.namespaces), boundary_bytes)
                shares = (ratio(guessed, plain), auto / bound)
                rows.append((str(link), kind.value, off, auto, on, *shares, theirs))
        caption = f"Speculation, {self._sizes.guess_tokens} tokens, tokens/s:"
        return Table(caption, GUESS_COLUMNS, tuple(rows))


async def measure(net: Network, programs: Peers, path: Path, options: argparse.Namespace) -> Report:
    """All of it; this process is on the first machine by now."""
    sizes = QUICK if options.quick else Sizes()
    plan = ServerPlan(path, 1, sizes.context, extra=options.peer_args)
    async with contenders_on(net, programs, plan, options.machines) as contenders:
        await in_turns(contenders, random_prompts(path, sizes.prompt, 1, first=50), sizes.tokens)
        measurement = Measurement(net, contenders, path, sizes, options.runs)
        tables = (*await measurement.decode_and_prefill(), await measurement.guessing())
    about = (
        conditions("bench.links"),
        f"{path.name} over {options.machines} machines with one thread each. Decode: "
        f"{sizes.tokens} tokens after a prompt of {sizes.prompt}. Median of {options.runs} "
        "runs in turns; a ratio is the median of the runs' ratios.",
    )
    return Report(NAME, about, tables)


def main() -> None:
    parser = contest_parser(NAME, __doc__)
    parser.add_argument("--machines", type=int, default=2, choices=(2, 3), help="with a node each")
    options = parser.parse_args()
    path, programs = model_path(options.model), peers()
    reports: list[Report] = []

    async def work() -> None:
        reports.append(await measure(net, programs, path, options))

    with network(options.machines) as net:
        enter(net.namespaces[0])
        run(work())
    finish(reports[0], options)


if __name__ == "__main__":
    main()
