"""How much memory does each node take?

    python -m bench.memory [--model smollm2|gemma3|FILE]

Peak resident memory of each node process after a prompt of 512 and 64 tokens of answer, beside its
slice's size, its KV cache, and the goal: slice + cache + 150 MiB.
"""

from __future__ import annotations

import re
from pathlib import Path

from bench.setup import arguments, chain_of, generate, model_path, prompt_tokens, run, table
from meshnet.cli.settings import Settings
from meshnet.domain.layers import even_ranges
from meshnet.model.cache import SliceCache
from meshnet.model.description import describe
from meshnet.model.gguf import read_index

CONTEXT, PROMPT, TOKENS = 1024, 512, 64
ALLOWANCE = 150 * 2**20
MIB = 2**20


def peak_resident(pid: int) -> int:
    """``VmHWM`` of a process, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    found = re.search(r"^VmHWM:\s*(\d+) kB", status, re.MULTILINE)
    if found is None:
        raise SystemExit("this system doesn't tell a process's peak memory")
    return int(found[1]) * 1024


async def main() -> None:
    options = arguments(__doc__)
    path = model_path(options.model)
    info = describe(read_index(path))
    # K and V, 2 bytes a value, whole blocks of 256 positions.
    per_layer = info.kv_heads * (info.key_size + info.value_size) * 2 * CONTEXT
    cache = SliceCache(Settings.from_environment().cache)
    rows = []
    for nodes in (1, 2, 3, 4):
        async with chain_of(path, nodes, options.threads, CONTEXT) as (model, processes):
            await generate(model, prompt_tokens(path, PROMPT), TOKENS)
            peaks = [peak_resident(process.pid or 0) for process in processes]
        for layers, peak in zip(even_ranges(info.total_layers, nodes), peaks, strict=True):
            size, kv = cache.ensure(path, layers).size, len(layers) * per_layer
            limit = size + kv + ALLOWANCE
            fits = "yes" if peak <= limit else "NO"
            sizes = (f"{value / MIB:.0f}" for value in (size, kv, peak, limit))
            rows.append((f"{nodes} nodes", str(layers), *sizes, fits))
    columns = ("", "layers", "slice", "KV", "peak resident", "goal at most", "kept")
    print(f"{path.name}, context {CONTEXT}, MiB\n")
    print(table(columns, rows))


if __name__ == "__main__":
    run(main())
