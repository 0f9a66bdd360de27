"""Random weights under which every layer matters and every value stays finite."""

from __future__ import annotations

import ctypes
import re
import zlib

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from tests.support.zoo.listing import ggml_base

F32 = GGMLQuantizationType.F32

_PLAIN = re.compile(
    r"norm|bias$|ffn_gate_inp|ssm_(conv1d|a|d|dt|x)|shortconv\.conv|time_mix|position_embd"
    r"|token_types|rope_|_rel_b|sinks|altup|exp_probs|hc_|indexer|vis_|attn_[qkv]_b|conv1d"
)
"""Names of tensors that converters leave in F32."""


def stored_type(
    name: str, shape: tuple[int, ...], wanted: GGMLQuantizationType
) -> GGMLQuantizationType:
    """The type of a tensor in a model quantised to ``wanted``: vectors and small parts stay F32."""
    if len(shape) == 1 or _PLAIN.search(name) or shape[0] % GGML_QUANT_SIZES[wanted][0]:
        return F32
    return wanted


def random_weights(seed: int, name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Values of a tensor, shape in numpy's order; the same for the same seed and name."""
    draw = np.random.default_rng((seed, zlib.crc32(name.encode())))
    values = draw.standard_normal(shape[::-1], dtype=np.float32)
    own = name.rsplit("blk.", maxsplit=1)[-1].partition(".")[2] if "blk." in name else name
    if own in {"ssm_a", "ssm_a.weight"}:  # the decay's negative exponent
        return -np.abs(values) - np.float32(0.1)
    if "norm" in own and own.endswith("weight"):
        return np.abs(1 + values / 8).astype(np.float32)
    if "rope_" in own:
        return np.abs(1 + values / 8).astype(np.float32)
    if own.endswith("bias") or len(shape) == 1:
        return (values / 8).astype(np.float32)
    if own == "token_embd.weight":
        return values
    return values / np.float32(np.sqrt(shape[0]))


def encoded(
    values: NDArray[np.float32], kind: GGMLQuantizationType
) -> NDArray[np.float32] | NDArray[np.uint8]:
    """The values in another type, as bytes whose last extent is a row's."""
    if kind is F32:
        return values
    block, size = GGML_QUANT_SIZES[kind]
    columns = values.shape[-1]
    rows = values.size // columns
    made = np.empty((*values.shape[:-1], columns // block * size), np.uint8)
    quantize = ggml_base().ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
    quantize.argtypes += [ctypes.c_int64] * 3 + [ctypes.c_void_p]
    values = np.ascontiguousarray(values)
    quantize(int(kind), values.ctypes.data, made.ctypes.data, 0, rows, columns, None)
    return made
