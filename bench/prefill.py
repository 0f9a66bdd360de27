"""How long until the first token of a long prompt, over 1, 2 and 3 machines?

    python -m bench.prefill [--model smollm2|gemma3|FILE] [--runs 2] [--threads 1]

Prompts of 512 and 2,048 tokens, one at a time. The peers: llama.cpp unsplit through its C functions
in one process, 512 tokens at a time, with one node's threads and with two nodes'; and
``llama-server`` over as many RPC servers as Meshnet has nodes, 128 tokens at a time, so that they
overlap, and once as it does by default, 512 at a time. All take turns, on loopback, with as many
threads each.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace

from bench.contest import UNSPLIT, in_turns, meshnet, on_this_machine, random_prompts, rpc, unsplit
from bench.llamacpp import Place, ServerPlan, llama_server
from bench.peers import peers
from bench.report import Column, Report, Table, conditions, contest_parser, finish, progress, ratio
from bench.setup import Run, median, model_path, run

NAME = "prefill"
WARM_UP = 64
COUNTS = (1, 2, 3)
TWICE = f"{UNSPLIT}, twice the threads"
"""What the machine gives to one process that has the threads of two nodes."""
BY_DEFAULT = f"{rpc(2)}, 512 at a time"
SHORT = (UNSPLIT, TWICE, *(name for count in COUNTS for name in (rpc(count), meshnet(count))))
LONG = (UNSPLIT, TWICE, meshnet(1), rpc(2), BY_DEFAULT, meshnet(2))
PROMPTS = {512: SHORT, 2048: LONG}
"""Who computes prompts of which length: the long one takes too long for all."""
QUICK_PROMPTS = {64: SHORT, 128: LONG}
COMPARED = {
    meshnet(1): (None, rpc(1), None),
    meshnet(2): (meshnet(1), rpc(2), BY_DEFAULT),
    meshnet(3): (meshnet(1), rpc(3), None),
}
"""Each line's denominators in the last columns."""
COLUMNS = (
    Column(""),
    Column("first token, s", 2),
    Column("prompt tokens/s", 0),
    Column("÷ unsplit", 2),
    Column("lowest to highest"),
    Column("÷ 1 node", 2),
    Column("÷ RPC", 2),
    Column("÷ RPC by default", 2),
)


def table_of(made: Mapping[str, Sequence[Run]], length: int) -> Table:
    """A line for each contender."""
    times = {name: [run.first for run in runs] for name, runs in made.items()}

    def over(name: str, other: str | None) -> float | None:
        return ratio(times[other], times[name]) if other in times else None

    def line(name: str) -> tuple[str | float | None, ...]:
        ratios = [b / a for a, b in zip(times[name], times[UNSPLIT], strict=True)]
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        first = median(times[name])
        others = [over(name, other) for other in COMPARED.get(name, (None, None, None))]
        return (name, first, length / first, median(ratios), spread, *others)

    return Table(f"Prompt of {length} tokens:", COLUMNS, tuple(line(name) for name in times))


async def main(options: argparse.Namespace) -> None:
    path, programs = model_path(options.model), peers()
    prompts = QUICK_PROMPTS if options.quick else PROMPTS
    threads, context = options.threads, max(prompts) + 8
    plan = ServerPlan(path, threads, context, extra=options.peer_args)
    tables = []
    async with AsyncExitStack() as stack:
        contenders = await on_this_machine(stack, programs, plan, COUNTS)
        contenders[TWICE] = unsplit(stack, path, 2 * threads, context)
        progress(f"starting {BY_DEFAULT}")
        usual = replace(plan, extra=("--ubatch-size", "512", *plan.extra))
        server = await stack.enter_async_context(llama_server(programs, usual, [Place()] * 2))
        contenders[BY_DEFAULT] = server.generate
        await in_turns(contenders, random_prompts(path, WARM_UP, 1, first=900), 1)
        for length, names in prompts.items():
            chosen = {name: contenders[name] for name in names}
            made = await in_turns(chosen, random_prompts(path, length, options.runs), 1)
            tables.append(table_of(made, length))
    about = (
        conditions("bench.prefill"),
        f"{path.name}, one prompt at a time, {threads} thread(s) for each node and server. Median "
        f"of {options.runs} runs in turns; a ratio is that of the speeds, the median of the runs'.",
    )
    finish(Report(NAME, about, tuple(tables)), options)


if __name__ == "__main__":
    parser = contest_parser(NAME, __doc__)
    parser.set_defaults(runs=2)
    parser.add_argument("--threads", type=int, default=1, help="threads of each node and server")
    run(main(parser.parse_args()))
