"""Which artifact and which runtime produce the numbers, and the short name of that.

A recipe holds all that changes a bit of a result but the layer range. What of a node's slice was
loaded isn't part of it, since the nodes of a route hold different slices; a node reports its
slice's digest beside the fingerprint.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace

from meshnet.domain.errors import FingerprintMismatchError, InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.domain.tensors import DType

RECIPE_VERSION = 2
CATALOGUE_VERSION = 1
MAX_CHUNK_TOKENS = 128
KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
FLOAT_KV_TYPES = frozenset({"f32", "f16", "bf16"})
KERNEL_VARIABLES = ("GGML_", "LLAMA_ATTN_")
"""What the names of environment variables begin with that may switch kernels."""


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
                "both need the same engine build, processor features, devices, KV types, flash "
                "attention, chunk size and boundary dtype; `meshnet inspect MODEL --fingerprint` "
                "lists what a machine has"
            )
        raise FingerprintMismatchError(
            f"{what} digests differ: {here} here, {there} at {whose}; {advice}",
            here=here,
            there=there,
        )

    def with_boundary(self, dtype: DType) -> Fingerprint:
        """The fingerprint of the same recipe with ``dtype`` on its seams.

        This one must be that of a float32 boundary, which a node's capability names: whoever opens
        a session derives from it the one that the session is to have.
        """
        if dtype is DType.FLOAT32:
            return self
        text = _canonical({"recipe": self.runtime_recipe_digest, "boundary_dtype": dtype.value})
        return replace(
            self,
            runtime_recipe_digest=_sha256(text),
            recipe_id=f"{self.recipe_id}-{dtype.value}",
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What of a machine, besides the engine's build, changes the numbers.

    Empty values stand for what an engine doesn't depend on.
    """

    processor: str = ""
    """The features that the engine's kernels were chosen by, in the engine's own words."""
    mathematics: str = ""
    """Digest of results of the C library's functions (sine, exponential, ...)."""
    variables: tuple[str, ...] = ()
    """Environment variables that switch kernels, as ``NAME=value``, sorted."""
    devices: tuple[str, ...] = ()
    """Kinds of devices that compute besides the processor, without repeats, sorted."""
    offload: str = "none"
    """Which of a node's layers those devices compute: ``none``, ``all`` or ``last N``."""
    threads: int = 0
    """On how many threads sums are cut up; 0 where the number doesn't change a bit."""

    def __post_init__(self) -> None:
        if self.threads < 0:
            raise InvalidArgumentError("threads", f"{self.threads} can't be negative")
        for name in ("variables", "devices"):
            if list(getattr(self, name)) != sorted(set(getattr(self, name))):
                raise InvalidArgumentError(name, "must be sorted, without repeats")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything besides the layer range that changes a bit of the result."""

    model_digest: Digest
    engine: str
    engine_build: str
    """Version and digest of everything that was compiled to compute."""
    boundary_dtype: DType = DType.FLOAT32
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    flash_attention: bool = False
    chunk_tokens: int = MAX_CHUNK_TOKENS
    long_context: bool = False
    """Whether a model with two sets of rotary factors uses those for contexts longer than it was
    trained on; the node's context length decides it."""
    machine: Machine = field(default_factory=Machine)

    def __post_init__(self) -> None:
        if not 1 <= self.chunk_tokens <= MAX_CHUNK_TOKENS:
            raise InvalidArgumentError(
                "chunk_tokens", f"{self.chunk_tokens} must be 1 to {MAX_CHUNK_TOKENS}"
            )
        require_kv_types(self.kv_type_k, self.kv_type_v, flash_attention=self.flash_attention)

    def fields(self) -> Mapping[str, object]:
        """All that makes up the recipe's digest, by name."""
        own = asdict(self)
        del own["model_digest"], own["boundary_dtype"]
        return {"recipe_version": RECIPE_VERSION, **own}

    def fingerprint(self) -> Fingerprint:
        """The fingerprint: SHA-256 over the fields as canonical JSON, then the boundary's dtype."""
        digest = _sha256(_canonical(self.fields()))
        short = digest.removeprefix("sha256:")[:8]
        base = Fingerprint(self.model_digest, digest, recipe_id=f"{self.engine}-{short}")
        return base.with_boundary(self.boundary_dtype)


def require_kv_types(key: str, value: str, *, flash_attention: bool) -> None:
    """Raise :class:`InvalidArgumentError` for types of the KV cache that can't be."""
    for name, kind in (("cache_type_k", key), ("cache_type_v", value)):
        if kind not in KV_TYPES:
            raise InvalidArgumentError(name, f"{kind!r} is none of {', '.join(KV_TYPES)}")
    if value not in FLOAT_KV_TYPES and not flash_attention:
        raise InvalidArgumentError(
            "cache_type_v",
            f"{value} values need flash attention: add --flash-attn, or quantise the keys alone",
        )


def _canonical(fields: Mapping[str, object]) -> str:
    """JSON with one way to write each value: equal texts mean equal fields."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(text: str) -> Digest:
    return Digest(f"sha256:{hashlib.sha256(text.encode()).hexdigest()}")
