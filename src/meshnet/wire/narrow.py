"""Float32 rows to the narrower types of a boundary and back, vectorised.

| type | bytes a value | error of a finite value x |
|---|---|---|
| float16 | 2 | at most abs(x) * 2**-11, or 2**-25 near zero; beyond 65504 refused |
| bfloat16 | 2 | at most abs(x) * 2**-8 |
| q8_0 | 34/32 | at most half the block's scale, plus 2**-18 where scales are subnormal |

``q8_0`` is ggml's layout: blocks of 32 values along a row, each a little-endian float16 scale (the
largest magnitude divided by 127) and 32 signed bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import InvalidArgumentError, MalformedFrameError
from meshnet.domain.tensors import BoundaryBundle, DType, EngineTensor

BLOCK = 32
_BLOCK_TYPE = np.dtype([("scale", "<f2"), ("values", "i1", (BLOCK,))])
Rows = NDArray[np.float32]


def dtypes_for(n_embd: int) -> tuple[DType, ...]:
    """What rows of ``n_embd`` values may be narrowed to, the exact one first."""
    whole_blocks = n_embd % BLOCK == 0
    return tuple(dtype for dtype in DType if dtype is not DType.Q8_0 or whole_blocks)


def narrowed(bundle: BoundaryBundle, dtype: DType) -> BoundaryBundle:
    """A float32 bundle as it crosses a seam; the same one for float32. Raises as for a tensor."""
    if dtype is DType.FLOAT32:
        return bundle
    tensors = [tensor_of(each.name, rows_of(each), dtype) for each in bundle.tensors]
    return BoundaryBundle(tuple(tensors), bundle.token_id_sideband)


def widened(bundle: BoundaryBundle, dtype: DType) -> BoundaryBundle:
    """What came over a seam of ``dtype``, as float32; the same one for float32.

    Raises :class:`MalformedFrameError` for tensors of another type.
    """
    for tensor in bundle.tensors:
        if tensor.dtype is not dtype:
            raise MalformedFrameError(
                "tensors.dtype", f"{tensor.dtype.value}, but the session has {dtype.value}"
            )
    if dtype is DType.FLOAT32:
        return bundle
    tensors = [tensor_of(each.name, rows_of(each), DType.FLOAT32) for each in bundle.tensors]
    return BoundaryBundle(tuple(tensors), bundle.token_id_sideband)


def tensor_of(name: str, rows: Rows, dtype: DType) -> EngineTensor:
    """``rows``, float32 of shape (tokens, n_embd), as a tensor of ``dtype``.

    Raises :class:`InvalidArgumentError` for values that aren't finite or that ``dtype`` can't hold,
    and for rows that don't fill ``q8_0`` blocks. Float32 takes any value as it is.
    """
    return EngineTensor(name, dtype, rows.shape, _encode(rows, dtype))


def rows_of(tensor: EngineTensor) -> Rows:
    """The tensor's values as float32 of its shape; for float32, a view of its data."""
    if tensor.dtype is DType.FLOAT32:
        return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape)
    if tensor.dtype is DType.FLOAT16:
        return np.frombuffer(tensor.data, "<f2").astype(np.float32).reshape(tensor.shape)
    if tensor.dtype is DType.BFLOAT16:
        high = np.frombuffer(tensor.data, "<u2").astype(np.uint32)
        return (high << np.uint32(16)).view(np.float32).reshape(tensor.shape)
    blocks = np.frombuffer(tensor.data, _BLOCK_TYPE)
    values = blocks["values"].astype(np.float32)
    values *= blocks["scale"].astype(np.float32)[:, None]
    return values.reshape(tensor.shape)


def _encode(rows: Rows, dtype: DType) -> bytes:
    if dtype is DType.FLOAT32:
        return rows.astype("<f4", copy=False).tobytes()
    if not np.isfinite(rows).all():
        raise InvalidArgumentError("boundary", f"{dtype.value} holds finite values alone")
    if dtype is DType.FLOAT16:
        return _halves(rows, dtype).tobytes()
    if dtype is DType.BFLOAT16:
        return _to_bfloat16(rows).tobytes()
    return _to_blocks(rows).tobytes()


def _to_bfloat16(rows: Rows) -> NDArray[np.uint16]:
    """The upper half of each float32, rounded to the nearest, ties to even."""
    bits = np.ascontiguousarray(rows).view(np.uint32)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    rounded = (bits + (np.uint32(0x7FFF) + odd)) >> np.uint32(16)
    halves = rounded.astype("<u2")
    if ((halves & np.uint16(0x7F80)) == np.uint16(0x7F80)).any():
        raise InvalidArgumentError("boundary", "a value is too large for bfloat16; use float32")
    return halves


def _to_blocks(rows: Rows) -> NDArray[np.void]:
    if rows.shape[-1] % BLOCK:
        raise InvalidArgumentError("shape", f"rows of {rows.shape[-1]} values don't fill blocks")
    values = np.ascontiguousarray(rows).reshape(-1, BLOCK)
    largest = np.maximum(values.max(axis=1), -values.min(axis=1))
    scale = _halves(largest / np.float32(127), DType.Q8_0)
    # Divided by the scale as it is stored, so that its own rounding adds no error.
    stored = scale.astype(np.float32)
    inverse = np.divide(1, stored, out=np.zeros_like(stored), where=stored > 0)
    scaled = np.rint(values * inverse[:, None])
    blocks = np.empty(len(values), _BLOCK_TYPE)
    blocks["scale"] = scale
    blocks["values"] = np.clip(scaled, -127, 127)
    return blocks


def _halves(values: Rows, dtype: DType) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        halves = values.astype("<f2")
    if not np.isfinite(halves).all():
        raise InvalidArgumentError(
            "boundary", f"a value is too large for {dtype.value}; use bfloat16 or float32"
        )
    return halves
