"""How fast does one stream decode over 1, 2 and 3 machines?

    python -m bench.decode [--model smollm2|gemma3|FILE] [--runs 5] [--threads 1]

64 tokens after a prompt of 16, greedy. The peers: llama.cpp unsplit, through its C functions in one
process and through its own ``llama-bench``; and ``llama-server`` over as many RPC servers as
Meshnet has nodes. All take turns, on loopback, with as many threads each. The time outside the
engine is a step's time less all engines' time, divided by the hops.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.contest import (
    UNSPLIT,
    Contender,
    in_turns,
    meshnet,
    on_this_machine,
    random_prompts,
    require_same_tokens,
    rpc,
)
from bench.llamacpp import RECIPE_OF_BENCH, ServerPlan
from bench.peers import Peers, peers
from bench.report import Column, Report, Table, conditions, contest_parser, finish, ratio
from bench.setup import Run, median, model_path, run

NAME = "decode"
LLAMA_BENCH = "unsplit, llama-bench"
PROMPT, TOKENS, QUICK_TOKENS = 16, 64, 8
COUNTS = (1, 2, 3)
COLUMNS = (
    Column(""),
    Column("tokens/s"),
    Column("÷ unsplit", 3),
    Column("lowest to highest"),
    Column("÷ RPC", 3),
    Column("outside engine, ms/hop", 2),
)


def outside_engine_ms(made: Run, nodes: int) -> float:
    """Milliseconds a token and hop that no engine accounts for."""
    if made.summary is None:
        raise ValueError("only a chain's run knows its engines' time")
    steps = len(made.tokens) - 1
    engines = sum(hop.decode_engine_nanos for hop in made.summary.timings) / 1e6
    return (made.rest * 1e3 - engines) / steps / nodes


def llama_bench(programs: Peers, path: Path, threads: int) -> Contender:
    """llama.cpp's own benchmark, which times decoding without sampling; once for each call."""

    async def measure(prompt: Sequence[int], count: int) -> Run:
        command = [str(programs.bench), "--model", str(path), "--threads", str(threads)]
        command += ["--n-prompt", "0", "--n-gen", str(count), "--n-depth", str(len(prompt))]
        command += ["--repetitions", "1", "--output", "json", *RECIPE_OF_BENCH]
        child = await asyncio.create_subprocess_exec(
            *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
        )
        output, _ = await child.communicate()
        (result,) = json.loads(output)
        # It times as many steps as tokens; a run's first token isn't part of its rate.
        return Run(0.0, result["avg_ns"] / 1e9, (0,) * (count + 1))

    return measure


def table_of(made: Mapping[str, Sequence[Run]], counts: Sequence[int]) -> Table:
    """A line for each contender."""
    rates = {name: [run.decode_rate for run in runs] for name, runs in made.items()}

    def line(name: str, peer: str | None, outside: float | None) -> tuple[str | float | None, ...]:
        ratios = [a / b for a, b in zip(rates[name], rates[UNSPLIT], strict=True)]
        over = ratio(rates[name], rates[peer]) if peer else None
        spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
        return (name, median(rates[name]), median(ratios), spread, over, outside)

    rows = [line(UNSPLIT, None, None), line(LLAMA_BENCH, None, None)]
    for count in counts:
        rows.append(line(rpc(count), None, None))
        outside = median([outside_engine_ms(run, count) for run in made[meshnet(count)]])
        rows.append(line(meshnet(count), rpc(count), outside))
    return Table("", COLUMNS, tuple(rows))


async def main(options: argparse.Namespace) -> None:
    path, programs = model_path(options.model), peers()
    tokens = QUICK_TOKENS if options.quick else TOKENS
    plan = ServerPlan(path, options.threads, PROMPT + tokens + 8, extra=options.peer_args)
    async with AsyncExitStack() as stack:
        contenders = await on_this_machine(stack, programs, plan, COUNTS)
        contenders[LLAMA_BENCH] = llama_bench(programs, path, options.threads)
        prompts = random_prompts(path, PROMPT, options.runs + 1)
        await in_turns(contenders, prompts[:1], tokens)
        made = await in_turns(contenders, prompts[1:], tokens)
    require_same_tokens(made)
    about = (
        conditions("bench.decode"),
        f"{path.name}, {tokens} tokens after a prompt of {PROMPT}, one stream, "
        f"{options.threads} thread(s) for each node and server. Median of {options.runs} runs in "
        "turns; a ratio is the median of the runs' ratios.",
    )
    finish(Report(NAME, about, (table_of(made, COUNTS),)), options)


if __name__ == "__main__":
    parser = contest_parser(NAME, __doc__)
    parser.add_argument("--threads", type=int, default=1, help="threads of each node and server")
    run(main(parser.parse_args()))
