"""Tiny random-weight GGUF models of every architecture in the table, made in milliseconds.

Their tensors are the ones the table lists, so a wrong entry shows as soon as libllama loads one.
The vocabulary is a real byte-level BPE one (256 bytes, some merges, ChatML's control tokens), so
any text can be tokenised and comes back the same.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, TokenType
from gguf.quants import quantize
from numpy.typing import NDArray

from meshnet.model.architectures import VERIFIED
from meshnet.model.gguf import (
    DEFAULT_ALIGNMENT,
    GgufIndex,
    GgufPart,
    TensorInfo,
    padded,
    tensor_size,
)
from meshnet.model.hyperparameters import Hyperparameters
from meshnet.model.metadata import MetadataValue, encode_string, string
from meshnet.model.rules import TensorRule

F32 = GGMLQuantizationType.F32
KeyValue = int | float | str | Sequence[int] | Sequence[str]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = (("h", "e"), ("l", "l"), ("o", "w"), ("Ġ", "t"), ("Ġt", "he"), ("he", "ll"), ("hell", "o"))
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(256 + len(MERGES), 256 + len(MERGES) + 3)
VOCABULARY = 256 + len(MERGES) + len(CONTROL_TOKENS)
WINDOW = 8
"""Tokens a sliding layer attends to: few, so that short tests reach beyond it."""

_CODES = {
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
}
_SPARSE = frozenset({"qwen2moe", "qwen3moe", "olmoe", "granitemoe", "deepseek", "gpt-oss"})
_OWN_KEYS: Mapping[str, Mapping[str, float | int]] = {
    "granite": {"logit_scale": 4.0, "embedding_scale": 3.0, "residual_scale": 0.25},
    "granitemoe": {"logit_scale": 4.0, "embedding_scale": 3.0, "residual_scale": 0.25},
    "mistral3": {"attention.temperature_scale": 0.1, "rope.scaling.original_context_length": 16},
    "cohere2": {"logit_scale": 0.25},
    "deepseek": {"expert_shared_count": 2, "expert_weights_scale": 1.5},
}
_QKV_BIASES = frozenset({"attn_q.bias", "attn_k.bias", "attn_v.bias"})
_OPTIONAL: Mapping[str, frozenset[str]] = {
    "llama": frozenset({"rope_freqs.weight"}),
    "qwen2": _QKV_BIASES | {"output.bias"},
    "qwen2moe": _QKV_BIASES,
    "phi3": frozenset({"attn_qkv.weight", "rope_factors_long.weight", "rope_factors_short.weight"}),
    "stablelm": frozenset({"ffn_norm.weight", "ffn_norm.bias"}),
    "gpt-oss": _QKV_BIASES,
}
"""Tensors that aren't required, but which the architecture's real models have."""


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
    sliding: bool = True
    """Whether an architecture that may do without sliding windows has them."""
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
        writer.add_key_value(key, value, *_kinds(value))
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
        **_vocabulary_keys(),
    }


def _architecture_keys(model: TinyModel) -> dict[str, KeyValue]:
    rules, sizes = VERIFIED[model.architecture], _sizes(model)
    keys: dict[str, KeyValue] = {
        "block_count": model.layers,
        "context_length": sizes.context,
        "embedding_length": sizes.embedding,
        "vocab_size": VOCABULARY,
        "rope.dimension_count": sizes.rotary,
        "attention.key_length": sizes.key_size,
        "attention.value_length": sizes.value_size,
        rules.epsilon: 1e-5,
        **_per_layer_keys(model, sizes),
        **_OWN_KEYS.get(model.architecture, {}),
    }
    if rules.sliding_window is not None and model.sliding:
        keys["attention.sliding_window"] = WINDOW
    if sizes.experts:
        keys["expert_count"] = sizes.experts
    if model.leading_dense:
        keys["leading_dense_block_count"] = model.leading_dense
    if "expert_shared_feed_forward_length" in rules.required_keys:
        keys["expert_shared_feed_forward_length"] = sizes.shared_feed_forward
    return keys


def _per_layer_keys(model: TinyModel, sizes: Hyperparameters) -> dict[str, KeyValue]:
    values = {
        "attention.head_count": sizes.heads,
        "attention.head_count_kv": sizes.kv_heads,
        "feed_forward_length": sizes.feed_forward,
    }
    if sizes.experts:
        values["expert_used_count"] = sizes.experts_used
        if model.architecture not in {"olmoe", "granitemoe"}:
            values["expert_feed_forward_length"] = sizes.expert_feed_forward
    if model.per_layer_arrays:
        return {key: list(entries) for key, entries in values.items()}
    return {key: entries[0] for key, entries in values.items()}


def _vocabulary_keys() -> dict[str, KeyValue]:
    normal = _byte_letters() + ["".join(pair) for pair in MERGES]
    types = [TokenType.NORMAL] * len(normal) + [TokenType.CONTROL] * len(CONTROL_TOKENS)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*normal, *CONTROL_TOKENS],
        "tokenizer.ggml.token_type": [int(kind) for kind in types],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": END_OF_TEXT,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE (GPT-2) writes for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = map(chr, itertools.count(256))
    return [chr(byte) if byte in printable else next(substitutes) for byte in range(256)]


def _sizes(model: TinyModel) -> Hyperparameters:
    layers, width = model.layers, 2 * model.embedding
    experts = 4 if model.architecture in _SPARSE else 0
    key_size = 32 if model.architecture in {"gemma3", "qwen3"} else model.embedding // model.heads
    kv_heads = model.heads if model.architecture == "olmoe" else model.kv_heads
    shared = {"qwen2moe": width // 2, "deepseek": width}
    return Hyperparameters(
        layers=layers,
        embedding=model.embedding,
        vocabulary=VOCABULARY,
        context=256,
        heads=(model.heads,) * layers,
        kv_heads=(kv_heads,) * layers,
        feed_forward=(width,) * layers,
        key_size=key_size,
        value_size=key_size,
        rotary=key_size,
        experts=experts,
        experts_used=(2 if experts else 0,) * layers,
        expert_feed_forward=(width // 2,) * layers,
        shared_feed_forward=shared.get(model.architecture, 0),
        leading_dense=model.leading_dense,
        sliding=(False,) * layers,
    )


def _tensors(model: TinyModel) -> Iterator[tuple[str, GGMLQuantizationType, tuple[int, ...]]]:
    """Name, type and shape (ggml's order) of every tensor."""
    rules, sizes = VERIFIED[model.architecture], _sizes(model)
    extra = _OPTIONAL.get(rules.name, frozenset())
    if not model.tied and rules.name != "cohere2":  # whose output is always tied
        extra |= {"output.weight"}
    for rule in rules.outer:
        if rule.required or rule.name in extra:
            yield rule.name, *_stored(model, rule, sizes, 0)
    chosen = [rule for rule in rules.layer if rule.required or rule.name in extra]
    replaced = {name for rule in chosen for name in rule.instead_of}
    for layer in range(model.layers):
        for rule in chosen:
            if rule.name not in replaced and rule.applies(sizes, layer):
                yield f"blk.{layer}.{rule.name}", *_stored(model, rule, sizes, layer)


def _stored(
    model: TinyModel, rule: TensorRule, sizes: Hyperparameters, layer: int
) -> tuple[GGMLQuantizationType, tuple[int, ...]]:
    extents = sizes.sizes(layer)
    shape = tuple(extents[dimension] for dimension in rule.shape)
    plain = len(shape) == 1 or "ffn_gate_inp" in rule.name or rule.name.endswith(".bias")
    return F32 if plain else model.quantization, shape


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


def _kinds(value: KeyValue) -> tuple[GGUFValueType, GGUFValueType | None]:
    """Kind of a value, and of an array's items: signed there, as converters write them."""
    if isinstance(value, bool):
        return GGUFValueType.BOOL, None
    if isinstance(value, int):
        return GGUFValueType.UINT32, None
    if isinstance(value, float):
        return GGUFValueType.FLOAT32, None
    if isinstance(value, str):
        return GGUFValueType.STRING, None
    element = _kinds(value[0])[0]
    signed = GGUFValueType.INT32 if element is GGUFValueType.UINT32 else element
    return GGUFValueType.ARRAY, signed


def _encoded(value: KeyValue) -> MetadataValue:
    kind, element = _kinds(value)
    if element is None or isinstance(value, int | float | str):
        return MetadataValue(kind, _raw(value, kind))
    items = b"".join(_raw(item, element) for item in value)
    raw = struct.pack("<IQ", element, len(value)) + items
    return MetadataValue(kind, raw, element, len(value))


def _raw(value: object, kind: GGUFValueType) -> bytes:
    return encode_string(value) if isinstance(value, str) else struct.pack(_CODES[kind], value)
