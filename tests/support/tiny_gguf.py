"""Tiny random-weight GGUF models of a few architectures, made in milliseconds without libllama."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter
from gguf.quants import quantize
from numpy.typing import NDArray

from meshnet.model.gguf import (
    DEFAULT_ALIGNMENT,
    GgufIndex,
    GgufPart,
    TensorInfo,
    padded,
    tensor_size,
)
from meshnet.model.metadata import MetadataValue, encode_string, string
from tests.support.gguf_values import (
    CHAT_TEMPLATE,
    END_OF_TEXT,
    IM_END,
    IM_START,
    VOCABULARY,
    KeyValue,
    kinds_of,
    vocabulary_keys,
)
from tests.support.tiny_tensors import TINY, Dimension, Shape

__all__ = [
    "CHAT_TEMPLATE",
    "END_OF_TEXT",
    "IM_END",
    "IM_START",
    "TINY",
    "VOCABULARY",
    "KeyValue",
    "TinyModel",
    "build",
    "index_of",
]

F32 = GGMLQuantizationType.F32
WINDOW = 8
"""Tokens a sliding layer attends to: few, so that short tests reach beyond it."""
EXPERTS_USED = 2

_CODES = {
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
}
_SPARSE = frozenset({"qwen3moe", "olmoe", "deepseek", "gpt-oss"})
_OWN_KEYS: Mapping[str, Mapping[str, float | int]] = {
    "granite": {"logit_scale": 4.0, "embedding_scale": 3.0, "residual_scale": 0.25},
    "deepseek": {"expert_shared_count": 2, "expert_weights_scale": 1.5},
    "gemma3": {"attention.sliding_window": WINDOW},
    "gpt-oss": {"attention.sliding_window": WINDOW},
}


@dataclass(frozen=True, slots=True)
class TinyModel:
    """What to build. ``embedding`` must fill the quantised type's blocks."""

    architecture: str = "llama"
    layers: int = 4
    embedding: int = 64
    heads: int = 4
    kv_heads: int = 2
    tied: bool = False
    """Whether the output matrix is left out, where the architecture allows it."""
    quantization: GGMLQuantizationType = F32
    leading_dense: int = 0
    per_layer_arrays: bool = False
    """Whether sizes are written as one entry a layer."""
    seed: int = 0
    keys: Mapping[str, KeyValue] = field(default_factory=dict)
    """The architecture's own keys to add or replace, without its name in front."""


LLAMA = TinyModel()


def build(
    path: Path,
    model: TinyModel = LLAMA,
    *,
    parts: int = 1,
    alignment: int = DEFAULT_ALIGNMENT,
    described: Mapping[str, KeyValue] = MappingProxyType({}),
    backwards: bool = False,
) -> Path:
    """Write the model to ``path`` and return it, or the first of its parts.

    ``described`` are full keys to add or replace; ``backwards`` turns the order of tensors round.
    """
    random = np.random.default_rng(model.seed)
    tensors = [
        (name, kind, _weights(random, name, kind, shape)) for name, kind, shape in _tensors(model)
    ]
    per_part = -(-len(tensors) // parts) if parts > 1 else 0
    writer = GGUFWriter(path, model.architecture, split_max_tensors=per_part)
    if alignment != DEFAULT_ALIGNMENT:
        writer.add_custom_alignment(alignment)
    for key, value in (keys_of(model) | dict(described)).items():
        writer.add_key_value(key, value, *kinds_of(value))
    for name, stored, data in reversed(tensors) if backwards else tensors:
        writer.add_tensor(name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if parts == 1 else path.with_name(f"{path.stem}-00001-of-{parts:05}.gguf")


def index_of(model: TinyModel = LLAMA) -> GgufIndex:
    """The model's index, without a file: for what only reads headers."""
    metadata = {"general.architecture": string(model.architecture)}
    metadata |= {key: _encoded(value) for key, value in keys_of(model).items()}
    tensors, offset = {}, 0
    for name, kind, shape in _tensors(model):
        size = tensor_size(kind, shape)
        tensors[name] = TensorInfo(name, kind, shape, offset, size)
        offset += padded(size, DEFAULT_ALIGNMENT)
    return GgufIndex((GgufPart(Path("/models/tiny.gguf"), offset, 0),), metadata, tensors)


def keys_of(model: TinyModel) -> dict[str, KeyValue]:
    """All metadata but the architecture."""
    own = _architecture_keys(model) | dict(model.keys)
    return {
        "general.name": "tiny random model",
        **{f"{model.architecture}.{key}": value for key, value in own.items()},
        **vocabulary_keys(),
    }


def _architecture_keys(model: TinyModel) -> dict[str, KeyValue]:
    extents = _extents(model)
    keys: dict[str, KeyValue] = {
        "block_count": model.layers,
        "context_length": 256,
        "embedding_length": model.embedding,
        "vocab_size": VOCABULARY,
        "rope.dimension_count": extents["key_size"],
        "attention.key_length": extents["key_size"],
        "attention.value_length": extents["key_size"],
        TINY[model.architecture].epsilon: 1e-5,
        **_per_layer_keys(model, extents),
        **_OWN_KEYS.get(model.architecture, {}),
    }
    if model.architecture in _SPARSE:
        keys["expert_count"] = extents["experts"]
    if model.leading_dense:
        keys["leading_dense_block_count"] = model.leading_dense
    return keys


def _per_layer_keys(model: TinyModel, extents: Mapping[Dimension, int]) -> Mapping[str, KeyValue]:
    values = {
        "attention.head_count": model.heads,
        "attention.head_count_kv": extents["key"] // extents["key_size"],
        "feed_forward_length": extents["feed_forward"],
    }
    if model.architecture in _SPARSE:
        values["expert_used_count"] = EXPERTS_USED
        if model.architecture != "olmoe":
            values["expert_feed_forward_length"] = extents["expert_feed_forward"]
    if model.per_layer_arrays:
        return {key: [value] * model.layers for key, value in values.items()}
    return values


def _extents(model: TinyModel) -> dict[Dimension, int]:
    key_size = 32 if model.architecture in {"gemma3", "qwen3"} else model.embedding // model.heads
    kv_heads = model.heads if model.architecture == "olmoe" else model.kv_heads
    width = 2 * model.embedding
    return {
        "embedding": model.embedding,
        "vocabulary": VOCABULARY,
        "query": model.heads * key_size,
        "key": kv_heads * key_size,
        "key_size": key_size,
        "heads": model.heads,
        "feed_forward": width,
        "experts": 4,
        "expert_feed_forward": width // 2,
        "shared_feed_forward": width,
    }


def _tensors(model: TinyModel) -> Iterator[tuple[str, GGMLQuantizationType, tuple[int, ...]]]:
    """Name, type and shape (ggml's order) of every tensor."""
    rules = TINY[model.architecture]
    for name, shape in rules.outer.items():
        if not (model.tied and name.startswith("output.")):
            yield name, *_stored(model, name, shape)
    for layer in range(model.layers):
        sparse = model.architecture in _SPARSE and layer >= model.leading_dense
        own = rules.sparse if sparse else rules.dense
        for name, shape in (*rules.layer.items(), *own.items()):
            yield f"blk.{layer}.{name}", *_stored(model, name, shape)


def _stored(
    model: TinyModel, name: str, shape: Shape
) -> tuple[GGMLQuantizationType, tuple[int, ...]]:
    extents = _extents(model)
    plain = len(shape) == 1 or "ffn_gate_inp" in name or name.endswith(".bias")
    return F32 if plain else model.quantization, tuple(extents[part] for part in shape)


def _weights(
    random: np.random.Generator, name: str, kind: GGMLQuantizationType, shape: tuple[int, ...]
) -> NDArray[np.generic]:
    data = random.standard_normal(shape[::-1], dtype=np.float32)
    if len(shape) > 1:
        data /= np.sqrt(shape[0])
        return data if kind is F32 else quantize(data, kind)
    data /= 8
    if name.endswith(".weight") and ("norm" in name or "rope_" in name):
        np.abs(data + 1, out=data)
    return data


def _encoded(value: KeyValue) -> MetadataValue:
    kind, element = kinds_of(value)
    if element is None or isinstance(value, int | float | str):
        return MetadataValue(kind, _raw(value, kind))
    items = b"".join(_raw(item, element) for item in value)
    raw = struct.pack("<IQ", element, len(value)) + items
    return MetadataValue(kind, raw, element, len(value))


def _raw(value: object, kind: GGUFValueType) -> bytes:
    return encode_string(value) if isinstance(value, str) else struct.pack(_CODES[kind], value)
