"""How much memory does each node take?

    python -m bench.memory [--model smollm2|gemma3|FILE ...]

Peak resident memory of each node process after a prompt of 512 and 64 tokens of answer, beside its
slice's size, its KV cache, and the goal: slice + cache + 150 MiB.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from bench.report import (
    Cell,
    Column,
    Report,
    Table,
    conditions,
    done,
    finish,
    output_parser,
    progress,
)
from bench.setup import chain_of, generate, model_path, prompt_tokens, run
from meshnet.cli.settings import Settings
from meshnet.model.cache import SliceCache
from meshnet.model.description import describe
from meshnet.model.gguf import read_index

NAME = "memory"
CONTEXT, PROMPT, TOKENS = 1024, 512, 64
ALLOWANCE = 150 * 2**20
MIB = 2**20
COLUMNS = (
    Column(""),
    Column("layers"),
    *(Column(heading, 0) for heading in ("slice", "KV", "peak resident", "goal at most")),
    Column("kept"),
)


def peak_resident(pid: int) -> int:
    """``VmHWM`` of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise SystemExit("this system doesn't tell a process's peak memory")
    return int(found[1]) * 1024


async def table_of(path: Path) -> Table:
    """A line for each node of chains of one to four."""
    info = describe(read_index(path))
    # K and V, 2 bytes a value, whole blocks of 256 positions.
    per_layer = info.kv_heads * (info.key_size + info.value_size) * 2 * CONTEXT
    cache = SliceCache(Settings.from_environment().cache)
    rows: list[tuple[Cell, ...]] = []
    for nodes in (1, 2, 3, 4):
        progress(f"{path.name} over {nodes} node(s)")
        async with chain_of(path, nodes, 1, CONTEXT) as (model, processes):
            await generate(model, prompt_tokens(path, PROMPT), TOKENS)
            for process in processes:
                peak, layers = peak_resident(process.pid or 0), process.layers
                size, kv = cache.ensure(path, layers).size, len(layers) * per_layer
                limit = size + kv + ALLOWANCE
                fits = "yes" if peak <= limit else "NO"
                sizes = (value / MIB for value in (size, kv, peak, limit))
                rows.append((f"{nodes} node(s)", str(layers), *sizes, fits))
    done()
    return Table(f"{path.name}:", COLUMNS, tuple(rows))


async def main(options: argparse.Namespace) -> None:
    tables = [await table_of(model_path(name)) for name in options.model]
    about = (
        conditions("bench.memory"),
        f"Context {CONTEXT}, after a prompt of {PROMPT} and {TOKENS} tokens, MiB. The goal is "
        "slice + KV + 150.",
    )
    finish(Report(NAME, about, tuple(tables)), options)


if __name__ == "__main__":
    parser = output_parser(NAME, __doc__)
    parser.add_argument(
        "--model", nargs="+", default=["smollm2", "gemma3"], help="smollm2, gemma3, or GGUF files"
    )
    run(main(parser.parse_args()))
