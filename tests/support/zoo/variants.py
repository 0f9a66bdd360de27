"""More models made of the table's: without what is optional, and quantised."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from gguf import GGMLQuantizationType as Type

from tests.support.gguf_values import KeyValue
from tests.support.zoo.common import EMBEDDING
from tests.support.zoo.spec import ZooModel
from tests.support.zoo.table import MODELS

NARROW: Final = (Type.Q4_0, Type.Q4_1, Type.Q8_0, Type.F16, Type.BF16)
"""Types whose blocks fit into a row of any model."""
WIDE: Final = Type.Q4_K
"""One whose blocks of 256 values need wider models."""
WIDE_EMBEDDING: Final = 256
_WIDTHS: Final[Mapping[str, int]] = {
    "embedding_length": WIDE_EMBEDDING,
    "feed_forward_length": 512,
    "expert_feed_forward_length": 256,
    "expert_shared_feed_forward_length": 256,
}
_PREDICTING: Final[Mapping[str, int]] = {
    "cohere2moe": -1,
    "deepseek2": -1,
    "deepseek32": -1,
    "exaone-moe": 0,
    "glm-dsa": -1,
    "glm4moe": -1,
    "hy_v3": -1,
    "mimo2": -1,
    "qwen35": 3,
    "qwen35moe": 3,
    "qwen3next": 3,
    "step35": -1,
}
"""Architectures whose files can have blocks for multi-token prediction behind the layers, and the
layer that such a block is like."""
_NOT_LEAN: Final = frozenset({"grok", "rwkv6"})
"""Architectures in which libllama needs one of several tensors, and doesn't say which."""


def first_of_each() -> list[ZooModel]:
    """The plainest model of every architecture."""
    first: dict[str, ZooModel] = {}
    for model in MODELS:
        first.setdefault(model.architecture, model)
    return list(first.values())


def every_variant() -> list[ZooModel]:
    """All models of the table, and of each architecture's plainest one all variants."""
    models = list(MODELS)
    for model in first_of_each():
        if model.architecture not in _NOT_LEAN:
            models.append(replace(model, label=f"{model.label}, lean", lean=True))
        models += [replace(model, quantization=kind) for kind in NARROW]
        models.append(wide(model))
        if model.architecture in _PREDICTING:
            models.append(predicting(model))
    return models


def predicting(model: ZooModel) -> ZooModel:
    """The model with one more block, for multi-token prediction."""
    keys: dict[str, KeyValue | None] = {**model.keys, "nextn_predict_layers": 1}
    for key, value in model.keys.items():
        if isinstance(value, list) and len(value) == model.layers:
            keys[key] = [*value, value[-1]]
    return model.but(
        "prediction",
        keys,
        layers=model.layers + 1,
        ahead=_PREDICTING[model.architecture],
        absent=(*model.absent, "rope_freqs.weight"),
    )


def wide(model: ZooModel) -> ZooModel:
    """The model with rows that blocks of 256 values fill."""
    keys = {**model.keys, "embedding_length": WIDE_EMBEDDING}
    for key, width in _WIDTHS.items():
        if key in keys or key == "feed_forward_length":
            keys[key] = _widened(keys.get(key, width), width)
    if keys.get("ssm.inner_size") == 2 * EMBEDDING:  # Mamba's size, which libllama asserts
        keys["ssm.inner_size"] = 2 * WIDE_EMBEDDING
    return replace(model, label=f"{model.label}, wide", keys=keys, quantization=WIDE)


def _widened(value: KeyValue | None, width: int) -> KeyValue:
    if isinstance(value, Sequence):
        return [width if item else 0 for item in value]
    return width
