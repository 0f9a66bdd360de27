"""How fast is a chain against the unsplit model?

    python -m bench.decode [--model smollm2|gemma3|FILE] [--runs 5] [--threads 1]

The peer is llama.cpp through its C functions in one process with as many threads as each node has.
Chains of 1, 2 and 3 node processes over gRPC on loopback take turns with it. Decode: 64 tokens
after a prompt of 16. First token: a prompt of 512. Outside the engine: a decode step's wall time
less all engines' time, divided by the hops.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

from bench.setup import (
    Run,
    Unsplit,
    arguments,
    chain_of,
    generate,
    median,
    model_path,
    run,
    table,
)
from bench.setup import prompt_tokens as random_prompt

SHORT, LONG, TOKENS = 16, 512, 64
CHAINS = (1, 2, 3)


def outside_engine_ms(made: Run, nodes: int) -> float:
    """Milliseconds a token and hop that no engine accounts for."""
    if made.summary is None:
        raise ValueError("only a chain's run knows its engines' time")
    steps = len(made.tokens) - 1
    engines = sum(hop.decode_engine_nanos for hop in made.summary.timings) / 1e6
    return (made.rest * 1e3 - engines) / steps / nodes


async def main() -> None:
    options = arguments(__doc__)
    path = model_path(options.model)
    short, long = random_prompt(path, SHORT), random_prompt(path, LONG)
    context = LONG + TOKENS + 8
    unsplit = Unsplit(path, options.threads, context)
    expected = unsplit.generate(short, TOKENS).tokens
    rates: dict[int, list[float]] = {0: []}
    firsts: dict[int, list[float]] = {0: []}
    outside: dict[int, list[float]] = {}
    async with AsyncExitStack() as stack:
        chains = {}
        for nodes in CHAINS:
            chain = chain_of(path, nodes, options.threads, context)
            chains[nodes], _ = await stack.enter_async_context(chain)
        for _ in range(options.runs):
            rates[0].append(unsplit.generate(short, TOKENS).decode_rate)
            firsts[0].append(unsplit.generate(long, 1).first)
            for nodes, model in chains.items():
                made = await generate(model, short, TOKENS)
                if made.tokens != expected:
                    raise SystemExit(f"{nodes} nodes gave other tokens than the unsplit model")
                rates.setdefault(nodes, []).append(made.decode_rate)
                outside.setdefault(nodes, []).append(outside_engine_ms(made, nodes))
                firsts.setdefault(nodes, []).append((await generate(model, long, 1)).first)
    unsplit.close()
    print(f"{path.name}, {options.threads} thread(s) each, median of {options.runs}\n")
    rows = [
        (
            "unsplit" if nodes == 0 else f"{nodes} node(s)",
            f"{median(rates[nodes]):.1f}",
            f"{median([a / b for a, b in zip(rates[nodes], rates[0], strict=True)]):.3f}",
            f"{median(firsts[nodes]):.2f}",
            f"{median(outside[nodes]):.2f}" if nodes else "-",
        )
        for nodes in (0, *CHAINS)
    ]
    columns = (
        "",
        "decode tokens/s",
        "÷ unsplit",
        "first token of 512, s",
        "outside engine, ms/hop",
    )
    print(table(columns, rows))


if __name__ == "__main__":
    run(main())
