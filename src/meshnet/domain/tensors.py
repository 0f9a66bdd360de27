"""Tensors as they cross a seam: named, typed, shaped, and checked against their own length."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from meshnet.domain.errors import InvalidArgumentError

RESIDUAL = "residual"
"""The name of the tensor that nearly every architecture's boundary consists of."""


class DType(Enum):
    """Element types of a boundary. ``Q8_0`` is ggml's: 32 values and a float16 scale a block."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    Q8_0 = "q8_0"

    def byte_length(self, elements: int) -> int:
        """Bytes that ``elements`` values take; for ``Q8_0``, elements must fill whole blocks."""
        if self is DType.FLOAT32:
            return elements * 4
        if self is DType.Q8_0:
            if elements % 32:
                raise InvalidArgumentError("shape", f"{elements} values don't fill q8_0 blocks")
            return elements // 32 * 34
        return elements * 2


@dataclass(frozen=True, slots=True)
class EngineTensor:
    """One tensor, row-major, little-endian. ``data`` may be any bytes-like object.

    Raises :class:`InvalidArgumentError` when the shape and the length of the data disagree.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if not self.name:
            raise InvalidArgumentError("name", "a tensor needs a name")
        if any(extent < 0 for extent in self.shape):
            raise InvalidArgumentError("shape", f"{self.name} has a negative extent: {self.shape}")
        expected = self.dtype.byte_length(math.prod(self.shape))
        if len(self.data) != expected:
            raise InvalidArgumentError(
                "data",
                f"{self.name} of shape {self.shape} and type {self.dtype.value} takes {expected} "
                f"bytes, but {len(self.data)} are there",
            )


@dataclass(frozen=True, slots=True)
class BoundaryBundle:
    """What crosses a seam: usually the residual stream alone, shape ``(tokens, n_embd)``.

    ``token_id_sideband`` is reserved for architectures whose first layers route by token id.
    """

    tensors: tuple[EngineTensor, ...]
    token_id_sideband: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        names = [tensor.name for tensor in self.tensors]
        if not names:
            raise InvalidArgumentError("tensors", "a boundary holds at least one tensor")
        if len(set(names)) != len(names):
            raise InvalidArgumentError("tensors", f"names repeat: {names}")

    @property
    def rows(self) -> int:
        """Number of token positions, read off the first tensor."""
        shape = self.tensors[0].shape
        return shape[0] if shape else 0

    @property
    def byte_length(self) -> int:
        """Total bytes of all tensors' data."""
        return sum(len(tensor.data) for tensor in self.tensors)
