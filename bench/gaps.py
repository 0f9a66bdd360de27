"""What a long prompt does to others' tokens: gaps between tokens without one and beside one.

Talkers generate through a chain of node processes on this machine; their gaps are taken first by
themselves, then while a prompt of --prompt tokens is computed.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import replace

import numpy as np
import uvloop

from bench.setup import GREEDY, model_path, prompt_tokens
from meshnet.cli.local import LocalModel, cut_model, local_nodes, node_config, served_model, split
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.session.generate import ChainModel
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest

ALONE_SECONDS = 6.0
LONG = 4096


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3, or a GGUF file")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--talkers", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=2048)
    parser.add_argument("--chunk", type=int, default=32)
    return parser.parse_args()


async def talk(model: ChainModel, prompt: tuple[int, ...], times: list[float]) -> None:
    """Generate until cancelled, noting when each token came."""
    request = TextRequest(prompt, GREEDY, None, ignore_end=True)
    async for event in model.generate(request):
        if isinstance(event, TextDelta):
            times.extend([time.perf_counter()] * len(event.tokens))


async def first_token(model: ChainModel, prompt: tuple[int, ...]) -> GenerationSummary:
    """Compute a prompt and one token."""
    async for event in model.generate(TextRequest(prompt, GREEDY, 1, ignore_end=True)):
        if isinstance(event, GenerationSummary):
            return event
    raise RuntimeError("the generation had no end")


def gaps(times: list[list[float]], start: float, end: float) -> np.ndarray:
    """Milliseconds between a talker's tokens, over all talkers, within a time."""
    within = [[at for at in each if start <= at <= end] for each in times]
    return np.concatenate([np.diff(each) for each in within]) * 1e3


def line(name: str, values: np.ndarray) -> str:
    """One row of the result."""
    p50, p99 = np.percentile(values, [50, 99])
    return (
        f"{name:<18} {len(values):6d} gaps  median {p50:7.1f} ms  p99 {p99:7.1f} ms  "
        f"longest {values.max():7.1f} ms"
    )


async def main(asked: argparse.Namespace) -> None:
    """Measure and print."""
    path = model_path(asked.model)
    model = LocalModel(path, path.stem)
    options = NodeOptions(asked.nodes, asked.threads, LONG, sessions=asked.talkers + 1)
    cuts = cut_model(model, split(model, options), Settings.from_environment(), options)
    configs = [
        replace(node_config(number, cut, options, "127.0.0.1:0", None), chunk_tokens=asked.chunk)
        for number, cut in enumerate(cuts, start=1)
    ]
    async with (
        local_nodes(configs) as (addresses, _),
        served_model(model, addresses, cuts[0].model_digest) as chain,
    ):
        long_prompt = prompt_tokens(path, asked.prompt)
        alone = await first_token(chain, long_prompt)
        times: list[list[float]] = [[] for _ in range(asked.talkers)]
        talking = [
            asyncio.create_task(talk(chain, prompt_tokens(path, 20, seed), each))
            for seed, each in enumerate(times, start=2)
        ]
        await asyncio.sleep(1.5)
        began = time.perf_counter()
        await asyncio.sleep(ALONE_SECONDS)
        before = time.perf_counter()
        beside = await first_token(chain, long_prompt)
        after = time.perf_counter()
        for each in talking:
            each.cancel()
        await asyncio.wait(talking)
    quiet, busy = gaps(times, began, before), gaps(times, before, after)
    print(line("without a prompt", quiet))
    print(line("beside a prompt", busy))
    print(f"p99 grew {np.percentile(busy, 99) / np.percentile(quiet, 50):.2f} times the median gap")
    print(
        f"prompt: {alone.seconds_to_first_token:.2f} s alone, "
        f"{beside.seconds_to_first_token:.2f} s beside {asked.talkers} talkers"
    )


if __name__ == "__main__":
    uvloop.run(main(arguments()))
