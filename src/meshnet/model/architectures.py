"""The architectures whose slices are proven to give right answers, and the rules of each.

An entry is here because a chain of slices gives the same logits as the unsplit model, bit for bit,
at every legal cut of random-weight models of that architecture. Names are those of llama.cpp's
``general.architecture``; what the rules follow from is in its ``src/models``.
"""

from __future__ import annotations

from typing import Final

from meshnet.model import variants as of
from meshnet.model.hyperparameters import SlidingWindow
from meshnet.model.rules import Architecture

_LISTED: Final = SlidingWindow()
"""Files hold a flag for each layer."""

_PLAIN: Final = (
    Architecture("apertus", ties_output=False, head_size="rotated"),
    Architecture("arcee", head_size="rotated"),
    Architecture("arctic", head_size="rotated"),
    Architecture("bitnet", head_size="even"),
    Architecture("chameleon", head_size="rotated", whole_vocabulary=True),
    Architecture("chatglm", head_size="even"),
    Architecture("codeshell", ties_output=False, head_size="rotated"),
    Architecture("dbrx", ties_output=False, head_size="rotated"),
    Architecture("deci", first="attention", last="wide"),
    Architecture("deepseek", head_size="rotated"),
    Architecture("deepseek2-ocr"),
    Architecture("deepseek32"),
    Architecture("dots1", ties_output=False, head_size="rotated"),
    Architecture("ernie4_5", head_size="rotated"),
    Architecture("exaone", head_size="rotated"),
    Architecture("falcon", head_size="rotated"),
    Architecture("falcon-h1"),
    Architecture("gptneox", ties_output=False, head_size="even"),
    Architecture("grovemoe", head_size="rotated"),
    Architecture("hunyuan-dense", head_size="rotated"),
    Architecture("hunyuan-moe", head_size="rotated"),
    Architecture("hunyuan_vl", head_size="rotated"),
    Architecture("hy_v3", head_size="rotated"),
    Architecture("internlm2", ties_output=False, head_size="rotated"),
    Architecture("jais", ties_output=False, head_size="even"),
    Architecture("jais2", head_size="rotated"),
    Architecture("llama", head_size="rotated"),
    Architecture("maincoder", head_size="rotated"),
    Architecture("mamba"),
    Architecture("mamba2"),
    Architecture("minimax-m2", ties_output=False, head_size="even"),
    Architecture("mistral3", head_size="rotated"),
    Architecture("nanbeige", variant=of.loops),
    Architecture("nemotron", ties_output=False, head_size="even"),
    Architecture("olmo", head_size="rotated"),
    Architecture("olmoe", ties_output=False, head_size="rotated"),
    Architecture("openelm", head_size="even"),
    Architecture("orion", ties_output=False, head_size="rotated"),
    Architecture("paddleocr", head_size="rotated"),
    Architecture("pangu-embedded", head_size="rotated"),
    Architecture("phi2", ties_output=False, head_size="even"),
    Architecture("phi3", head_size="even"),
    Architecture("phimoe", ties_output=False, head_size="even"),
    Architecture("plamo", ties_output=False, head_size="rotated"),
    Architecture("plm"),
    Architecture("bailingmoe", ties_output=False),
    Architecture("bailingmoe2", ties_output=False, head_size="even"),
    Architecture("qwen", ties_output=False, head_size="even"),
    Architecture("qwen2", head_size="rotated"),
    Architecture("qwen2moe", ties_output=False, head_size="rotated"),
    Architecture("qwen2vl", head_size="rotated"),
    Architecture("qwen3", head_size="rotated"),
    Architecture("qwen3moe", head_size="rotated"),
    Architecture("qwen3vl", head_size="rotated", dropped_keys=("n_deepstack_layers",)),
    Architecture("qwen3vlmoe", head_size="rotated", dropped_keys=("n_deepstack_layers",)),
    Architecture("refact", head_size="even"),
    Architecture("seed_oss", head_size="rotated"),
    Architecture("stablelm", ties_output=False, head_size="even"),
    Architecture("starcoder2", head_size="rotated"),
    Architecture("xverse", ties_output=False, head_size="rotated"),
)
"""Nothing but what holds for all, or a trifle more."""

_COUNTED: Final = (
    Architecture("baichuan", ties_output=False, head_size="rotated", recognise=of.by_count(32, 40)),
    Architecture("command-r", head_size="even", recognise=of.at_least(64)),
    Architecture("deepseek2", recognise=of.deepseek2_lite, rewrite=of.gating),
    Architecture("mistral4", recognise=of.deepseek2_lite, rewrite=of.gating),
    Architecture(
        "exaone4",
        head_size="rotated",
        window=SlidingWindow(4, default=4096, only_layers=64),
        needs=("sliding",),
        recognise=of.by_count(64),
    ),
)
"""Models that libllama recognises by their number of layers."""

_SCALED: Final = (
    Architecture("gemma", scaled_input="root", variant=of.uneven_root),
    Architecture(
        "gemma2",
        window=SlidingWindow(2, default=4096),
        needs=("sliding",),
        recognise=of.by_count(46),
        scaled_input="root",
        variant=of.uneven_root,
    ),
    Architecture(
        "afmoe",
        window=SlidingWindow(4, optional=True),
        needs=("sliding",),
        period=of.four,
        scaled_input="root",
        variant=of.uneven_root,
    ),
    Architecture(
        "granite",
        head_size="rotated",
        scaled_input="key",
        refused_keys=("deepstack_mapping",),
    ),
    Architecture("granitemoe", head_size="rotated", scaled_input="key"),
    Architecture("grok", head_size="rotated", scaled_input="key"),
    Architecture("minicpm", scaled_input="key", rewrite=of.residual_scale),
)
"""libllama multiplies a neighbour's output by what it multiplies embeddings by."""

_WINDOWED: Final = (
    Architecture("cohere2", head_size="even", window=SlidingWindow(4), needs=("sliding",)),
    Architecture(
        "cohere2moe",
        head_size="rotated",
        window=SlidingWindow(4, full_first=True),
        needs=("sliding",),
    ),
    Architecture(
        "dots3note",
        window=_LISTED,
        needs=("sliding", "full", "own_indexer"),
    ),
    Architecture(
        "exaone-moe",
        ties_output=False,
        head_size="rotated",
        window=SlidingWindow(4, default=128),
        needs=("sliding",),
    ),
    Architecture(
        "gemma3",
        head_size="even",
        window=SlidingWindow(6, optional=True),
        needs=("sliding",),
        recognise=of.by_count(62),
    ),
    Architecture(
        "gemma4",
        window=_LISTED,
        needs=("sliding", "full"),
        recognise=of.at_least(2),
        may_cut=of.before_shared_cache,
        variant=of.per_layer_inputs,
    ),
    Architecture(
        "gpt-oss", ties_output=False, head_size="even", window=SlidingWindow(2), needs=("sliding",)
    ),
    Architecture(
        "granite_swa",
        head_size="rotated",
        window=_LISTED,
        needs=("sliding",),
        scaled_input="key",
        refused_keys=("deepstack_mapping",),
    ),
    Architecture(
        "laguna", window=SlidingWindow(4, optional=True, full_first=True), needs=("sliding",)
    ),
    Architecture(
        "llama4",
        head_size="rotated",
        window=SlidingWindow(4, default=8192, optional=True),
        needs=("sliding",),
        period=of.four_and_expert_step,
        recognise=of.at_least(4),
        variant=of.no_window,
    ),
    Architecture("maple", ties_output=False, window=_LISTED, needs=("sliding",)),
    Architecture(
        "mellum",
        ties_output=False,
        head_size="rotated",
        window=SlidingWindow(4, optional=True),
        needs=("sliding",),
    ),
    Architecture("mimo2", ties_output=False, window=_LISTED, needs=("sliding",)),
    Architecture(
        "olmo2",
        ties_output=False,
        head_size="rotated",
        window=SlidingWindow(4, optional=True),
        needs=("sliding",),
    ),
    Architecture("plamo3", window=SlidingWindow(8, optional=True), needs=("sliding",)),
    Architecture(
        "smallthinker",
        head_size="rotated",
        window=SlidingWindow(4, optional=True, full_first=True),
        needs=("sliding",),
        period=of.four_with_windows,
        recognise=of.by_count(4),
    ),
    Architecture("spark2_5", head_size="even", window=_LISTED, needs=("sliding",)),
    Architecture(
        "step35",
        ties_output=False,
        window=_LISTED,
        needs=("sliding",),
        tap="attn_norm_in-{next}",
        last_tap="h_nextn",
    ),
)
"""libllama needs a sliding layer where a model has any."""

_RECURRENT: Final = (
    *(
        Architecture(
            name,
            ties_output=ties,
            window=window,
            recurrence="no_kv_heads",
            needs=("recurrent", "attention"),
            heads_everywhere=True,
            scaled_input="key" if name == "granitehybrid" else "",
            tap="ffn_residual-{last}" if name == "plamo2" else "l_out-{last}",
        )
        for name, ties, window in (
            ("bailingmoe3", True, None),
            ("granitehybrid", True, None),
            ("jamba", True, None),
            ("kimi-linear", False, None),
            ("lfm2", True, SlidingWindow(optional=True, attention_layers=True)),
            ("lfm2moe", True, None),
            ("plamo2", True, None),
        )
    ),
    *(
        Architecture(
            name,
            recurrence="no_kv_heads_nor_width",
            needs=("recurrent", "attention", "plain"),
            heads_everywhere=True,
            tensors=(("recurrent", ("ssm_conv1d.bias",)),),
            tap="nemotron_h_block_out-{last}",
        )
        for name in ("nemotron_h", "nemotron_h_moe")
    ),
    *(
        Architecture(
            name,
            recurrence="interval",
            needs=("recurrent", "attention"),
            tensors=(
                ("recurrent", ("attn_qkv.weight", *instead)),
                ("recurrent", ("attn_gate.weight", *instead)),
            ),
        )
        for name, instead in (("qwen3next", ("ssm_in.weight",)), ("qwen35", ()), ("qwen35moe", ()))
    ),
)
"""Some layers have attention, the others a state that each step changes."""

_OTHERS: Final = (
    Architecture(
        "cogvlm",
        head_size="rotated",
        stands_in={
            "vis_attn_qkv.weight": "attn_qkv.weight",
            "vis_attn_output.weight": "attn_output.weight",
            "vis_gate.weight": "ffn_gate.weight",
            "vis_down.weight": "ffn_down.weight",
            "vis_up.weight": "ffn_up.weight",
        },
        variant=of.scaled_weights,
    ),
    Architecture("ernie4_5-moe", head_size="rotated", period=of.expert_step),
    Architecture("glm-dsa", may_cut=of.own_indexer, variant=of.unlisted_indexers),
    Architecture("glm4", head_size="even", variant=of.without_sections),
    Architecture("glm4moe", head_size="even", rewrite=of.rope_sections),
    Architecture("gpt2", head_size="even", only_head=("position_embd.weight",)),
    Architecture("minimax-m3", ties_output=False, head_size="even", needs=("sparse",)),
    Architecture("mpt", head_size="even", only_head=("position_embd.weight",)),
    Architecture("smollm3", head_size="rotated", period=of.four),
    Architecture("starcoder", head_size="even", only_head=("position_embd.weight",)),
)

VERIFIED: Final = {
    entry.name: entry
    for family in (_PLAIN, _COUNTED, _SCALED, _WINDOWED, _RECURRENT, _OTHERS)
    for entry in sorted(family, key=lambda entry: entry.name)
}
"""The table, by llama.cpp's name of the architecture."""

_NORMED: Final = "what comes from a neighbour would be normalised like embeddings"
_WIDE: Final = "several residual streams cross from layer to layer, and a slice takes one"
_FIRST_VALUES: Final = "all layers use a value that the first one computes"
_WHOLE_TEXT: Final = "it reads a whole text at once and keeps no cache"
_DRAFT: Final = "it drafts for another model, whose inner states it reads"
_SOUND: Final = "it is a part of a model that makes sound"

REFUSED: Final = {
    **dict.fromkeys(("bloom", "muse-glimmer", "talkie", "rwkv6"), _NORMED),
    **dict.fromkeys(("rwkv7", "arwkv7"), _FIRST_VALUES),
    **dict.fromkeys(("deepseek4", "qwen4exp", "glm5-next", "hy_v4"), _WIDE),
    **dict.fromkeys(
        (
            "bert",
            "dream",
            "eurobert",
            "gemma-embedding",
            "jina-bert-v2",
            "jina-bert-v3",
            "llada",
            "llada-moe",
            "llama-embed",
            "modern-bert",
            "neo-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "rnd1",
            "t5encoder",
        ),
        _WHOLE_TEXT,
    ),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), _DRAFT),
    **dict.fromkeys(("pockettts", "qwen3tts", "wavtokenizer-dec"), _SOUND),
    "clip": "it is the part of a model that sees images",
    "gemma3n": "its layers take token ids and several streams, which don't cross a cut",
    "graniteswitch": "its layers take token ids, which don't cross a cut",
    "hrm_text": "each token goes through its layers more than once",
    "kimi-k3": "later layers read the residuals of many earlier ones",
    "minicpm3": "libllama multiplies what comes from a neighbour by 12, which no division undoes",
    "minimax-01": "a layer's decay depends on its index and on how many layers there are",
    "rwkv6qwen2": "libllama computes no random-weight model of it, so nothing is proven",
    "t5": "its decoder reads what its encoder made of the whole text",
}
"""Why no slice of them gives right answers."""
