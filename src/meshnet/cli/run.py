"""``meshnet run``: one answer, or a chat, from a model cut over several nodes."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.chat import chat
from meshnet.cli.local import (
    LocalModel,
    find_model,
    local_configs,
    local_nodes,
    model_digest,
    served_model,
)
from meshnet.cli.output import print_json
from meshnet.cli.runtime import interruptible, run_async
from meshnet.cli.settings import Settings, default_threads
from meshnet.cli.tracing import trace_config, tracer_for
from meshnet.cli.waterfall import print_timings
from meshnet.domain.errors import (
    InvalidArgumentError,
    NodeError,
    NodeLostError,
    NodeUnreachableError,
)
from meshnet.domain.generation import Speculation
from meshnet.domain.ids import Digest
from meshnet.domain.tracing import Tracer
from meshnet.node.config import NodeConfig
from meshnet.node.supervisor import NodeProcess
from meshnet.session.generate import ChainModel
from meshnet.session.recovery import RecoveryPolicy
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from meshnet.session.timings import hop_times

DEATH_SECONDS = 0.3
"""How long after a node was lost its process may take to be seen dead."""


def run(
    context: typer.Context,
    model: opt.Model,
    prompt: Annotated[str | None, typer.Argument(help="What to say; `-` reads stdin.")] = None,
    nodes: opt.Nodes = 3,
    optimise: opt.OptimiseOption = opt.Optimise.LATENCY,
    chain: opt.ChainOption = None,
    threads: opt.Threads = None,
    ctx: opt.Context = 4096,
    max_tokens: Annotated[
        int | None, typer.Option("--max-tokens", min=1, help="Tokens of the answer at most.")
    ] = None,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, typer.Option(help="Choose among the k likeliest; 0 means all.")] = 40,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest up to this share.")
    ] = 0.95,
    min_p: Annotated[float, typer.Option(help="Drop what is this much less likely.")] = 0.05,
    repeat_penalty: Annotated[float, typer.Option(help="Above 1 makes repeats less likely.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Makes the answer repeatable.")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End before this text.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue PROMPT without a chat template.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, help="Seconds that an answer may take.")
    ] = 3600.0,
    timings: Annotated[bool, typer.Option("--timings", help="Show where the time went.")] = False,
    json: opt.Json = False,
    gpu_layers: opt.GpuLayers = 0,
    flash_attn: opt.FlashAttention = False,
    cache_type_k: opt.CacheTypeK = "f16",
    cache_type_v: opt.CacheTypeV = "f16",
    mlock: opt.Mlock = False,
    no_mmap: opt.NoMmap = False,
    boundary: opt.BoundaryOption = opt.Boundary.FLOAT32,
    allow_unverified: opt.AllowUnverified = False,
    speculation: opt.SpeculationOption = Speculation.AUTO,
    cache_size: opt.CacheSize = None,
    otlp: opt.Otlp = None,
    trace_tokens: opt.TraceTokens = False,
) -> None:
    """Cut MODEL over node processes on this machine and stream an answer.

    Without a PROMPT on a terminal an interactive chat starts; a PROMPT of `-` is read from standard
    input.

    Examples:

      meshnet run demo "Why is the sky blue?"

      meshnet run model.gguf --nodes 4 --timings "Name three rivers."

      cat notes.txt | meshnet run model.gguf - --json

      meshnet run model.gguf --chain 10.0.0.1:7000,10.0.0.2:7000 "Hello"
    """
    opt.require_fitting_chain(context, chain)
    question = _read_prompt(prompt, opt.given(context, ("json", "raw")))
    sampling = opt.sampling_from(temperature, top_k, top_p, min_p, repeat_penalty, seed)
    node_options = opt.NodeOptions(
        nodes,
        threads or default_threads(nodes),
        ctx,
        sessions=1,
        gpu_layers=gpu_layers,
        flash_attention=flash_attn,
        allow_unverified=allow_unverified,
        optimise=optimise,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        mlock=mlock,
        mmap=not no_mmap,
    )

    settings = Settings.from_environment(cache_size)
    traces = trace_config(otlp, settings.otlp, tokens=trace_tokens)
    with interruptible():
        found = find_model(model, settings)
        digest = model_digest(found, settings)
        configs = [] if chain is not None else local_configs(found, settings, node_options)
        configs = [replace(each, traces=traces) for each in configs]

    terms = TextRequest(
        (),
        sampling,
        max_tokens,
        tuple(stop or ()),
        timeout_seconds=timeout,
        speculation=speculation,
    )

    async def work() -> None:
        async with AsyncExitStack() as stack:
            tracer = stack.enter_context(tracer_for(traces, "meshnet-run", found.name))
            served = await stack.enter_async_context(
                _served(found, digest, chain, configs, tracer, boundary)
            )
            if question is None:
                await chat(served, terms, system, show_timings=timings)
                return
            tokens = (
                served.prompt_from_text(question)
                if raw
                else served.prompt_from_messages(_messages(question, system))
            )
            request = replace(terms, prompt=tokens)
            if json:
                print_json(await _collect(served, request))
            else:
                await _stream(served, request, show_timings=timings)

    run_async(work())


def _read_prompt(prompt: str | None, unlike_chat: Sequence[str]) -> str | None:
    """The prompt's text; None means a chat on the terminal, which ``unlike_chat`` rules out."""
    if prompt is None and sys.stdin.isatty():
        if unlike_chat:
            raise InvalidArgumentError(
                "PROMPT", f"{unlike_chat[0]} needs one; without it a chat would start"
            )
        return None
    try:
        text = sys.stdin.read() if prompt in (None, "-") else prompt
    except UnicodeDecodeError as error:
        raise InvalidArgumentError("PROMPT", "standard input isn't UTF-8 text") from error
    if not text or not text.strip():
        raise InvalidArgumentError("PROMPT", "it is empty")
    return text


def _messages(question: str, system: str | None) -> list[dict[str, object]]:
    first: list[dict[str, object]] = [{"role": "system", "content": system}] if system else []
    return [*first, {"role": "user", "content": question}]


@asynccontextmanager
async def _served(
    model: LocalModel,
    digest: Digest,
    chain: str | None,
    configs: Sequence[NodeConfig],
    tracer: Tracer,
    boundary: opt.Boundary,
) -> AsyncIterator[ChainModel]:
    """The model over nodes that already run, or over nodes of its own."""
    if chain is not None:
        addresses = opt.parse_chain(chain)
        served_by_others = served_model(
            model, addresses, digest, None, tracer, boundary, policy=RecoveryPolicy()
        )
        async with served_by_others as served:
            yield served
        return
    async with (
        local_nodes(configs) as (started, processes),
        served_model(model, started, digest, None, tracer, boundary) as served,
    ):
        try:
            yield served
        except (NodeLostError, NodeUnreachableError) as error:
            raise await _explained(error, processes) from error


async def _explained(error: NodeError, processes: Sequence[NodeProcess]) -> NodeError:
    """The same error, told by the supervisor of the process that died, if one did."""
    watches = [asyncio.create_task(process.wait()) for process in processes]
    done, alive = await asyncio.wait(
        watches, timeout=DEATH_SECONDS, return_when=asyncio.FIRST_COMPLETED
    )
    for watch in alive:
        watch.cancel()
    await asyncio.gather(*alive, return_exceptions=True)
    return done.pop().result().error() if done else error


async def _stream(model: ChainModel, request: TextRequest, *, show_timings: bool) -> None:
    summary: GenerationSummary | None = None
    async with contextlib.aclosing(model.generate(request)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                sys.stdout.write(event.text)
                sys.stdout.flush()
            else:
                summary = event
    sys.stdout.write("\n")
    if show_timings and summary is not None:
        print_timings(summary)


async def _collect(model: ChainModel, request: TextRequest) -> dict[str, object]:
    text: list[str] = []
    tokens: list[int] = []
    summary: GenerationSummary | None = None
    async with contextlib.aclosing(model.generate(request)) as events:
        async for event in events:
            if isinstance(event, TextDelta):
                text.append(event.text)
                tokens.extend(token.token_id for token in event.tokens)
            else:
                summary = event
    result: dict[str, object] = {"model": model.name, "text": "".join(text), "token_ids": tokens}
    if summary is not None:
        result |= summary_fields(summary)
    return result


def summary_fields(summary: GenerationSummary) -> dict[str, object]:
    """The numbers of a finished generation, for ``--json``."""
    decoding = summary.seconds - summary.seconds_to_first_token
    steps = summary.completion_tokens - 1
    return {
        "finish_reason": summary.finish_reason.value,
        "prompt_tokens": summary.prompt_tokens,
        "completion_tokens": summary.completion_tokens,
        "seconds_to_first_token": round(summary.seconds_to_first_token, 4),
        "seconds": round(summary.seconds, 4),
        "decode_tokens_per_second": round(steps / decoding, 2) if steps > 0 else None,
        "pauses": [round(pause, 4) for pause in summary.pauses],
        "hops": [hop.fields() for hop in hop_times(summary.timings)],
    }
