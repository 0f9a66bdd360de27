"""Which tensors the tiny models have: those of a few architectures that most models are of.

Enough for tests of everything but the architectures themselves; the zoo has all of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Dimension = Literal[
    "embedding",
    "vocabulary",
    "query",
    "key",
    "key_size",
    "heads",
    "feed_forward",
    "experts",
    "expert_feed_forward",
    "shared_feed_forward",
]
"""The extents that shapes of tensors are made of; ``key`` is also the values' one."""
Shape = tuple[Dimension, ...]
"""In ggml's order: the length of a row comes first."""


@dataclass(frozen=True, slots=True)
class TinyTensors:
    """An architecture's tensors, by name; those of a layer lack ``blk.<n>.``."""

    layer: Mapping[str, Shape]
    """What every layer has."""
    dense: Mapping[str, Shape]
    """What layers without experts have besides, and ``sparse`` those with experts."""
    sparse: Mapping[str, Shape]
    outer: Mapping[str, Shape]
    epsilon: str = "attention.layer_norm_rms_epsilon"
    """Key of the normalisation's epsilon."""


def _norms(*names: str, bias: bool = False) -> dict[str, Shape]:
    ends = ("weight", "bias") if bias else ("weight",)
    return {f"{name}.{end}": ("embedding",) for name in names for end in ends}


_ATTENTION: Final[Mapping[str, Shape]] = {
    "attn_q.weight": ("embedding", "query"),
    "attn_k.weight": ("embedding", "key"),
    "attn_v.weight": ("embedding", "key"),
    "attn_output.weight": ("query", "embedding"),
}
_BIASES: Final[Mapping[str, Shape]] = {
    "attn_q.bias": ("query",),
    "attn_k.bias": ("key",),
    "attn_v.bias": ("key",),
}
_HEAD_NORMS: Final[Mapping[str, Shape]] = {
    "attn_q_norm.weight": ("key_size",),
    "attn_k_norm.weight": ("key_size",),
}
_UP_DOWN: Final[Mapping[str, Shape]] = {
    "ffn_up.weight": ("embedding", "feed_forward"),
    "ffn_down.weight": ("feed_forward", "embedding"),
}
_GATED: Final[Mapping[str, Shape]] = {
    "ffn_gate.weight": ("embedding", "feed_forward"),
    **_UP_DOWN,
}
_SHARED: Final[Mapping[str, Shape]] = {
    "ffn_gate_shexp.weight": ("embedding", "shared_feed_forward"),
    "ffn_up_shexp.weight": ("embedding", "shared_feed_forward"),
    "ffn_down_shexp.weight": ("shared_feed_forward", "embedding"),
}


def _experts(width: Dimension) -> dict[str, Shape]:
    return {
        "ffn_gate_inp.weight": ("embedding", "experts"),
        "ffn_gate_exps.weight": ("embedding", width, "experts"),
        "ffn_up_exps.weight": ("embedding", width, "experts"),
        "ffn_down_exps.weight": (width, "embedding", "experts"),
    }


_OUTER: Final[Mapping[str, Shape]] = {
    "token_embd.weight": ("embedding", "vocabulary"),
    "output.weight": ("embedding", "vocabulary"),
    "output_norm.weight": ("embedding",),
}
_LLAMA: Final[Mapping[str, Shape]] = {**_norms("attn_norm"), **_ATTENTION, **_norms("ffn_norm")}
_GRANITE: Final = TinyTensors(_LLAMA, _GATED, {}, _OUTER)
_BIAS: Final[Mapping[str, Shape]] = {"attn_output.bias": ("embedding",)}
_PHI2: Final = TinyTensors(
    {**_norms("attn_norm", bias=True), **_ATTENTION, **_BIASES, **_BIAS},
    {**_UP_DOWN, "ffn_up.bias": ("feed_forward",), "ffn_down.bias": ("embedding",)},
    {},
    {**_OUTER, "output_norm.bias": ("embedding",), "output.bias": ("vocabulary",)},
    "attention.layer_norm_epsilon",
)
_GPT_OSS: Final = TinyTensors(
    {
        **_norms("attn_norm"),
        **_ATTENTION,
        **_BIASES,
        **_BIAS,
        **_norms("post_attention_norm"),
        "attn_sinks.weight": ("heads",),
    },
    {},
    {
        **_experts("expert_feed_forward"),
        "ffn_gate_inp.bias": ("experts",),
        "ffn_gate_exps.bias": ("expert_feed_forward", "experts"),
        "ffn_up_exps.bias": ("expert_feed_forward", "experts"),
        "ffn_down_exps.bias": ("embedding", "experts"),
    },
    _OUTER,
)
_GEMMA3: Final = TinyTensors(
    {**_LLAMA, **_HEAD_NORMS, **_norms("post_attention_norm", "post_ffw_norm")}, _GATED, {}, _OUTER
)
_OLMOE: Final = TinyTensors(
    {**_LLAMA, "attn_q_norm.weight": ("embedding",), "attn_k_norm.weight": ("embedding",)},
    {},
    _experts("feed_forward"),
    _OUTER,
)

TINY: Final[dict[str, TinyTensors]] = {
    "llama": TinyTensors(_LLAMA, _GATED, _experts("feed_forward"), _OUTER),
    "granite": _GRANITE,
    "qwen2": TinyTensors(
        {**_LLAMA, **_BIASES}, _GATED, {}, {**_OUTER, "output.bias": ("vocabulary",)}
    ),
    "qwen3": TinyTensors({**_LLAMA, **_HEAD_NORMS}, _GATED, {}, _OUTER),
    "qwen3moe": TinyTensors({**_LLAMA, **_HEAD_NORMS}, {}, _experts("expert_feed_forward"), _OUTER),
    "olmoe": _OLMOE,
    "deepseek": TinyTensors(_LLAMA, _GATED, {**_experts("expert_feed_forward"), **_SHARED}, _OUTER),
    "phi2": _PHI2,
    "gpt-oss": _GPT_OSS,
    "gemma3": _GEMMA3,
}
"""By architecture."""
