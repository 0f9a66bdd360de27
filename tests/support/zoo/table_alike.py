"""Models whose layers are all alike, but for experts in some."""

from __future__ import annotations

from collections.abc import Iterator

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
)
from tests.support.zoo.spec import Keys, ZooModel


def _seen(keys: Keys) -> Keys:
    """With features of images added to some layers."""
    return {**keys, "deepstack_mapping": [-1, 0, -1, 1, -1, -1]}


def plain() -> Iterator[ZooModel]:
    """Layers all alike."""
    for name in (
        "arcee",
        "bitnet",
        "chatglm",
        "codeshell",
        "command-r",
        "ernie4_5",
        "exaone",
        "falcon",
        "gemma",
        "gptneox",
        "hunyuan-dense",
        "internlm2",
        "jais2",
        "maincoder",
        "minicpm",
        "nemotron",
        "orion",
        "pangu-embedded",
        "phi2",
        "plamo",
        "qwen",
        "qwen2",
        "qwen3",
        "seed_oss",
        "starcoder2",
        "stablelm",
        "xverse",
    ):
        yield ZooModel(name)
    llama = ZooModel("llama")
    yield llama
    yield llama.but("linear rope", LINEAR_ROPE)
    yield llama.but("yarn", YARN)
    yield llama.but("experts", EXPERTS)
    yield llama.but(
        "arrays",
        {
            "attention.head_count": [HEADS] * 6,
            "attention.head_count_kv": [2] * 6,
            "feed_forward_length": [96] * 6,
        },
    )
    yield ZooModel("qwen2").but("yarn", YARN)
    yield ZooModel("qwen3").but(
        "wide heads", {"attention.key_length": 32, "attention.value_length": 32}
    )
    yield ZooModel("gptneox").but("parallel", {"use_parallel_residual": True})
    mistral = ZooModel("mistral3")
    yield mistral
    yield mistral.but("scaled attention", {**YARN, "attention.temperature_scale": 0.1})
    yield ZooModel("phi3", keys=NO_WINDOW, keep=("attn_?.weight",))
    yield ZooModel("phi3", "window", keep=("attn_?.weight",))
    yield ZooModel("granite", keys=GRANITE)
    yield ZooModel("minicpm").but("written scales", {**GRANITE, "embedding_scale": 12.0})
    yield ZooModel("gemma", "uneven root", keys={"embedding_length": 96}, refused=True)
    yield ZooModel("granite", "deepstack", keys=_seen(GRANITE), refused=True)
    yield ZooModel("gpt2", keys={"attention.head_count_kv": HEADS})
    yield ZooModel("starcoder", keys={"attention.head_count_kv": 1})
    yield ZooModel("command-r", "64 layers", 64)
    yield ZooModel("refact", keys={"attention.max_alibi_bias": 8.0})
    yield ZooModel("baichuan", keys={"attention.head_count_kv": HEADS})
    yield ZooModel("baichuan", "40 layers", 40, {"attention.head_count_kv": HEADS})
    yield ZooModel("jais", keys={"attention.head_count_kv": HEADS, "attention.max_alibi_bias": 8.0})
    mpt: Keys = {"attention.head_count_kv": HEADS, "attention.clamp_kqv": 8.0}
    yield ZooModel("mpt", keys=mpt)
    yield ZooModel("mpt", "alibi", keys={**mpt, "attention.max_alibi_bias": 8.0})
    yield ZooModel("olmo", keys={"attention.clamp_kqv": 8.0})
    per_layer: Keys = {
        "attention.head_count": [4, 4, 6, 6, 8, 8],
        "attention.head_count_kv": [1, 1, 2, 2, 2, 2],
        "attention.key_length": 16,
        "attention.value_length": 16,
        "feed_forward_length": [64, 64, 96, 96, 128, 128],
    }
    yield ZooModel("openelm", keys=per_layer)
    yield ZooModel(
        "deci",
        keys={
            "attention.head_count": [4, 0, 4, 4, 0, 4],
            "attention.head_count_kv": [2, 0, 1, 0, 0, 2],
            "feed_forward_length": [96, 64, 128, 96, 0, 96],
        },
    )
    xielu = {"xielu.alpha_n": 0.8, "xielu.alpha_p": 0.8, "xielu.beta": 0.5, "xielu.eps": -1e-6}
    yield ZooModel("apertus", keys=xielu)
    arrays = {key: [value + layer / 64 for layer in range(6)] for key, value in xielu.items()}
    yield ZooModel("apertus", "per layer", keys=arrays)
    yield ZooModel("nanbeige")
    yield ZooModel("nanbeige", "two loops", keys={"num_loops": 2}, refused=True)
    yield ZooModel("cogvlm", keys={"attention.head_count_kv": HEADS})
    low_rank: Keys = {
        **MLA,
        "attention.head_count_kv": HEADS,
        "attention.key_length": 32,
        "attention.value_length": 16,
    }
    yield ZooModel("plm", keys=low_rank)
    yield ZooModel("minicpm3", keys=low_rank)
    yield ZooModel("chameleon", keys={"attention.head_count_kv": HEADS}, vocabulary=8300)
    yield ZooModel("bloom", keys={"attention.head_count_kv": HEADS})
    yield ZooModel("talkie", keys={"attention.head_count_kv": HEADS, "logit_scale": 1.0})
    yield ZooModel("smollm3", layers=9)


def sparse() -> Iterator[ZooModel]:
    """Mixtures of experts, all layers alike or dense ones in front."""
    for name in ("arctic", "dbrx", "grok", "phimoe", "qwen3moe"):
        yield ZooModel(name, keys={**EXPERTS, "attention.clamp_kqv": 8.0})
    for name in (
        "bailingmoe",
        "bailingmoe2",
        "deepseek",
        "hunyuan-moe",
        "hy_v3",
        "qwen2moe",
    ):
        yield ZooModel(name, keys=SHARED_EXPERTS)
        yield ZooModel(name, "two dense", keys={**SHARED_EXPERTS, "leading_dense_block_count": 2})
    for name in ("deepseek2-ocr", "dots1"):
        yield ZooModel(name, keys={**SHARED_EXPERTS, "attention.head_count_kv": HEADS})
    yield ZooModel("olmoe", keys={**EXPERTS, "attention.head_count_kv": HEADS})
    yield ZooModel("minimax-m2", keys={**EXPERTS, "expert_gating_func": 2})
    yield ZooModel("granitemoe", keys={**EXPERTS, **GRANITE})
    yield ZooModel(
        "granitemoe", "shared", keys={**EXPERTS, **GRANITE, "expert_shared_feed_forward_length": 32}
    )
    yield ZooModel(
        "grovemoe",
        keys={
            **EXPERTS,
            "expert_chunk_feed_forward_length": 16,
            "expert_group_scale": 0.05,
            "experts_per_group": 2,
        },
        seed=1,  # under seed 0 the whole model in Q4_0 gives values that aren't finite
    )
    for name in ("deepseek2", "mistral4"):
        yield ZooModel(name, keys=MLA)
    deepseek = ZooModel("deepseek2", keys=MLA)
    yield deepseek.but("two dense", {"leading_dense_block_count": 2})
    yield deepseek.but("yarn", {**YARN, "rope.scaling.yarn_log_multiplier": 0.1})
    yield deepseek.but(
        "groups", {"expert_count": 8, "expert_group_count": 4, "expert_group_used_count": 2}
    )
    yield deepseek.but("lite", {"attention.q_lora_rank": None}, layers=27)
    yield deepseek.but("30 layers", layers=30)
    yield ZooModel("deepseek32", keys={**MLA, **INDEXER})
    indexer = {**MLA, **INDEXER}
    yield ZooModel("glm-dsa", keys=indexer, keep=("indexer.*",))
    yield ZooModel(
        "glm-dsa",
        "shared indexers",
        keys={**indexer, "attention.indexer.types": [1, 0, 0, 1, 0, 0]},
        keep=("indexer.*",),
    )
    yield ZooModel(
        "glm-dsa",
        "unlisted indexers",
        keys={**indexer, "context_length": 1 << 20},
        keep=("indexer.*",),
        refused=True,
    )
    yield ZooModel(
        "ernie4_5-moe", layers=7, keys={**SHARED_EXPERTS, "interleave_moe_layer_step": 2}
    )
    yield ZooModel(
        "ernie4_5-moe",
        "every layer",
        layers=6,
        keys={**SHARED_EXPERTS, "interleave_moe_layer_step": 1},
    )
    llama4: Keys = {**EXPERTS, "interleave_moe_layer_step": 2}
    yield ZooModel("llama4", layers=9, keys=llama4)
    yield ZooModel(
        "llama4", "every layer", layers=9, keys={**EXPERTS, "interleave_moe_layer_step": 1}
    )
    yield ZooModel(
        "llama4",
        "no window",
        layers=9,
        keys={**llama4, "attention.sliding_window": 0},
        refused=True,
    )
    yield ZooModel(
        "minimax-m3",
        keys={
            **SHARED_EXPERTS,
            "rope.dimension_count": 16,
            "attention.indexer.head_count": 2,
            "attention.indexer.key_length": 64,
            "attention.indexer.top_k": 4,
            "attention.indexer.block_size": 4,
            "attention.indexer.local_blocks": 1,
            "leading_dense_block_count": 2,
        },
    )


def positions() -> Iterator[ZooModel]:
    """More than one position a token."""
    for name in ("qwen2vl", "qwen3vl", "paddleocr", "hunyuan_vl", "glm4"):
        yield ZooModel(name, keys=SECTIONS)
    yield ZooModel("qwen3vl", "deepstack", keys={**SECTIONS, "n_deepstack_layers": 3})
    yield ZooModel("qwen3vlmoe", keys={**EXPERTS, **SECTIONS})
    yield ZooModel("qwen3vlmoe", "deepstack", keys={**EXPERTS, **SECTIONS, "n_deepstack_layers": 2})
    yield ZooModel("glm4", "no sections", refused=True)
    yield ZooModel("glm4moe", keys={**SHARED_EXPERTS, **SECTIONS})
    yield ZooModel("glm4moe", "no sections", keys=SHARED_EXPERTS)
