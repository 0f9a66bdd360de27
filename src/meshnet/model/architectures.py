"""The architectures whose slices are proven to give right answers, and the rules of each.

An entry is added when a chain of slices gives the same logits as the unsplit model, bit for bit,
at every cut of a random-weight model of that architecture. Names and shapes are those of
llama.cpp's ``src/models/<name>.cpp``; the engine's parity tests build their models from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from meshnet.model.hyperparameters import Dimension, SlidingWindow
from meshnet.model.rules import Architecture, TensorRule


def _optional(*rules: tuple[str, Sequence[Dimension]]) -> tuple[TensorRule, ...]:
    return tuple(TensorRule(name, tuple(shape), required=False) for name, shape in rules)


def _norm(name: str, *, bias: bool = False) -> tuple[TensorRule, ...]:
    weight = TensorRule(f"{name}.weight", ("embedding",))
    return (weight, TensorRule(f"{name}.bias", ("embedding",))) if bias else (weight,)


_QKV: Final = (
    TensorRule("attn_q.weight", ("embedding", "query")),
    TensorRule("attn_k.weight", ("embedding", "key")),
    TensorRule("attn_v.weight", ("embedding", "value")),
    TensorRule(
        "attn_qkv.weight",
        ("embedding", "query_key_value"),
        required=False,
        instead_of=("attn_q.weight", "attn_k.weight", "attn_v.weight"),
    ),
    *_optional(
        ("attn_q.bias", ["query"]),
        ("attn_k.bias", ["key"]),
        ("attn_v.bias", ["value"]),
        ("attn_qkv.bias", ["query_key_value"]),
    ),
)
_ATTENTION: Final = (*_QKV, TensorRule("attn_output.weight", ("query", "embedding")))
_ATTENTION_BIAS: Final = TensorRule("attn_output.bias", ("embedding",))
_HEAD_NORMS: Final = (
    TensorRule("attn_q_norm.weight", ("key_size",)),
    TensorRule("attn_k_norm.weight", ("key_size",)),
)
_UP_DOWN: Final = (
    TensorRule("ffn_up.weight", ("embedding", "feed_forward"), among="dense"),
    TensorRule("ffn_down.weight", ("feed_forward", "embedding"), among="dense"),
)
_GATED: Final = (
    TensorRule("ffn_gate.weight", ("embedding", "feed_forward"), among="dense"),
    *_UP_DOWN,
)
_UP_DOWN_BIAS: Final = (
    TensorRule("ffn_up.bias", ("feed_forward",), among="dense"),
    TensorRule("ffn_down.bias", ("embedding",), among="dense"),
)
_SHARED_EXPERT: Final = (
    TensorRule("ffn_gate_shexp.weight", ("embedding", "shared_feed_forward"), among="shared"),
    TensorRule("ffn_up_shexp.weight", ("embedding", "shared_feed_forward"), among="shared"),
    TensorRule("ffn_down_shexp.weight", ("shared_feed_forward", "embedding"), among="shared"),
)


def _experts(width: Dimension) -> tuple[TensorRule, ...]:
    return (
        TensorRule("ffn_gate_inp.weight", ("embedding", "experts"), among="sparse"),
        TensorRule("ffn_gate_exps.weight", ("embedding", width, "experts"), among="sparse"),
        TensorRule("ffn_up_exps.weight", ("embedding", width, "experts"), among="sparse"),
        TensorRule("ffn_down_exps.weight", (width, "embedding", "experts"), among="sparse"),
    )


def _outer(*, tied: bool = True, norm_bias: bool = False) -> tuple[TensorRule, ...]:
    return (
        TensorRule("token_embd.weight", ("embedding", "vocabulary")),
        TensorRule("output.weight", ("embedding", "vocabulary"), required=not tied),
        *_norm("output_norm", bias=norm_bias),
        *_optional(
            ("rope_freqs.weight", ["half_rotary"]),
            ("rope_factors_long.weight", ["half_rotary"]),
            ("rope_factors_short.weight", ["half_rotary"]),
        ),
    )


_RMS: Final = "attention.layer_norm_rms_epsilon"
_LAYER_NORM: Final = "attention.layer_norm_epsilon"
_LLAMA: Final = (
    *_norm("attn_norm"),
    *_ATTENTION,
    *_norm("ffn_norm"),
    *_GATED,
    *_experts("feed_forward"),
    *_SHARED_EXPERT,
    *_optional(
        ("attn_output.bias", ["embedding"]),
        ("ffn_gate.bias", ["feed_forward"]),
        ("ffn_up.bias", ["feed_forward"]),
        ("ffn_down.bias", ["embedding"]),
    ),
)
_QWEN3: Final = (*_norm("attn_norm"), *_ATTENTION, *_HEAD_NORMS, *_norm("ffn_norm"))

_TABLE: Final = (
    Architecture("llama", _LLAMA, _outer(), _RMS),
    Architecture("mistral3", _LLAMA, _outer(), _RMS),
    Architecture(
        "granite",
        _LLAMA,
        _outer(),
        _RMS,
        required_keys=("logit_scale",),
        head_only_keys=("embedding_scale",),
        refused_keys=("deepstack_mapping",),
    ),
    Architecture(
        "granitemoe",
        _LLAMA,
        _outer(),
        _RMS,
        required_keys=("logit_scale",),
        head_only_keys=("embedding_scale",),
    ),
    Architecture(
        "arcee",
        (*_norm("attn_norm"), *_ATTENTION, *_norm("ffn_norm"), *_UP_DOWN),
        _outer(),
        _RMS,
    ),
    Architecture(
        "exaone", (*_norm("attn_norm"), *_ATTENTION, *_norm("ffn_norm"), *_GATED), _outer(), _RMS
    ),
    Architecture(
        "seed_oss",
        (*_norm("attn_norm"), *_ATTENTION, *_norm("post_attention_norm"), *_GATED),
        _outer(),
        _RMS,
    ),
    Architecture(
        "internlm2",
        (*_norm("attn_norm"), *_ATTENTION, *_norm("ffn_norm"), *_GATED),
        _outer(tied=False),
        _RMS,
        ties_output=False,
    ),
    Architecture(
        "qwen2",
        (*_norm("attn_norm"), *_ATTENTION, *_norm("ffn_norm"), *_GATED),
        (*_outer(), *_optional(("output.bias", ["vocabulary"]))),
        _RMS,
    ),
    Architecture(
        "qwen2moe",
        (
            *_norm("attn_norm"),
            *_ATTENTION,
            *_norm("ffn_norm"),
            *_experts("expert_feed_forward"),
            TensorRule("ffn_gate_inp_shexp.weight", ("embedding",)),
            *_SHARED_EXPERT,
        ),
        _outer(tied=False),
        _RMS,
        required_keys=("expert_count", "expert_used_count", "expert_shared_feed_forward_length"),
        ties_output=False,
    ),
    Architecture("qwen3", (*_QWEN3, *_GATED), _outer(), _RMS),
    Architecture(
        "qwen3moe",
        (*_QWEN3, *_experts("expert_feed_forward")),
        _outer(),
        _RMS,
        required_keys=("expert_count", "expert_used_count"),
    ),
    Architecture(
        "phi2",
        (*_norm("attn_norm", bias=True), *_ATTENTION, _ATTENTION_BIAS, *_UP_DOWN, *_UP_DOWN_BIAS),
        (*_outer(tied=False, norm_bias=True), TensorRule("output.bias", ("vocabulary",))),
        _LAYER_NORM,
        ties_output=False,
        full_rotary=False,
    ),
    Architecture(
        "phi3",
        (
            *_norm("attn_norm"),
            *_ATTENTION,
            *_norm("ffn_norm"),
            TensorRule("ffn_up.weight", ("embedding", "twice_feed_forward")),
            TensorRule("ffn_down.weight", ("feed_forward", "embedding")),
        ),
        _outer(),
        _RMS,
        full_rotary=False,
    ),
    Architecture(
        "starcoder2",
        (
            *_norm("attn_norm", bias=True),
            *_ATTENTION,
            _ATTENTION_BIAS,
            *_norm("ffn_norm", bias=True),
            *_UP_DOWN,
            *_UP_DOWN_BIAS,
        ),
        _outer(norm_bias=True),
        _LAYER_NORM,
    ),
    Architecture(
        "stablelm",
        (
            *_norm("attn_norm", bias=True),
            *_ATTENTION,
            *_optional(
                ("attn_q_norm.weight", ["key_size", "heads"]),
                ("attn_k_norm.weight", ["key_size", "kv_heads"]),
                ("ffn_norm.weight", ["embedding"]),
                ("ffn_norm.bias", ["embedding"]),
            ),
            *_GATED,
        ),
        _outer(tied=False, norm_bias=True),
        _LAYER_NORM,
        ties_output=False,
        full_rotary=False,
    ),
    Architecture(
        "olmoe",
        (
            *_norm("attn_norm"),
            *_ATTENTION,
            TensorRule("attn_q_norm.weight", ("embedding",)),
            TensorRule("attn_k_norm.weight", ("embedding",)),
            *_norm("ffn_norm"),
            *_experts("feed_forward"),
        ),
        _outer(tied=False),
        _RMS,
        required_keys=("expert_count", "expert_used_count"),
        ties_output=False,
    ),
    Architecture(
        "olmo2",
        (
            *_ATTENTION,
            TensorRule("attn_q_norm.weight", ("embedding",)),
            TensorRule("attn_k_norm.weight", ("key",)),
            *_norm("post_attention_norm"),
            *_GATED,
            *_norm("post_ffw_norm"),
        ),
        _outer(tied=False),
        _RMS,
        ties_output=False,
        sliding_window=SlidingWindow(4, optional=True),
    ),
    Architecture(
        "deepseek",
        (
            *_norm("attn_norm"),
            *_ATTENTION,
            *_norm("ffn_norm"),
            *_GATED,
            *_experts("expert_feed_forward"),
            *_SHARED_EXPERT,
        ),
        _outer(),
        _RMS,
        required_keys=("expert_feed_forward_length", "expert_shared_count"),
        full_rotary=False,
    ),
    Architecture(
        "gemma3",
        (
            *_norm("attn_norm"),
            *_ATTENTION,
            *_HEAD_NORMS,
            *_norm("post_attention_norm"),
            *_norm("ffn_norm"),
            *_GATED,
            *_norm("post_ffw_norm"),
        ),
        _outer(),
        _RMS,
        sliding_window=SlidingWindow(6, optional=True),
        full_rotary=False,
        counted_layers=frozenset({62}),
    ),
    Architecture(
        "cohere2",
        (*_norm("attn_norm"), *_ATTENTION, *_GATED),
        _outer(),
        _LAYER_NORM,
        required_keys=("attention.sliding_window", "logit_scale"),
        sliding_window=SlidingWindow(4),
        full_rotary=False,
    ),
    Architecture(
        "gpt-oss",
        (
            *_norm("attn_norm"),
            *_ATTENTION,
            _ATTENTION_BIAS,
            *_norm("post_attention_norm"),
            TensorRule("attn_sinks.weight", ("heads",)),
            *_experts("expert_feed_forward"),
            TensorRule("ffn_gate_inp.bias", ("experts",)),
            TensorRule("ffn_gate_exps.bias", ("expert_feed_forward", "experts")),
            TensorRule("ffn_up_exps.bias", ("expert_feed_forward", "experts")),
            TensorRule("ffn_down_exps.bias", ("embedding", "experts")),
        ),
        _outer(tied=False),
        _RMS,
        required_keys=(
            "attention.sliding_window",
            "expert_count",
            "expert_used_count",
            "expert_feed_forward_length",
        ),
        ties_output=False,
        sliding_window=SlidingWindow(2),
    ),
)

VERIFIED: Final = {entry.name: entry for entry in _TABLE}
"""The table, by llama.cpp's name of the architecture."""
