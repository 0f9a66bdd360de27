"""A tiny random-weight Mamba model: its state can't be cut back, unlike a KV cache."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.support.gguf_values import VOCABULARY, KeyValue, kinds_of, vocabulary_keys

LAYERS = 2
WIDTH = 32
INNER = 64
STATE = 16
RANK = 4
KERNEL = 4


def build_recurrent(path: Path) -> Path:
    """Write the model; it has two layers and the vocabulary of the other tiny models."""
    writer = GGUFWriter(path, "mamba")
    keys: dict[str, KeyValue] = {
        "mamba.context_length": 4096,
        "mamba.embedding_length": WIDTH,
        "mamba.feed_forward_length": 0,
        "mamba.attention.head_count": 0,
        "mamba.block_count": LAYERS,
        "mamba.ssm.conv_kernel": KERNEL,
        "mamba.ssm.inner_size": INNER,
        "mamba.ssm.state_size": STATE,
        "mamba.ssm.time_step_rank": RANK,
        "mamba.attention.layer_norm_rms_epsilon": 1e-5,
    }
    for key, value in (keys | vocabulary_keys()).items():
        writer.add_key_value(key, value, *kinds_of(value))
    random = np.random.default_rng(0)
    for name, shape in _tensors().items():
        data = random.standard_normal(shape, np.float32) / np.sqrt(shape[-1])
        if name.endswith("ssm_a"):
            data = -np.abs(data) - 0.1
        writer.add_tensor(name, data.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _tensors() -> dict[str, tuple[int, ...]]:
    """Shapes as numpy has them, the other way round than ggml."""
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCABULARY, WIDTH),
        "output_norm.weight": (WIDTH,),
    }
    for layer in range(LAYERS):
        own = {
            "attn_norm.weight": (WIDTH,),
            "ssm_in.weight": (2 * INNER, WIDTH),
            "ssm_conv1d.weight": (INNER, KERNEL),
            "ssm_conv1d.bias": (INNER,),
            "ssm_x.weight": (RANK + 2 * STATE, INNER),
            "ssm_dt.weight": (INNER, RANK),
            "ssm_dt.bias": (INNER,),
            "ssm_a": (INNER, STATE),
            "ssm_d": (INNER,),
            "ssm_out.weight": (WIDTH, INNER),
        }
        shapes |= {f"blk.{layer}.{name}": shape for name, shape in own.items()}
    return shapes
