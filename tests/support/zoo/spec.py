"""What a model of the zoo is made of: the vocabulary of its table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from gguf import GGMLQuantizationType

from tests.support.gguf_values import VOCABULARY, KeyValue

F32 = GGMLQuantizationType.F32
Keys = Mapping[str, KeyValue | None]
"""Metadata without the architecture's name in front; None takes a common key away."""
NONE: Keys = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ZooModel:
    """One model to build."""

    architecture: str
    label: str = "plain"
    layers: int = 6
    keys: Keys = field(default_factory=dict)
    vocabulary: int = VOCABULARY
    absent: tuple[str, ...] = ()
    """Tensors that it lacks, as patterns over names without ``blk.<n>.``."""
    lean: bool = False
    """Whether it lacks every tensor that libllama loads it without."""
    keep: tuple[str, ...] = ()
    """Patterns of tensors that a lean model has all the same: libllama loads it without them, but
    can't compute."""
    dense: tuple[int, ...] = ()
    """Layers that are as in a model without experts, where tensors tell rather than keys."""
    ahead: int = -1
    """The layer that its blocks for multi-token prediction look like, if it has some."""
    refused: bool = False
    """Whether it is of the models that can't be cut, though others of the architecture can."""
    quantization: GGMLQuantizationType = F32
    seed: int = 0

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"{self.architecture}/{self.label}"

    def but(self, label: str, keys: Keys = NONE, **changes: object) -> ZooModel:
        """Another model that differs in some keys and attributes."""
        return replace(self, label=label, keys={**self.keys, **keys}, **changes)  # type: ignore[arg-type]
