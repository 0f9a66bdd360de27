"""Systems that generate in turns, so that whatever else the machine does hits each alike."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

from bench.llamacpp import Place, ServerPlan, llama_server
from bench.peers import Peers
from bench.report import done, progress
from bench.setup import Run, Unsplit, chain_of, generate, prompt_tokens
from meshnet.domain.generation import Speculation
from meshnet.session.generate import ChainModel

UNSPLIT = "unsplit llama.cpp"
UNSPLIT_STEP = 512
Contender = Callable[[Sequence[int], int], Awaitable[Run]]
"""One greedy generation: the prompt's tokens, and how many to generate."""


def rpc(servers: int) -> str:
    """The name of llama.cpp over that many RPC servers."""
    return f"llama.cpp RPC, {servers} server{'s' if servers > 1 else ''}"


def meshnet(nodes: int) -> str:
    """The name of Meshnet over that many nodes."""
    return f"Meshnet, {nodes} node{'s' if nodes > 1 else ''}"


def unsplit(stack: AsyncExitStack, path: Path, threads: int, context: int) -> Contender:
    """llama.cpp's C functions in this process, with as many tokens at a time as its default."""
    model = Unsplit(path, threads, context, UNSPLIT_STEP)
    stack.callback(model.close)

    async def run(prompt: Sequence[int], count: int) -> Run:
        return model.generate(prompt, count)

    return run


async def on_this_machine(
    stack: AsyncExitStack, peers: Peers, plan: ServerPlan, counts: Sequence[int]
) -> dict[str, Contender]:
    """The unsplit model, and RPC servers and nodes in each number, all up until the stack ends."""
    path, threads, context = plan.model, plan.threads, plan.context_length
    contenders = {UNSPLIT: unsplit(stack, path, threads, context)}
    for count in counts:
        progress(f"starting {rpc(count)}")
        server = await stack.enter_async_context(llama_server(peers, plan, [Place()] * count))
        contenders[rpc(count)] = server.generate
        progress(f"starting {meshnet(count)}")
        model, _ = await stack.enter_async_context(chain_of(path, count, threads, context))
        contenders[meshnet(count)] = chain(model)
    done()
    return contenders


def chain(model: ChainModel, speculation: Speculation = Speculation.OFF) -> Contender:
    """Meshnet over a chain that is up."""

    async def run(prompt: Sequence[int], count: int) -> Run:
        return await generate(model, prompt, count, speculation)

    return run


def random_prompts(path: Path, length: int, count: int, first: int = 0) -> list[tuple[int, ...]]:
    """Prompts of random tokens, none like another (for each ``first``): nobody may remember one."""
    return [prompt_tokens(path, length, seed) for seed in range(first, first + count)]


async def in_turns(
    contenders: Mapping[str, Contender], prompts: Sequence[Sequence[int]], count: int
) -> dict[str, list[Run]]:
    """Every contender's runs, one for each prompt; each round starts with another contender."""
    made: dict[str, list[Run]] = {name: [] for name in contenders}
    names = list(contenders)
    for number, prompt in enumerate(prompts):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            size = f"{len(prompt)} + {count} tokens"
            progress(f"run {number + 1} of {len(prompts)}: {name}, {size}")
            made[name].append(await contenders[name](prompt, count))
    done()
    return made


def require_same_tokens(made: Mapping[str, Sequence[Run]]) -> None:
    """A split that generates something else isn't worth timing."""
    expected = [run.tokens for run in made[UNSPLIT]]
    for name, runs in made.items():
        if name.startswith("Meshnet") and [run.tokens for run in runs] != expected:
            raise SystemExit(f"{name}: other tokens than the unsplit model's; nothing to compare")


def require_equal(made: Mapping[str, Sequence[Run]]) -> None:
    """The same of runs that differ in nothing that may change a token."""
    (first, expected), *others = [(name, [run.tokens for run in made[name]]) for name in made]
    for name, tokens in others:
        if tokens != expected:
            raise SystemExit(f"{name}: other tokens than {first}")
