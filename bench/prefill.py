"""How long until the first token of a long prompt, over 1, 2 and 3 machines?

    python -m bench.prefill [--model smollm2|gemma3|FILE] [--runs 3] [--threads 1]

Prompts of 512 and 2,048 tokens, one at a time. The peers: llama.cpp unsplit through its C functions
in one process, 512 tokens at a time, and ``llama-server`` over as many RPC servers as Meshnet has
nodes, 128 tokens at a time, so that they overlap. All take turns, on loopback, with as many threads
each.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack

from bench.contest import UNSPLIT, in_turns, meshnet, on_this_machine, random_prompts, rpc
from bench.llamacpp import ServerPlan
from bench.peers import peers
from bench.report import Column, Report, Table, conditions, contest_parser, finish, ratio
from bench.setup import Run, median, model_path, run

NAME = "prefill"
WARM_UP = 64
COUNTS = (1, 2, 3)
# The long prompt takes long: two and three machines are enough for it, and a run less.
PROMPTS = {512: COUNTS, 2048: COUNTS[1:]}
QUICK_PROMPTS = {64: COUNTS, 128: COUNTS[1:]}
COLUMNS = (
    Column(""),
    Column("first token, s", 2),
    Column("prompt tokens/s", 0),
    Column("÷ unsplit", 2),
    Column("lowest to highest"),
    Column("÷ RPC", 2),
)


def table_of(made: Mapping[str, Sequence[Run]], length: int, counts: Sequence[int]) -> Table:
    """A line for each contender."""
    times = {name: [run.first for run in runs] for name, runs in made.items()}

    def line(name: str, peer: str | None) -> tuple[str | float | None, ...]:
        ratios = [b / a for a, b in zip(times[name], times[UNSPLIT], strict=True)]
        over = ratio(times[peer], times[name]) if peer else None
        first = median(times[name])
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        return (name, first, length / first, median(ratios), spread, over)

    rows = [line(UNSPLIT, None)]
    for count in counts:
        rows += [line(rpc(count), None), line(meshnet(count), rpc(count))]
    return Table(f"Prompt of {length} tokens:", COLUMNS, tuple(rows))


async def main(options: argparse.Namespace) -> None:
    path, programs = model_path(options.model), peers()
    prompts = QUICK_PROMPTS if options.quick else PROMPTS
    plan = ServerPlan(path, options.threads, max(prompts) + 8, extra=options.peer_args)
    tables = []
    async with AsyncExitStack() as stack:
        contenders = await on_this_machine(stack, programs, plan, COUNTS)
        await in_turns(contenders, random_prompts(path, WARM_UP, 1, first=900), 1)
        for length, counts in prompts.items():
            names = {UNSPLIT, *map(rpc, counts), *map(meshnet, counts)}
            chosen = {name: each for name, each in contenders.items() if name in names}
            runs = options.runs if counts is COUNTS else max(1, options.runs - 1)
            made = await in_turns(chosen, random_prompts(path, length, runs), 1)
            tables.append(table_of(made, length, counts))
    about = (
        conditions("bench.prefill"),
        f"{path.name}, one prompt at a time, {options.threads} thread(s) for each node and server. "
        f"Median of {options.runs} runs in turns, one less of the longest prompt; a ratio is that "
        "of the speeds, the median of the runs' ratios.",
    )
    finish(Report(NAME, about, tuple(tables)), options)


if __name__ == "__main__":
    parser = contest_parser(NAME, __doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of each node and server")
    run(main(parser.parse_args()))
