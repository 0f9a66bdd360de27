"""What the measurements share: models, chains of node processes, the unsplit peer, medians."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
import uvloop

from meshnet.cli.local import (
    WORKER_COMMAND,
    LocalModel,
    cut_model,
    node_config,
    served_model,
    split,
)
from meshnet.cli.options import NodeOptions, Optimise
from meshnet.cli.settings import Settings
from meshnet.domain.generation import Speculation
from meshnet.domain.layers import LayerRange, balanced_ranges
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.llamacpp.library import llama_ready
from meshnet.model.demo import demo_model, gemma_model
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.node.config import CHUNK_TOKENS
from meshnet.node.supervisor import NodeProcess
from meshnet.session.generate import ChainModel
from meshnet.session.service import GenerationSummary, TextRequest

GREEDY = SamplingParams(temperature=0.0)


def model_path(name: str) -> Path:
    """The file that ``--model`` means, fetched once."""
    root = Settings.from_environment().cache
    known = {"smollm2": demo_model, "gemma3": gemma_model}
    return known[name](root) if name in known else Path(name)


def prompt_tokens(path: Path, count: int, seed: int = 1) -> tuple[int, ...]:
    """Random ordinary tokens: the speed doesn't depend on which."""
    draw = np.random.default_rng(seed)
    limit = describe(read_index(path)).n_vocab
    return tuple(int(token) for token in draw.integers(100, limit, count))


@dataclass(frozen=True, slots=True)
class Run:
    """One generation's times, in seconds, and what it generated."""

    first: float
    """Until the first token."""
    rest: float
    """From the first token to the last."""
    tokens: tuple[int, ...]
    summary: GenerationSummary | None = None

    @property
    def decode_rate(self) -> float:
        """Tokens a second after the first."""
        return (len(self.tokens) - 1) / self.rest


class Unsplit:
    """The peer: llama.cpp through its Python binding's C functions, greedy, in one process."""

    def __init__(
        self, path: Path, threads: int, context_length: int, chunk: int = CHUNK_TOKENS
    ) -> None:
        llama_ready()
        self._chunk = chunk
        self._model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params()
        )
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = context_length, chunk, chunk
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = 0
        params.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        self._vocabulary = llama_cpp.llama_vocab_n_tokens(
            llama_cpp.llama_model_get_vocab(self._model)
        )
        self._batch = llama_cpp.llama_batch_init(chunk, 0, 1)

    def generate(self, prompt: Sequence[int], count: int) -> Run:
        """Prefill in chunks, then ``count`` tokens in all."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_clear(memory, True)  # noqa: FBT003
        started = time.perf_counter()
        token = prompt[0]
        for start in range(0, len(prompt), self._chunk):
            token = self._step(start, prompt[start : start + self._chunk])
        first = time.perf_counter()
        tokens = [token]
        for position in range(len(prompt), len(prompt) + count - 1):
            tokens.append(self._step(position, tokens[-1:]))
        return Run(first - started, time.perf_counter() - first, tuple(tokens))

    def close(self) -> None:
        """Free all."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)

    def _step(self, position: int, tokens: Sequence[int]) -> int:
        batch = self._batch
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = i == len(tokens) - 1
        if llama_cpp.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits(self._context)
        return int(np.ctypeslib.as_array(logits, (self._vocabulary,)).argmax())


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node process runs: what to put before its command, and where it listens."""

    command: tuple[str, ...] = ()
    listen: str = "127.0.0.1:0"


@asynccontextmanager
async def chain_of(
    path: Path, nodes: int, threads: int, context_length: int
) -> AsyncIterator[tuple[ChainModel, list[NodeProcess]]]:
    """The model over that many node processes on loopback."""
    places = [NodePlace()] * nodes
    async with chain_on(places, path, threads, context_length) as chain:
        yield chain


@asynccontextmanager
async def chain_on(
    places: Sequence[NodePlace],
    path: Path,
    threads: int,
    context_length: int,
    *,
    sessions: int = 1,
    flash_attention: bool = False,
    ranges: Sequence[LayerRange] | None = None,
) -> AsyncIterator[tuple[ChainModel, list[NodeProcess]]]:
    """The model over a node process at each place, cut as the commands cut it for one reader or
    for many, by the ``sessions`` that a node takes; or by ``ranges``, one for each.
    """
    options = NodeOptions(
        len(places),
        threads,
        context_length,
        sessions=sessions,
        flash_attention=flash_attention,
        optimise=Optimise.LATENCY if sessions == 1 else Optimise.THROUGHPUT,
    )
    model = LocalModel(path, path.stem)
    wanted = split(model, options) if ranges is None else ranges
    cuts = cut_model(model, wanted, Settings.from_environment(), options)
    processes = [
        NodeProcess(
            (*place.command, *WORKER_COMMAND),
            node_config(number, cut, options, place.listen, None),
        )
        for number, (place, cut) in enumerate(zip(places, cuts, strict=True), start=1)
    ]
    try:
        addresses = await asyncio.gather(*(process.start() for process in processes))
        async with served_model(model, addresses, cuts[0].model_digest) as served:
            yield served, processes
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


async def generate(
    model: ChainModel,
    prompt: Sequence[int],
    count: int,
    speculation: Speculation = Speculation.OFF,
) -> Run:
    """One greedy generation of ``count`` tokens through the chain."""
    request = TextRequest(tuple(prompt), GREEDY, count, ignore_end=True, speculation=speculation)
    tokens: list[int] = []
    summary: GenerationSummary | None = None
    async for event in model.generate(request):
        if isinstance(event, GenerationSummary):
            summary = event
        else:
            tokens.extend(token.token_id for token in event.tokens)
    if summary is None:
        raise RuntimeError("the generation had no end")
    first = summary.seconds_to_first_token
    return Run(first, summary.seconds - first, tuple(tokens), summary)


def run(work: Coroutine[object, object, None]) -> None:
    """Run a measurement on the event loop that the commands use."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def median(values: Sequence[float]) -> float:
    """The middle of the values."""
    return statistics.median(values)


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A Markdown table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def even_ranges(total_layers: int, shards: int) -> tuple[LayerRange, ...]:
    """``shards`` ranges over ``[0, total_layers)`` whose sizes differ by one at most."""
    return balanced_ranges((1,) * total_layers, 0, shards, range(1, total_layers))
