"""Where does the time of one decode step go, node by node?

    python -m bench.profile_step [--nodes 2] [--before TREE]

Runs the model over node processes that note when a step passes each point, and prints the median
microseconds between neighbouring points at each node. With ``--before``, another checkout's nodes
(its tap built) run in turn with this one's, for comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.setup import even_ranges, generate, median, model_path, prompt_tokens, run, table
from meshnet.cli.local import LocalModel, cut_model, node_config, served_model
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.node.supervisor import NodeProcess

TOKENS, PROMPT = 128, 16
HERE = Path(__file__).parent.parent

STAGES = (
    ("decode", "decode:begin", "decode:end"),
    ("to the engine", "decode:end", "engine:begin"),
    ("engine", "engine:begin", "engine:end"),
    ("from the engine", "engine:end", "encode:begin"),
    ("encode", "encode:begin", "encode:end"),
    ("to the write", "encode:end", "write:begin"),
)
"""A node's part of a step: from a frame's bytes being there to the next frame's handing over."""

LOOP_CPU = "(CPU of the event loop)"

Notes = list[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Steps:
    """One node's steps: for each, the moment of every point, in nanoseconds."""

    moments: tuple[dict[str, int], ...]

    @property
    def loop_cpu(self) -> float:
        """Median microseconds of CPU that the event loop's thread used from step to step."""
        used = [step["loop:cpu"] for step in self.moments if "loop:cpu" in step]
        return median([(b - a) / 1e3 for a, b in itertools.pairwise(used)])


ORDER = ("engine:begin", "engine:end", "encode:begin", "encode:end", "write:begin")
"""The points from the engine on, each the first of its name behind the one before."""


def steps_of(notes: Notes) -> Steps:
    """Cut a node's notes into steps, each round an engine step with what led to it and from it."""
    places = [place for place, (_, name) in enumerate(notes) if name == ORDER[0]]
    steps = []
    for place in places[-TOKENS // 2 :]:
        found: dict[str, int] = {}
        for moment, name in reversed(notes[:place]):
            if name.startswith("decode") and name not in found:
                found[name] = moment
            if len(found) == 2:
                break
        wanted = iter(ORDER)
        due = next(wanted, None)
        for moment, name in notes[place:]:
            if name == "loop:cpu":
                found.setdefault(name, moment)
            elif name == due:
                found[name] = moment
                due = next(wanted, None)
            if due is None:
                break
        steps.append(found)
    return Steps(tuple(steps))


def stage_times(steps: Steps) -> dict[str, float]:
    """Median microseconds of each stage."""
    return {
        stage: median(
            [
                (step[end] - step[begin]) / 1e3
                for step in steps.moments
                if begin in step and end in step
            ]
            or [0.0]
        )
        for stage, begin, end in STAGES
    }


def wires(nodes: Sequence[Steps]) -> list[float]:
    """Median microseconds from each node's write to the next one's frame being there."""
    found = []
    for place, steps in enumerate(nodes):
        following = nodes[(place + 1) % len(nodes)]
        starts = sorted(
            step["decode:begin"] for step in following.moments if "decode:begin" in step
        )
        gaps = []
        for step in steps.moments:
            later = next(
                (start for start in starts if start > step.get("write:begin", start)), None
            )
            if later is not None:
                gaps.append((later - step["write:begin"]) / 1e3)
        found.append(median(gaps or [0.0]))
    return found


async def profiled(path: Path, nodes: int, tree: Path, folder: Path) -> tuple[list[Steps], float]:
    """One generation over the tree's nodes: their steps, and the tokens a second."""
    options = NodeOptions(nodes, 1, PROMPT + TOKENS + 8, sessions=1)
    model = LocalModel(path, path.stem)
    ranges = even_ranges(describe(read_index(path)).total_layers, nodes)
    cuts = cut_model(model, ranges, Settings.from_environment(), options)
    files = [folder / f"{number}.txt" for number in range(nodes)]
    processes = [
        NodeProcess(
            (
                "env",
                f"PYTHONPATH={tree / 'src'}:{HERE}",
                sys.executable,
                "-m",
                "bench.profile_worker",
                str(file),
            ),
            node_config(number, cut, options, "127.0.0.1:0", None),
        )
        for number, (cut, file) in enumerate(zip(cuts, files, strict=True), start=1)
    ]
    try:
        addresses = list(await asyncio.gather(*(process.start() for process in processes)))
        async with served_model(model, addresses, cuts[0].model_digest) as served:
            prompt = prompt_tokens(path, PROMPT)
            await generate(served, prompt, 8)
            made = await generate(served, prompt, TOKENS)
    finally:
        await asyncio.gather(*(process.stop() for process in processes))
    notes = [
        [(int(moment), name) for moment, name in map(str.split, file.read_text().splitlines())]
        for file in files
    ]
    return [steps_of(each) for each in notes], made.decode_rate


def rows_of(runs: Iterable[list[Steps]]) -> dict[tuple[int, str], float]:
    """The median over runs of each node's stages."""
    gathered: dict[tuple[int, str], list[float]] = {}
    for nodes in runs:
        for place, (steps, wire) in enumerate(zip(nodes, wires(nodes), strict=True), start=1):
            for stage, micros in {
                **stage_times(steps),
                "to the next node": wire,
                LOOP_CPU: steps.loop_cpu,
            }.items():
                gathered.setdefault((place, stage), []).append(micros)
    return {key: median(values) for key, values in gathered.items()}


async def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3, or a GGUF file")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--runs", type=int, default=3, help="generations of each, in turn")
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    options = parser.parse_args()
    trees = {"now": HERE} if options.before is None else {"before": options.before, "now": HERE}
    path = model_path(options.model)
    runs: dict[str, list[list[Steps]]] = {name: [] for name in trees}
    rates: dict[str, list[float]] = {name: [] for name in trees}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.runs):
            # What comes second is not always the same one.
            for name, tree in list(trees.items())[:: -1 if number % 2 else 1]:
                steps, rate = await profiled(path, options.nodes, tree, Path(folder))
                runs[name].append(steps)
                rates[name].append(rate)
    tables = {name: rows_of(each) for name, each in runs.items()}
    lines = [
        (place, stage, *(f"{found[place, stage]:.0f}" for found in tables.values()))
        for place, stage in tables["now"]
    ]
    print(f"microseconds of a decode step, median; {path.name}, {options.nodes} node(s)\n")
    print(table(("node", "stage", *tables), lines))
    outside = {
        name: sum(m for (_, stage), m in found.items() if stage not in ("engine", LOOP_CPU))
        for name, found in tables.items()
    }
    for name in trees:
        print(
            f"\n{name}: {median(rates[name]):.1f} tokens/s, "
            f"{outside[name] / options.nodes / 1e3:.2f} ms a hop outside the engine"
        )


if __name__ == "__main__":
    run(main())
