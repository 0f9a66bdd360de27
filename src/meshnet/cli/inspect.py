"""``meshnet inspect`` and ``meshnet slice``: look at a model, and cut a piece of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.fingerprint import show_fingerprint
from meshnet.cli.local import find_model, model_digest, within_context
from meshnet.cli.output import human_size, print_json, print_line, print_table, progress_bars
from meshnet.cli.settings import Settings, default_threads
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import parse_layer_range
from meshnet.model.description import ModelInfo, describe, free_cuts, legal_cuts, nulls_by_cut
from meshnet.model.gguf import read_index
from meshnet.model.memory import fitting_layers, layer_cache_bytes
from meshnet.model.slice_file import Contents, write_slice
from meshnet.model.slice_plan import plan_slice
from meshnet.node.resources import available_memory

_OF_FINGERPRINTS = ("layers", "threads", "gpu_layers", "boundary")
"""Parameters that ``--fingerprint`` alone makes use of."""


def inspect(
    context: typer.Context,
    model: opt.Model,
    json: opt.Json = False,
    allow_unverified: opt.AllowUnverified = False,
    fingerprint: Annotated[
        bool,
        typer.Option(
            "--fingerprint",
            help="Show what a node started here with the options below would compute with; two "
            "nodes work together only if all of it is equal.",
        ),
    ] = False,
    layers: Annotated[
        str | None, typer.Option("--layers", "-l", help="The node's layers A:B; default: all.")
    ] = None,
    threads: opt.Threads = None,
    ctx: opt.Context = 4096,
    sessions: opt.Sessions = 4,
    gpu_layers: opt.GpuLayers = 0,
    flash_attn: opt.FlashAttention = False,
    cache_type_k: opt.CacheTypeK = "f16",
    cache_type_v: opt.CacheTypeV = "f16",
    boundary: opt.BoundaryOption = opt.Boundary.FLOAT32,
) -> None:
    """Show what a model is, how large its layers are, where it may be cut, and what fits here.

    Reads the file's header alone, never its weights; with --fingerprint all of it, once.

    Examples:

      meshnet inspect demo

      meshnet inspect model-00001-of-00003.gguf --json

      meshnet inspect hf://org/repository/model.gguf

      meshnet inspect demo --fingerprint --flash-attn
    """
    unheard = [] if fingerprint else opt.given(context, _OF_FINGERPRINTS)
    if unheard:
        raise InvalidArgumentError("fingerprint", f"{', '.join(unheard)} changes nothing else")
    settings = Settings.from_environment()
    found = find_model(model, settings)
    info = describe(read_index(found.path))
    options = opt.NodeOptions(
        1,
        threads or default_threads(1),
        ctx,
        sessions,
        gpu_layers,
        flash_attn,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
    )
    if fingerprint:
        held = f"0:{info.total_layers}" if layers is None else layers
        show_fingerprint(
            found,
            settings,
            within_context(found, options),
            parse_layer_range(held).within(info.total_layers),
            opt.fixed_boundary(boundary),
            json=json,
        )
        return
    cuts = legal_cuts(info, allow_unverified=allow_unverified)
    room = _room(info, options)
    if json:
        nulls = nulls_by_cut(info, cuts)
        found_out = {"legal_cuts": cuts, "nulls_by_cut": nulls, "path": found.address}
        print_json({**asdict(info), **found_out, "memory": room})
        return
    for label, value in (*_facts(info, cuts), *_told(room, info)):
        print_line(f"{label:<18}{value}")
    rows = [("embeddings", human_size(info.embedding_bytes))]
    rows += [(f"layer {number}", human_size(size)) for number, size in enumerate(info.layer_bytes)]
    rows += [("output", human_size(info.output_bytes)), ("other", human_size(info.other_bytes))]
    print_table("bytes", ("part", "size"), _folded(rows))


def slice_model(
    model: opt.Model,
    layers: Annotated[str, typer.Argument(help="A:B, half-open.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write.")],
    json: opt.Json = False,
    allow_unverified: opt.AllowUnverified = False,
) -> None:
    """Write layers A:B of MODEL as a GGUF file of its own.

    Examples:

      meshnet slice model.gguf 0:16 -o head.gguf

      meshnet slice hf://org/repository/model.gguf 16:32 -o tail.gguf
    """
    settings = Settings.from_environment()
    found = find_model(model, settings)
    layer_range = parse_layer_range(layers)
    digest = model_digest(found, settings)
    plan = plan_slice(
        read_index(found.path), layer_range, digest, allow_unverified=allow_unverified
    )
    contents = None
    if found.remote is not None:
        contents = Contents(plan, found.remote.weights(), found.remote.tensors)
    with progress_bars() as progress:
        made = write_slice(plan, output, progress, contents)
    if json:
        print_json({"path": str(output), "digest": made.digest, "size": made.size})
    else:
        print_line(f"{output}: layers {layer_range}, {human_size(made.size)}, {made.digest}")


def _facts(info: ModelInfo, cuts: tuple[int, ...]) -> list[tuple[str, object]]:
    if info.obstacle:
        verdict = f"no: {info.obstacle}"
    else:
        verdict = "yes: every legal cut gives the unsplit model's numbers, bit for bit"
    free = free_cuts(info, cuts)
    return [
        ("name", info.name),
        ("architecture", info.architecture),
        ("verified", verdict),
        ("layers", info.total_layers),
        ("legal cuts", _spans(cuts)),
        ("of them free", "all" if free == cuts else f"{_spans(free)}; others cost extra layers"),
        ("embedding width", info.n_embd),
        ("vocabulary", info.n_vocab),
        ("context", info.context_length),
        ("tied embeddings", "yes" if info.tied_embeddings else "no"),
        ("chat template", "yes" if info.has_chat_template else "no"),
        ("tensors", human_size(info.tensor_bytes)),
        (
            "types",
            ", ".join(f"{kind} {human_size(size)}" for kind, size in info.quantization.items()),
        ),
    ]


def _room(info: ModelInfo, options: opt.NodeOptions) -> dict[str, int | None]:
    """What the options' caches take, and how many layers this machine has memory for."""
    context = min(options.context_length, info.context_length)
    kinds = options.cache_type_k, options.cache_type_v
    layer = layer_cache_bytes(info, context, options.sessions, *kinds)
    free = available_memory()
    return {
        "context_length": context,
        "sessions": options.sessions,
        "kv_cache_bytes": layer * info.total_layers,
        "available_bytes": free,
        "fitting_layers": None if free is None else fitting_layers(info, layer, free),
    }


def _told(room: dict[str, int | None], info: ModelInfo) -> list[tuple[str, object]]:
    size, free = room["kv_cache_bytes"] or 0, room["available_bytes"]
    cache = f"{human_size(size)} for {room['sessions']} sessions of {room['context_length']} tokens"
    if free is None:
        return [("KV cache", cache)]
    fitting = f"{room['fitting_layers']} of {info.total_layers} layers"
    return [
        ("KV cache", cache),
        ("fits here", f"{fitting} with it, in the {human_size(free)} free"),
    ]


def _spans(cuts: tuple[int, ...]) -> str:
    """``1-29`` rather than every number."""
    spans: list[list[int]] = []
    for cut in cuts:
        if spans and cut == spans[-1][1] + 1:
            spans[-1][1] = cut
        else:
            spans.append([cut, cut])
    return ", ".join(f"{a}-{b}" if a != b else str(a) for a, b in spans) or "none"


def _folded(rows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Neighbouring layers of equal size as one row."""
    folded: list[tuple[str, str, str]] = []
    for name, size in rows:
        if folded and name.startswith("layer") and folded[-1][2] == size:
            first = folded[-1][0]
            if first.startswith("layer"):
                folded[-1] = (first, name.removeprefix("layer "), size)
                continue
        folded.append((name, "", size))
    return [(f"{a}-{b}" if b else a, f"{size} each" if b else size) for a, b, size in folded]
