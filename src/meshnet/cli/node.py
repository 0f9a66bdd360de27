"""``meshnet node``: one shard of a model, served to others."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.local import (
    WORKER_COMMAND,
    cut_model,
    find_model,
    node_config,
    report_death,
    within_context,
)
from meshnet.cli.output import print_json, print_line, print_note
from meshnet.cli.runtime import interruptible, run_async
from meshnet.cli.settings import Settings, default_threads
from meshnet.cli.telemetry import metrics_listener, metrics_served
from meshnet.cli.tracing import trace_config
from meshnet.domain.errors import InvalidArgumentError, NodeLostError
from meshnet.domain.layers import LayerRange, parse_layer_range
from meshnet.node.config import NodeConfig
from meshnet.node.keeper import NodeKeeper

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def node(
    model: Annotated[
        str, typer.Option("--model", "-m", help="Path or address of a GGUF file, or `demo`.")
    ],
    layers: Annotated[str, typer.Option("--layers", "-l", help="A:B, half-open.")],
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT.")] = "127.0.0.1:7000",
    next_node: Annotated[
        str | None, typer.Option("--next", help="HOST:PORT of the node with the layers after B.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="What errors call this node.")] = None,
    threads: opt.Threads = None,
    ctx: opt.Context = 4096,
    sessions: opt.Sessions = 4,
    json: opt.Json = False,
    gpu_layers: opt.GpuLayers = 0,
    flash_attn: opt.FlashAttention = False,
    cache_type_k: opt.CacheTypeK = "f16",
    cache_type_v: opt.CacheTypeV = "f16",
    mlock: opt.Mlock = False,
    no_mmap: opt.NoMmap = False,
    allow_unverified: opt.AllowUnverified = False,
    max_gap_ms: opt.MaxGap = 0.0,
    no_prefix_cache: opt.NoPrefixCache = False,
    cache_size: opt.CacheSize = None,
    otlp: opt.Otlp = None,
    trace_tokens: opt.TraceTokens = False,
    metrics: Annotated[
        str | None,
        typer.Option("--metrics", help="Offer Prometheus metrics at PORT or HOST:PORT."),
    ] = None,
) -> None:
    """Serve layers A:B of a model (half-open: B itself is not included).

    Examples, for a model of 30 layers on two machines:

      meshnet node --model model.gguf --layers 0:15 --listen 0.0.0.0:7000 --next 10.0.0.2:7000

      meshnet node --model model.gguf --layers 15:30 --listen 0.0.0.0:7000

    then, anywhere: meshnet run model.gguf --chain 10.0.0.1:7000 "Hello"
    """
    layer_range = parse_layer_range(layers)
    address = opt.parse_address("listen", listen)
    next_address = opt.parse_address("next", next_node) if next_node is not None else None
    options = opt.NodeOptions(
        1,
        threads or default_threads(1),
        ctx,
        sessions,
        gpu_layers,
        flash_attn,
        allow_unverified,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        mlock=mlock,
        mmap=not no_mmap,
        max_gap_ms=max_gap_ms,
        prefix_cache=not no_prefix_cache,
    )

    settings = Settings.from_environment(cache_size)
    traces = trace_config(otlp, settings.otlp, tokens=trace_tokens)
    with metrics_listener(metrics) as listener:
        with interruptible():
            found = find_model(model, settings)
            fitting = within_context(found, options)
            (cut,) = cut_model(found, [layer_range], settings, fitting)
        if layer_range.is_tail(cut.total_layers) and next_address is not None:
            raise InvalidArgumentError(
                "next", f"layers {layer_range} end the model; nothing follows"
            )
        if not address.startswith(LOOPBACK):
            print_note(
                "anybody who reaches this port can use the node: no encryption, no password; "
                "listen on a trusted network only"
            )
        config = node_config(
            1, cut, fitting, address, next_address, name, settings.variables, settings.notes
        )
        config = replace(config, traces=traces)
        run_async(_keep(config, listener, json=json))


async def _keep(config: NodeConfig, listener: socket.socket | None, *, json: bool) -> None:
    """Keep the node's process alive until the command ends, or it dies again and again."""
    keeper = NodeKeeper(WORKER_COMMAND, config, report_death)
    layers = LayerRange(config.shard_start, config.shard_end)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(keeper.stop)
        url = None
        if listener is not None:
            url = await stack.enter_async_context(metrics_served(listener, [keeper]))
        bound = await keeper.start()
        if json:
            ready = {"event": "ready", "address": bound, "layers": str(layers)}
            print_json(ready if url is None else ready | {"metrics": url})
        else:
            print_line(f"serving layers {layers} of {config.total_layers} at {bound}")
            if url is not None:
                print_line(f"metrics at {url}")
        await keeper.gone()
        raise NodeLostError("the node died again and again; it is given up")
