"""What can be said about an architecture: the vocabulary of the table in ``architectures``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from meshnet.model.hyperparameters import Dimension, Hyperparameters, SlidingWindow

PER_LAYER_KEYS: Final = (
    "attention.head_count",
    "attention.head_count_kv",
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_used_count",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
"""Keys that may hold an array with one entry a layer. Cut by name, never by length: other arrays
(``rope.dimension_sections``) can be as long as a model has layers."""


@dataclass(frozen=True, slots=True)
class TensorRule:
    """A tensor that the architecture knows; names of a layer's tensors lack ``blk.<n>.``."""

    name: str
    shape: tuple[Dimension, ...]
    """In ggml's order: the length of a row comes first."""
    required: bool = True
    among: Literal["all", "dense", "sparse", "shared"] = "all"
    """Which layers have it: those with a plain feed-forward part, with experts, or with experts
    and one that all tokens share."""
    instead_of: tuple[str, ...] = ()
    """Tensors that aren't needed where this one is."""

    def applies(self, sizes: Hyperparameters, layer: int) -> bool:
        """Whether a layer is among those that may have the tensor."""
        sparse = sizes.sparse(layer)
        if self.among == "dense":
            return not sparse
        if self.among == "sparse":
            return sparse
        return self.among == "all" or (sparse and sizes.shared_feed_forward > 0)


@dataclass(frozen=True, slots=True)
class Architecture:
    """What libllama needs of a model of this architecture, and what a slice of it must mind."""

    name: str
    layer: tuple[TensorRule, ...]
    outer: tuple[TensorRule, ...]
    """Tensors outside the layers. ``token_embd`` belongs to the head, ``output.*`` to the tail;
    the others are small and go into every slice."""
    epsilon: str
    """Key of the normalisation's epsilon."""
    required_keys: tuple[str, ...] = ()
    ties_output: bool = True
    """Whether libllama takes ``token_embd`` for the output matrix where ``output`` is absent."""
    sliding_window: SlidingWindow | None = None
    full_rotary: bool = True
    """Whether all of a head must be rotated; libllama asserts it."""
    head_only_keys: tuple[str, ...] = ()
    """Left out of slices that don't start at layer 0, since libllama would apply them to a
    neighbour's output as well."""
    counted_layers: frozenset[int] = frozenset()
    """Layer counts by which libllama recognises a model and computes differently: a model that
    has one can't be cut, and no slice may have one."""
    refused_keys: tuple[str, ...] = ()
    """Keys of variants that need more at a cut than one tensor."""
    tap: str = "l_out-{}"
    """Name of the tensor behind a slice's last layer, whose number in the slice goes in."""


def unverified(name: str) -> Architecture:
    """The rules that hold for most architectures, for one that nobody has proven."""
    return Architecture(name, (), (), "", ties_output=False, full_rotary=False)
