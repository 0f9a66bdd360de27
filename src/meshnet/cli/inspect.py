"""``meshnet inspect`` and ``meshnet slice``: look at a model, and cut a piece of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.local import find_model
from meshnet.cli.output import print_json, print_line, print_table, progress_bars
from meshnet.cli.settings import Settings
from meshnet.domain.layers import parse_layer_range
from meshnet.model.cache import SliceCache
from meshnet.model.description import ModelInfo, describe, legal_cuts
from meshnet.model.gguf import read_index
from meshnet.model.slice_file import write_slice
from meshnet.model.slice_plan import plan_slice


def inspect(
    model: opt.Model, json: opt.Json = False, allow_unverified: opt.AllowUnverified = False
) -> None:
    """Show what a model is, how large its layers are, and where it may be cut.

    Reads the file's header alone, never its weights.

    Examples:

      meshnet inspect demo

      meshnet inspect model-00001-of-00003.gguf --json
    """
    found = find_model(model, Settings.from_environment())
    info = describe(read_index(found.path))
    cuts = legal_cuts(info, allow_unverified=allow_unverified)
    if json:
        print_json({**asdict(info), "legal_cuts": cuts, "path": str(found.path)})
        return
    for label, value in _facts(info, cuts):
        print_line(f"{label:<18}{value}")
    rows = [("embeddings", _size(info.embedding_bytes))]
    rows += [(f"layer {number}", _size(size)) for number, size in enumerate(info.layer_bytes)]
    rows += [("output", _size(info.output_bytes)), ("other", _size(info.other_bytes))]
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
    """
    settings = Settings.from_environment()
    found = find_model(model, settings)
    layer_range = parse_layer_range(layers)
    with progress_bars() as progress:
        digest = SliceCache(settings.cache).digest(found.path, progress)
        plan = plan_slice(
            read_index(found.path), layer_range, digest, allow_unverified=allow_unverified
        )
        made = write_slice(plan, output, progress)
    if json:
        print_json({"path": str(output), "digest": made.digest, "size": made.size})
    else:
        print_line(f"{output}: layers {layer_range}, {_size(made.size)}, {made.digest}")


def _facts(info: ModelInfo, cuts: tuple[int, ...]) -> list[tuple[str, object]]:
    if info.obstacle:
        verdict = f"no: {info.obstacle}"
    else:
        verdict = "yes: every cut gives the unsplit model's numbers, bit for bit"
    return [
        ("name", info.name),
        ("architecture", info.architecture),
        ("verified", verdict),
        ("layers", info.total_layers),
        ("legal cuts", _spans(cuts)),
        ("embedding width", info.n_embd),
        ("vocabulary", info.n_vocab),
        ("context", info.context_length),
        ("tied embeddings", "yes" if info.tied_embeddings else "no"),
        ("chat template", "yes" if info.has_chat_template else "no"),
        ("tensors", _size(info.tensor_bytes)),
        ("types", ", ".join(f"{kind} {_size(size)}" for kind, size in info.quantization.items())),
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


def _size(count: int) -> str:
    """Bytes for people, in powers of 1024."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.2f} GiB"
