"""A zoo model's file: libllama says which tensors it needs, random numbers fill them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TypeGuard

import llama_cpp
import numpy as np
from gguf import GGUFWriter

from meshnet.engine.llamacpp.library import llama_ready
from meshnet.engine.llamacpp.log import recent_errors
from tests.support.gguf_values import KeyValue, kinds_of, vocabulary_keys
from tests.support.zoo.common import EMBEDDING, EXPERTS, common_keys
from tests.support.zoo.listing import ListingError, Wanted, wanted_tensors
from tests.support.zoo.spec import F32, Keys, ZooModel
from tests.support.zoo.weights import encoded, random_weights, stored_type

_MISSING = re.compile(r"tensor '([^']+)'(?: not found)?")
_BLOCK = re.compile(r"^blk\.\d+\.")
_GLOBAL = ("xielu.",)
"""How keys start that the architecture's name doesn't precede."""
_PREDICTION = {
    "nextn.eh_proj.weight": (2 * EMBEDDING, EMBEDDING),
    "nextn.enorm.weight": (EMBEDDING,),
    "nextn.hnorm.weight": (EMBEDDING,),
    "nextn.shared_head_norm.weight": (EMBEDDING,),
}
"""What a block for multi-token prediction has besides a layer's tensors."""


def build(model: ZooModel, folder: Path) -> Path:
    """Write the model into ``folder`` and return its file.

    Raises :class:`ListingError` when libllama refuses its metadata; some metadata, and some sets of
    tensors, end the process.
    """
    path = folder / "model.gguf"
    chosen = [
        tensor
        for tensor in _known_tensors(model, path)
        if not any(fnmatchcase(own_name(tensor.name), pattern) for pattern in model.absent)
    ]
    if model.lean:
        chosen = _needed(model, path, chosen)
    write(model, path, chosen)
    return path


def write(model: ZooModel, path: Path, tensors: Sequence[Wanted]) -> None:
    """Write the model's metadata and the given tensors."""
    writer = _writer(path, model)
    for tensor in tensors:
        kind = stored_type(tensor.name, tensor.shape, model.quantization)
        values = random_weights(model.seed, tensor.name, tensor.shape)
        writer.add_tensor(tensor.name, encoded(values, kind), raw_dtype=kind)
    _finish(writer)


def own_name(name: str) -> str:
    """The name without its layer: ``attn_q.weight``."""
    return _BLOCK.sub("", name)


def metadata_of(model: ZooModel) -> dict[str, KeyValue]:
    """All metadata but the architecture."""
    own = common_keys(model.layers) | dict(model.keys)
    own["vocab_size"] = model.vocabulary
    return {
        "general.name": "random",
        **{
            key if key.startswith(_GLOBAL) else f"{model.architecture}.{key}": value
            for key, value in own.items()
            if value is not None
        },
        **vocabulary_keys(model.vocabulary),
    }


def _known_tensors(model: ZooModel, path: Path) -> list[Wanted]:
    """All tensors that the model can have, blocks for multi-token prediction included."""
    ahead = model.keys.get("nextn_predict_layers") or 0
    trunk = replace(model, layers=model.layers - ahead) if isinstance(ahead, int) else model
    listed = _listed(trunk, trunk.keys, path)
    if model.dense:
        plain = {key: value for key, value in model.keys.items() if key not in EXPERTS}
        layers = {f"blk.{layer}." for layer in model.dense}
        listed = [tensor for tensor in listed if _prefix(tensor) not in layers]
        listed += [t for t in _listed(trunk, plain, path) if _prefix(t) in layers]
    last = [t for t in listed if _prefix(t) == f"blk.{model.ahead % trunk.layers}."]
    for block in range(trunk.layers, model.layers):
        listed += [Wanted(f"blk.{block}.{own_name(t.name)}", t.shape) for t in last]
        listed += [Wanted(f"blk.{block}.{name}", shape) for name, shape in _PREDICTION.items()]
    return listed


def _listed(model: ZooModel, keys: Keys, path: Path) -> list[Wanted]:
    cut = {
        key: value[: model.layers] if _is_longer(value, model.layers) else value
        for key, value in keys.items()
        if key != "nextn_predict_layers"
    }
    writer = _writer(path, replace(model, keys=cut))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    return list(_apart(wanted_tensors(path)))


def _is_longer(value: KeyValue | None, layers: int) -> TypeGuard[Sequence[int]]:
    return isinstance(value, Sequence) and not isinstance(value, str) and len(value) > layers


def _apart(tensors: Iterable[Wanted]) -> Iterator[Wanted]:
    """As most files have them: what libllama would take in one is apart, no scales of NVFP4."""
    for tensor in tensors:
        if tensor.name.rpartition(".")[2] in {"scale", "input_scale"}:
            continue
        if own_name(tensor.name) == "ffn_gate_up_exps.weight":
            length, width, count = tensor.shape
            for part in ("ffn_gate_exps.weight", "ffn_up_exps.weight"):
                yield Wanted(_prefix(tensor) + part, (length, width // 2, count))
        else:
            yield tensor


def _prefix(tensor: Wanted) -> str:
    found = _BLOCK.match(tensor.name)
    return found.group() if found else ""


def _needed(model: ZooModel, path: Path, tensors: Sequence[Wanted]) -> list[Wanted]:
    """Those without which libllama doesn't load the model, found by leaving them out."""
    names = {own_name(tensor.name) for tensor in tensors}
    keep = ("token_embd.weight", *model.keep)
    needed = {n for n in names if any(fnmatchcase(n, pattern) for pattern in keep)}
    while True:
        chosen = [tensor for tensor in tensors if own_name(tensor.name) in needed]
        _write_zeros(model, path, chosen)
        missing = _missing_tensor(path)
        if missing is None:
            return chosen
        if missing in needed:
            raise ListingError(f"{missing} is there, but libllama misses it")
        needed.add(missing)


def _write_zeros(model: ZooModel, path: Path, tensors: Iterable[Wanted]) -> None:
    writer = _writer(path, model)
    for tensor in tensors:
        writer.add_tensor(tensor.name, np.zeros(tensor.shape[::-1], np.float32), raw_dtype=F32)
    _finish(writer)


def _missing_tensor(path: Path) -> str | None:
    llama_ready()
    recent_errors.clear()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    if model:
        llama_cpp.llama_model_free(model)
        return None
    found = _MISSING.search(recent_errors.text())
    if found is None:
        raise ListingError(recent_errors.text())
    return own_name(found.group(1))


def _writer(path: Path, model: ZooModel) -> GGUFWriter:
    writer = GGUFWriter(path, model.architecture)
    for key, value in metadata_of(model).items():
        writer.add_key_value(key, value, *kinds_of(value))
    return writer


def _finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
