"""``meshnet node``: one shard of a model, served to others."""

from __future__ import annotations

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
from meshnet.domain.errors import InvalidArgumentError, NodeLostError
from meshnet.domain.layers import parse_layer_range
from meshnet.node.keeper import NodeKeeper

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


def node(
    model: Annotated[str, typer.Option("--model", "-m", help="Path of a GGUF file, or `demo`.")],
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
    allow_unverified: opt.AllowUnverified = False,
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
    )

    settings = Settings.from_environment()
    with interruptible():
        found = find_model(model, settings)
        fitting = within_context(found, options)
        (cut,) = cut_model(found, [layer_range], settings, fitting)
    if layer_range.is_tail(cut.total_layers) and next_address is not None:
        raise InvalidArgumentError("next", f"layers {layer_range} end the model; nothing follows")
    if not address.startswith(LOOPBACK):
        print_note(
            "anybody who reaches this port can use the node: no encryption, no password; "
            "listen on a trusted network only"
        )
    config = node_config(1, cut, fitting, address, next_address, name)

    async def work() -> None:
        keeper = NodeKeeper(WORKER_COMMAND, config, report_death)
        try:
            bound = await keeper.start()
            if json:
                print_json({"event": "ready", "address": bound, "layers": str(layer_range)})
            else:
                print_line(f"serving layers {layer_range} of {cut.total_layers} at {bound}")
            await keeper.gone()
            raise NodeLostError("the node died again and again; it is given up")
        finally:
            await keeper.stop()

    run_async(work())
