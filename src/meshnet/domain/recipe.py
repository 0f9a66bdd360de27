"""Which artifact and which runtime produce the numbers, and the short name of that."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

from meshnet.domain.errors import FingerprintMismatchError, InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.domain.tensors import DType

RECIPE_VERSION = 1
CATALOGUE_VERSION = 1
MAX_CHUNK_TOKENS = 128
KV_TYPES = ("f32", "f16", "bf16", "q8_0")


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The only identity message: two nodes share a route only if all five fields are equal."""

    model_artifact_digest: Digest
    runtime_recipe_digest: Digest
    recipe_id: str
    recipe_version: int = RECIPE_VERSION
    catalogue_version: int = CATALOGUE_VERSION

    def require_equal(self, other: Fingerprint, whose: str) -> None:
        """Raise :class:`FingerprintMismatchError`, naming both digests, unless both are equal."""
        if self == other:
            return
        if self.model_artifact_digest != other.model_artifact_digest:
            what, here, there = "model", self.model_artifact_digest, other.model_artifact_digest
            advice = "both must load the same model file"
        else:
            what, here, there = "recipe", self.runtime_recipe_digest, other.runtime_recipe_digest
            advice = (
                "both need the same engine build, boundary dtype, KV types, flash attention and "
                "chunk size"
            )
        raise FingerprintMismatchError(
            f"{what} digests differ: {here} here, {there} at {whose}; {advice}",
            here=here,
            there=there,
        )


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything besides the layer range that changes a bit of the result."""

    model_digest: Digest
    engine: str
    engine_build: str
    boundary_dtype: DType = DType.FLOAT32
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = False
    chunk_tokens: int = MAX_CHUNK_TOKENS

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_tokens <= MAX_CHUNK_TOKENS:
            raise InvalidArgumentError(
                "chunk_tokens", f"{self.chunk_tokens} must be 1 to {MAX_CHUNK_TOKENS}"
            )
        for name, value in (("kv_type_k", self.kv_type_k), ("kv_type_v", self.kv_type_v)):
            if value not in KV_TYPES:
                raise InvalidArgumentError(name, f"{value!r} is none of {', '.join(KV_TYPES)}")
        if self.kv_type_v == "q8_0" and not self.flash_attention:
            raise InvalidArgumentError("kv_type_v", "q8_0 needs flash attention")

    def fingerprint(self) -> Fingerprint:
        """The fingerprint: SHA-256 over the fields as canonical JSON."""
        fields = {
            "recipe_version": RECIPE_VERSION,
            "engine": self.engine,
            "engine_build": self.engine_build,
            "boundary_dtype": self.boundary_dtype.value,
            "kv_type_k": self.kv_type_k,
            "kv_type_v": self.kv_type_v,
            "flash_attention": self.flash_attention,
            "chunk_tokens": self.chunk_tokens,
        }
        text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
        digest = hashlib.sha256(text.encode()).hexdigest()
        return Fingerprint(
            model_artifact_digest=self.model_digest,
            runtime_recipe_digest=Digest(f"sha256:{digest}"),
            recipe_id=f"{self.engine}-{self.boundary_dtype.value}-{digest[:8]}",
        )
