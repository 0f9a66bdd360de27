"""Models whose layers are of several kinds: windows, recurrent state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from tests.support.gguf_values import KeyValue
from tests.support.zoo.common import (
    EXPERTS,
    GRANITE,
    HEADS,
    INDEXER,
    LINEAR_ROPE,
    MLA,
    NO_WINDOW,
    SECTIONS,
    SHARED_EXPERTS,
    YARN,
    by_layer,
    pattern,
)
from tests.support.zoo.spec import Keys, ZooModel

_MAMBA: Final[Mapping[str, KeyValue]] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 128,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
}
_MAMBA2: Final[Mapping[str, KeyValue]] = {**_MAMBA, "ssm.group_count": 2}
_DELTA_NET: Final[Mapping[str, KeyValue]] = {
    "ssm.conv_kernel": 4,
    "ssm.inner_size": 64,
    "ssm.state_size": 16,
    "ssm.time_step_rank": 4,
    "ssm.group_count": 2,
}
_KDA: Final[Mapping[str, KeyValue]] = {"ssm.conv_kernel": 4, "kda.head_dim": 16}


def _sliding(kinds: str) -> dict[str, KeyValue]:
    """The explicit pattern, one letter a layer: ``s`` slides, ``f`` attends to everything."""
    return {"attention.sliding_window_pattern": pattern(kinds, {"s": True, "f": False})}


def _hybrid(kinds: str, *, heads_too: bool = False, kv_heads: int = 2) -> dict[str, KeyValue]:
    """Heads of a model in which only the layers marked ``a`` have attention."""
    keys: dict[str, KeyValue] = {
        "attention.head_count_kv": [kv_heads if kind == "a" else 0 for kind in kinds]
    }
    if heads_too:
        keys["attention.head_count"] = [HEADS if kind == "a" else 0 for kind in kinds]
    return keys


def _nemotron(kinds: str, *, heads_too: bool = False) -> dict[str, KeyValue]:
    """``m`` is Mamba, ``a`` attention, ``f`` a feed-forward part; a layer has just one of them."""
    return {
        **_MAMBA2,
        **_hybrid(kinds, heads_too=heads_too),
        "feed_forward_length": [96 if kind == "f" else 0 for kind in kinds],
    }


def windows() -> Iterator[ZooModel]:
    """Sliding windows in some layers."""
    yield ZooModel(
        "gemma2", layers=6, keys={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    )
    yield ZooModel("gemma2", "uneven root", keys={"embedding_length": 96}, refused=True)
    yield ZooModel("gemma2", "46 layers", layers=46)
    gemma3 = ZooModel(
        "gemma3", layers=13, keys={"attention.key_length": 32, "attention.value_length": 32}
    )
    yield gemma3
    yield gemma3.but("no window", NO_WINDOW, layers=6)
    yield gemma3.but("linear rope", {**LINEAR_ROPE, "rope.freq_base_swa": 1000.0})
    yield gemma3.but("62 layers", layers=62)
    yield ZooModel("cohere2", layers=9, keys={"logit_scale": 0.25})
    yield ZooModel("olmo2", layers=9)
    yield ZooModel("olmo2", "no window", keys=NO_WINDOW)
    yield ZooModel("exaone4", keys=NO_WINDOW)
    yield ZooModel("exaone4", "64 layers", layers=64)
    yield ZooModel("plamo3", layers=17)
    yield ZooModel("gpt-oss", keys=EXPERTS)
    yield ZooModel("gpt-oss", "yarn", keys={**EXPERTS, **YARN})
    yield ZooModel("mellum", layers=9, keys=EXPERTS)
    yield ZooModel("exaone-moe", layers=9, keys=SHARED_EXPERTS)
    yield ZooModel("laguna", layers=9, keys=SHARED_EXPERTS)
    yield ZooModel("laguna", "no window", keys={**SHARED_EXPERTS, **NO_WINDOW})
    yield ZooModel("afmoe", layers=9, keys={**SHARED_EXPERTS, "leading_dense_block_count": 2})
    thinker: Keys = {**EXPERTS, "expert_gating_func": 2}
    yield ZooModel("smallthinker", layers=9, keys=thinker)
    yield ZooModel("smallthinker", "no window", keys={**thinker, **NO_WINDOW})
    yield ZooModel(
        "cohere2moe",
        layers=9,
        keys={**SHARED_EXPERTS, "logit_scale": 0.25, **_sliding("fsssfsssf")},
    )
    yield ZooModel(
        "mimo2", layers=9, keys={**EXPERTS, **_sliding("fssssfsss"), "attention.value_length": 8}
    )
    yield ZooModel("spark2_5", layers=8, keys={**EXPERTS, **_sliding("sssfsssf")})
    yield ZooModel("granite_swa", layers=8, keys={**EXPERTS, **GRANITE, **_sliding("sssfsssf")})
    yield ZooModel(
        "maple",
        layers=8,
        keys={
            **EXPERTS,
            **_sliding("sssfsssf"),
            "swiglu_clamp_exp": by_layer(8, lambda layer: 7.0 - layer / 8),
        },
    )
    dots: Keys = {
        **MLA,
        **INDEXER,
        **_sliding("sfsfsf"),
        "attention.kv_lora_rank_swa": 16,
        "attention.key_length_swa": 32,
        "attention.value_length_swa": 16,
        "attention.key_length_mla_swa": 32,
        "attention.value_length_mla_swa": 16,
        "rope.freq_base_swa": 1000.0,
        "attention.indexer.types": [0, 1, 0, 1, 0, 1],
    }
    yield ZooModel("dots3note", keys=dots)
    step = {
        **SHARED_EXPERTS,
        **_sliding("fsssfsss"),
        "attention.key_length": 16,
        "attention.value_length": 16,
        "rope.dimension_count": 16,
    }
    yield ZooModel("step35", layers=8, keys=step)
    gemma4: Keys = {
        **_sliding("ssfssfssf"),
        "embedding_length_per_layer_input": 0,
        "attention.shared_kv_layers": 0,
        "attention.key_length": 32,
        "attention.value_length": 32,
        "attention.key_length_swa": 16,
        "attention.value_length_swa": 16,
        "rope.dimension_count": 32,
        "rope.dimension_count_swa": 16,
        "rope.freq_base_swa": 1000.0,
        "final_logit_softcapping": 30.0,
    }
    yield ZooModel("gemma4", layers=9, keys=gemma4)
    yield ZooModel(
        "gemma4", "shared cache", layers=9, keys={**gemma4, "attention.shared_kv_layers": 3}
    )
    yield ZooModel(
        "gemma4",
        "per-layer inputs",
        layers=9,
        keys={**gemma4, "embedding_length_per_layer_input": 16},
        refused=True,
    )
    yield ZooModel("gemma3n", layers=22)
    yield ZooModel("muse-glimmer", layers=8, keys={"logit_scale": 1.0})


def recurrent() -> Iterator[ZooModel]:
    """A state that is carried from token to token, in some layers or all."""
    yield ZooModel("mamba", keys=_MAMBA)
    yield ZooModel("mamba2", keys=_MAMBA2)
    yield ZooModel("falcon-h1", keys=_MAMBA2, keep=("ssm_*",))
    yield ZooModel(
        "jamba",
        layers=9,
        keys={**EXPERTS, **_MAMBA, **_hybrid("mmmmammmm")},
        keep=("ffn_gate_inp.weight",),
        dense=(0, 2, 4, 6, 8),
    )
    yield ZooModel("jamba", "dense", layers=6, keys={**_MAMBA, **_hybrid("mammam")})
    yield ZooModel(
        "granitehybrid",
        layers=9,
        keys={
            **_MAMBA2,
            **_hybrid("mmmmammma"),
            "embedding_scale": 3.0,
            "residual_scale": 0.25,
            "logit_scale": 4.0,
        },
        keep=("ssm_*",),
    )
    yield ZooModel(
        "granitehybrid",
        "experts",
        layers=6,
        keys={**SHARED_EXPERTS, **_MAMBA2, **_hybrid("mmammm")},
        keep=("ffn_*_exps.weight", "ssm_*"),
    )
    yield ZooModel(
        "lfm2", layers=9, keys={**_hybrid("ccaccaccc"), "shortconv.l_cache": 3, **NO_WINDOW}
    )
    yield ZooModel(
        "lfm2", "window", layers=9, keys={**_hybrid("ccaccaccc"), "shortconv.l_cache": 3}
    )
    yield ZooModel(
        "lfm2moe",
        layers=9,
        keys={
            **SHARED_EXPERTS,
            **_hybrid("ccaccaccc"),
            "shortconv.l_cache": 3,
            "leading_dense_block_count": 2,
        },
    )
    for label, kinds, too in (("plain", "mamama", False), ("heads by layer", "amamam", True)):
        heads = {"attention.key_length": 16, "attention.value_length": 16}
        own = {**_MAMBA, **_hybrid(kinds, heads_too=too), "ssm.group_count": 0, **heads}
        yield ZooModel("plamo2", label, keys=own)
    yield ZooModel("nemotron_h", layers=9, keys=_nemotron("mfmfamfmf"), keep=("ssm_*",))
    by_layer_too = _nemotron("afmfamfmf", heads_too=True)
    yield ZooModel("nemotron_h", "heads by layer", layers=9, keys=by_layer_too)
    sparse: Keys = {**SHARED_EXPERTS, **_nemotron("mfmfamfmf")}
    yield ZooModel("nemotron_h_moe", layers=9, keys=sparse, keep=("ssm_*",))
    for name, keys in (
        ("qwen35", {}),
        ("qwen35moe", SHARED_EXPERTS),
        ("qwen3next", SHARED_EXPERTS),
    ):
        own = {**keys, **_DELTA_NET, **SECTIONS, "full_attention_interval": 4}
        yield ZooModel(name, layers=9, keys=own, keep=("attn_qkv.weight", "attn_gate.weight"))
        yield ZooModel(name, "every other", layers=6, keys={**own, "full_attention_interval": 2})
    yield ZooModel("kimi-linear", layers=8, keys={**MLA, **_KDA, **_hybrid("kkkakkka", kv_heads=1)})
    yield ZooModel(
        "bailingmoe3",
        layers=8,
        keys={
            **MLA,
            **_KDA,
            **_hybrid("kkkakkka", kv_heads=1),
            "rope.dimension_sections": [2, 3, 3, 0],
            "kda.safe_gate": True,
            "kda.gate_lower_bound": -5.0,
            "swiglu_clamp_exp": by_layer(8, lambda layer: layer / 2),
            "swiglu_clamp_shexp": by_layer(8, lambda layer: layer / 3),
        },
    )
    yield ZooModel(
        "minimax-01",
        layers=9,
        keys={
            **EXPERTS,
            "residual_scale": 3.5,
            "attention.head_count_kv": HEADS,
            "full_attention_interval": 4,
        },
    )
    rwkv: Keys = {"wkv.head_size": 16, "time_mix_extra_dim": 16, "time_decay_extra_dim": 32}
    yield ZooModel("rwkv6", keys=rwkv)
    yield ZooModel("rwkv6qwen2", keys={**rwkv, "token_shift_count": 1})
