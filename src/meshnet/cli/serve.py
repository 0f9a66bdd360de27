"""``meshnet serve``: the OpenAI API over a model that is cut over several nodes."""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated

import typer
from fastapi import FastAPI

from meshnet.cli import access
from meshnet.cli import options as opt
from meshnet.cli.dashboard import chain_machines
from meshnet.cli.local import (
    find_model,
    kept_nodes,
    local_configs,
    model_digest,
    report_death,
    served_model,
)
from meshnet.cli.output import print_line
from meshnet.cli.runtime import interruptible, run_async
from meshnet.cli.settings import Settings, default_threads
from meshnet.cli.telemetry import node_reader
from meshnet.cli.tracing import trace_config, tracer_for
from meshnet.domain.generation import Speculation
from meshnet.gateway.app import create_app
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.openai import own_names
from meshnet.gateway.server import open_listener, serve_on
from meshnet.node.keeper import NodeKeeper
from meshnet.session.recovery import RECOVERY_SECONDS, RecoveryPolicy


def serve(
    context: typer.Context,
    model: opt.Model,
    nodes: opt.Nodes = 3,
    optimise: opt.OptimiseOption = opt.Optimise.THROUGHPUT,
    chain: opt.ChainOption = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535)] = 8000,
    api_key: access.ApiKeyOption = None,
    keys: access.Keys = None,
    open_access: access.OpenAccess = False,
    allow_host: access.AllowHost = None,
    queue: access.Queue = access.DEFAULT_QUEUE,
    alias: access.Alias = None,
    name: Annotated[
        str | None, typer.Option("--name", help="The model's name for clients.")
    ] = None,
    threads: opt.Threads = None,
    ctx: opt.Context = 4096,
    sessions: opt.Sessions = 8,
    gpu_layers: opt.GpuLayers = 0,
    flash_attn: opt.FlashAttention = False,
    cache_type_k: opt.CacheTypeK = "f16",
    cache_type_v: opt.CacheTypeV = "f16",
    mlock: opt.Mlock = False,
    no_mmap: opt.NoMmap = False,
    boundary: opt.BoundaryOption = opt.Boundary.FLOAT32,
    allow_unverified: opt.AllowUnverified = False,
    speculation: opt.SpeculationOption = Speculation.AUTO,
    max_gap_ms: opt.MaxGap = 0.0,
    no_prefix_cache: opt.NoPrefixCache = False,
    recovery: opt.Recovery = RECOVERY_SECONDS,
    cache_size: opt.CacheSize = None,
    otlp: opt.Otlp = None,
    trace_tokens: opt.TraceTokens = False,
) -> None:
    """Serve MODEL behind an OpenAI-compatible HTTP API.

    Examples:

      meshnet serve demo --port 8000

      meshnet serve model.gguf --chain 10.0.0.1:7000,10.0.0.2:7000 --host 0.0.0.0 --api-key secret

    then: curl http://127.0.0.1:8000/v1/models
    """
    opt.require_fitting_chain(context, chain)
    settings = Settings.from_environment(cache_size)
    traces = trace_config(otlp, settings.otlp, tokens=trace_tokens)
    allowed = access.AccessOptions(
        host, api_key, open_access, allow_host or (), keys, queue, alias or ()
    )
    options = opt.NodeOptions(
        nodes,
        threads or default_threads(nodes),
        ctx,
        sessions,
        gpu_layers,
        flash_attn,
        allow_unverified,
        optimise,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        mlock=mlock,
        mmap=not no_mmap,
        max_gap_ms=max_gap_ms,
        prefix_cache=not no_prefix_cache,
    )

    # First of all: a port that is in use is known before a model is cut and loaded.
    with (
        interruptible(),
        access.gateway_access(allowed, settings) as (config, callers),
        open_listener(host, port) as listener,
    ):
        found = find_model(model, settings)
        own_names([name or found.name], config.aliases)
        digest = model_digest(found, settings)
        configs = [] if chain is not None else local_configs(found, settings, options)
        configs = [replace(each, traces=traces) for each in configs]

        async def work() -> None:
            async with AsyncExitStack() as stack:
                tracer = stack.enter_context(tracer_for(traces, "meshnet-gateway", found.name))
                keepers: list[NodeKeeper] = []
                if chain is not None:
                    addresses = list(opt.parse_chain(chain))
                else:
                    addresses, keepers = await stack.enter_async_context(
                        kept_nodes(configs, report_death)
                    )
                served = await stack.enter_async_context(
                    served_model(
                        found,
                        addresses,
                        digest,
                        name,
                        tracer,
                        boundary,
                        speculation,
                        policy=RecoveryPolicy(recovery),
                    )
                )
                figures = GatewayFigures(node_reader(keepers))
                machines = chain_machines(served, keepers, found, options)
                app = create_app([served], config, figures, tracer, machines, callers)
                await serve_until_cancelled(app, listener)

        run_async(work())


async def serve_until_cancelled(app: FastAPI, listener: socket.socket) -> None:
    """Serve; on Ctrl-C end the answers that are under way in good order."""
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_on(app, listener, on_ready=_announce, stop=stop))
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        stop.set()
        await serving
        raise


def _announce(url: str) -> None:
    print_line(f"serving at {url}/v1, dashboard at {url}/dashboard (Ctrl-C ends it)")
