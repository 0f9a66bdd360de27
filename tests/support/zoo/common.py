"""Hyperparameters that models of the zoo share; an architecture ignores those it doesn't know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

from tests.support.gguf_values import KeyValue

Item = TypeVar("Item", int, float)

EMBEDDING = 64
HEADS = 4
FEED_FORWARD = 96


def common_keys(layers: int) -> dict[str, KeyValue | None]:
    """Keys of a model of ``layers`` blocks, without the architecture's name in front."""
    return {
        "context_length": 256,
        "embedding_length": EMBEDDING,
        "features_length": EMBEDDING,
        "block_count": layers,
        "feed_forward_length": FEED_FORWARD,
        "attention.head_count": HEADS,
        "attention.head_count_kv": 2,
        "attention.layer_norm_epsilon": 1e-5,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.group_norm_epsilon": 1e-5,
        "attention.group_norm_groups": 8,
        "attention.sliding_window": 8,
        "use_parallel_residual": False,
    }


EXPERTS: Mapping[str, KeyValue] = {
    "expert_count": 4,
    "expert_used_count": 2,
    "expert_feed_forward_length": 48,
}
SHARED_EXPERTS: Mapping[str, KeyValue] = {
    **EXPERTS,
    "expert_shared_count": 1,
    "expert_shared_feed_forward_length": 32,
    "leading_dense_block_count": 1,
    "expert_gating_func": 2,
}

MLA: Final[Mapping[str, KeyValue]] = {
    **SHARED_EXPERTS,
    "attention.head_count_kv": 1,
    "attention.q_lora_rank": 32,
    "attention.kv_lora_rank": 32,
    "attention.key_length": 48,
    "attention.value_length": 32,
    "attention.key_length_mla": 32,
    "attention.value_length_mla": 16,
    "rope.dimension_count": 16,
}
INDEXER: Final[Mapping[str, KeyValue]] = {
    "attention.indexer.head_count": 4,
    "attention.indexer.key_length": 64,
    "attention.indexer.top_k": 16,
}
LINEAR_ROPE: Final[Mapping[str, KeyValue]] = {
    "rope.scaling.type": "linear",
    "rope.scaling.factor": 4.0,
}
YARN: Final[Mapping[str, KeyValue]] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 16,
}
SECTIONS: Final[Mapping[str, KeyValue]] = {"rope.dimension_sections": [2, 3, 3, 0]}
NO_WINDOW: Final[Mapping[str, KeyValue | None]] = {"attention.sliding_window": None}
GRANITE: Final[Mapping[str, KeyValue]] = {
    "logit_scale": 4.0,
    "embedding_scale": 3.0,
    "residual_scale": 0.25,
}


def by_layer(layers: int, value: Callable[[int], Item]) -> list[Item]:
    """An array with one entry a layer."""
    return [value(layer) for layer in range(layers)]


def pattern(kinds: str, values: Mapping[str, Item]) -> list[Item]:
    """An array with one entry a letter: ``pattern("ssa", {"s": 0, "a": 4})`` is [0, 0, 4]."""
    return [values[kind] for kind in kinds]
