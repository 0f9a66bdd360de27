"""Is a model as fast on some machines as was predicted?

    [sudo] python -m bench.placement [--runs 4] [--threads 1]

Six placements of the two models over nodes on this machine, and one more over a link with a delay
and a rate where this runs as root (``bench.wan``). What is predicted follows from the steps of each
model's own layers, measured here in every round (``meshnet.cli.speed``), and from the link's round
trip and rate; what is measured are 48 tokens after a prompt of 128, with one thread for each node.
No placement has more nodes than this machine has processors.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.contest import chain, random_prompts
from bench.report import Column, Report, Table, conditions, done, finish, output_parser, progress
from bench.setup import NodePlace, Run, chain_on, median, model_path, run
from bench.wan.network import Link as WanLink
from bench.wan.network import Network, enter, network, obstacle
from meshnet.cli.local import slice_cache
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.cli.speed import rehearse
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import FlowControl
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.session.generate import ChainModel
from meshnet.session.links import Link, measure
from meshnet.tracker.forecast import shape_of
from meshnet.tracker.placement import ModelShape
from meshnet.tracker.speeds import Hop, Speed, first_token_seconds, parts_of, token_seconds
from meshnet.transport.seam_client import GrpcTransport

NAME = "placement"
PROMPT, TOKENS, QUICK_TOKENS = 128, 48, 4
WITHIN = 0.2
PORT = 7100
ASK_SECONDS = 5.0
SLOW = WanLink(5.0, 100.0)
COLUMNS = (
    Column("model"),
    Column("layers"),
    Column("link"),
    Column("tokens/s predicted"),
    Column("measured"),
    Column("predicted ÷ measured", 2),
    Column("first token predicted, s", 2),
    Column("measured, s", 2),
    Column("predicted ÷ measured, first token", 2),
)


@dataclass(frozen=True, slots=True)
class Layout:
    """A model over machines, and whether what is between them is slow."""

    model: str
    sizes: tuple[int, ...]
    """Layers of each machine, head first."""
    slow: bool = False

    @property
    def ranges(self) -> tuple[LayerRange, ...]:
        """The machines' layers."""
        edges = itertools.accumulate(self.sizes, initial=0)
        return tuple(LayerRange(a, b) for a, b in itertools.pairwise(edges))


LAYOUTS = (
    Layout("smollm2", (30,)),
    Layout("smollm2", (15, 15)),
    Layout("smollm2", (20, 10)),
    Layout("gemma3", (18,)),
    Layout("gemma3", (9, 9)),
    Layout("gemma3", (12, 6)),
    Layout("smollm2", (15, 15), slow=True),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """What was predicted in one round."""

    rate: float
    """Tokens a second."""
    first: float
    """Seconds until the first token."""


def predict(
    shape: ModelShape, layout: Layout, speed: Speed, link: Link | None, prompt: int
) -> Prediction:
    """Equal machines of that speed, with equal links between them; ``link``: None without any."""
    count = len(layout.sizes)
    hops: tuple[Hop, ...] = ()
    if link is not None:
        hops = (Hop(link.round_trip_seconds / 2, link.bytes_per_second),) * count
    parts = parts_of(shape.layer_bytes, shape.output_bytes, [(it, speed) for it in layout.ranges])
    token = token_seconds(parts, hops, shape.boundary_bytes)
    first = first_token_seconds(parts, hops, shape.boundary_bytes, prompt)
    if first is None:
        raise SystemExit("what a prompt takes wasn't measured")
    return Prediction(1 / token, first)


class Measurement:
    """The chains of one model, all up, and what was predicted and measured of each."""

    def __init__(self, path: Path, threads: int, tokens: int) -> None:
        self._path, self._tokens = path, tokens
        self._index = read_index(path)
        self._shape = shape_of(describe(self._index))
        self._settings = Settings.from_environment()
        self._digest = slice_cache(self._settings).digest(path)
        self._options = NodeOptions(1, threads, PROMPT + tokens + 8, 1)
        self._peers = GrpcTransport(FlowControl())

    async def round(
        self, chains: Sequence[tuple[Layout, ChainModel]], number: int
    ) -> list[tuple[Prediction, Run]]:
        """Measure the machine, then predict and run every chain."""
        speed = await rehearse(self._settings, self._index, self._digest, self._options, anew=True)
        made = []
        (prompt,) = random_prompts(self._path, PROMPT, 1, first=number)
        for layout, model in chains:
            progress(f"round {number}: {layout.model} {layout.sizes}")
            link = await self._link(model) if len(layout.sizes) > 1 else None
            predicted = predict(self._shape, layout, speed.speed, link, PROMPT)
            made.append((predicted, await chain(model)(prompt, self._tokens)))
        return made

    async def _link(self, model: ChainModel) -> Link:
        """From here, which is where the head is, to the tail."""
        census = await model.census(ASK_SECONDS)
        peer = self._peers.peer(census.nodes[-1].hop.address)
        try:
            return await measure(peer)
        finally:
            await peer.close()


@asynccontextmanager
async def chains_of(
    layouts: Sequence[Layout], path: Path, threads: int, net: Network | None
) -> AsyncIterator[list[tuple[Layout, ChainModel]]]:
    """Every layout's nodes, up."""
    async with AsyncExitStack() as stack:
        chains = []
        for layout in layouts:
            progress(f"starting {layout.model} {layout.sizes}")
            places = [NodePlace()] * len(layout.sizes)
            if layout.slow and net is not None:
                places = [
                    NodePlace(net.command(number), f"{net.address(number)}:{PORT}")
                    for number in range(len(layout.sizes))
                ]
            context = PROMPT + TOKENS + 8
            nodes = chain_on(places, path, threads, context, ranges=layout.ranges)
            model, _ = await stack.enter_async_context(nodes)
            chains.append((layout, model))
        done()
        yield chains


Line = tuple[str, str, str, float, float, float, float, float, float]


def line_of(layout: Layout, made: Sequence[tuple[Prediction, Run]]) -> Line:
    """A layout's line of the table."""
    predicted = [each for each, _ in made]
    rate, first = median([it.rate for it in predicted]), median([it.first for it in predicted])
    found = median([it.decode_rate for _, it in made])
    took = median([it.first for _, it in made])
    sizes = " + ".join(map(str, layout.sizes))
    link = str(SLOW) if layout.slow else "loopback" if len(layout.sizes) > 1 else "-"
    return (layout.model, sizes, link, rate, found, rate / found, first, took, first / took)


async def measured(net: Network | None, options: argparse.Namespace) -> list[Line]:
    """A line for each layout."""
    tokens = QUICK_TOKENS if options.quick else TOKENS
    lines = []
    for name in ("smollm2", "gemma3"):
        path = model_path(name)
        layouts = [it for it in LAYOUTS if it.model == name and (net or not it.slow)]
        measurement = Measurement(path, options.threads, tokens)
        async with chains_of(layouts, path, options.threads, net) as chains:
            if net is not None:
                net.set(SLOW)
            rounds = [await measurement.round(chains, number) for number in range(options.runs + 1)]
        done()
        # The first one is to warm up.
        for layout, *made in zip(layouts, *rounds[1:], strict=True):
            lines.append(line_of(layout, made))
    return lines


def main() -> None:
    parser = output_parser(NAME, __doc__)
    parser.add_argument("--runs", type=int, default=4, help="rounds of all placements")
    parser.add_argument("--threads", type=int, default=1, help="threads of each node")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that it works")
    options = parser.parse_args()
    lines: list[Line] = []
    missing = obstacle()

    async def work(net: Network | None = None) -> None:
        lines.extend(await measured(net, options))

    if missing is None:
        with network(2) as net:
            enter(net.namespaces[0])
            run(work(net))
    else:
        print(f"without the slow link, which needs {missing}")
        run(work())
    inside = sum(abs(ratio - 1) <= WITHIN for line in lines for ratio in (line[5], line[8]))
    about = (
        conditions("bench.placement"),
        f"{TOKENS} tokens after a prompt of {PROMPT}, {options.threads} thread(s) for each node. "
        f"Medians of {options.runs} rounds, in each of which the machine was measured before. "
        f"{inside} of {2 * len(lines)} predictions are within {WITHIN:.0%}.",
    )
    finish(Report(NAME, about, (Table("", COLUMNS, tuple(lines)),)), options)


if __name__ == "__main__":
    main()
