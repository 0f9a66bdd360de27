"""What can be said about an architecture: the vocabulary of the table in ``architectures``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from meshnet.domain.layers import LayerRange
from meshnet.model.gguf import GgufIndex
from meshnet.model.hyperparameters import Hyperparameters, Recurrence, SlidingWindow
from meshnet.model.metadata import MetadataValue

PER_LAYER_KEYS: Final = (
    "attention.head_count",
    "attention.head_count_kv",
    "attention.indexer.types",
    "attention.rope_pattern",
    "deepstack_mapping",
    "expert_feed_forward_length",
    "expert_used_count",
    "feed_forward_length",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
)
"""Keys that may hold an array with one entry a layer. Cut by name, never by length: other arrays
(``rope.dimension_sections``) can be as long as a model has layers."""

PER_LAYER_GLOBAL_KEYS: Final = ("xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps")
"""The same, of keys that don't start with the architecture's name."""

FACTOR: Final = ".layer_output_scale.weight"
"""Ends the name of a factor by which a layer multiplies the residual itself."""

Kind = Literal[
    "sliding", "full", "recurrent", "attention", "plain", "sparse", "dense", "wide", "own_indexer"
]
"""What a layer is. Each slides or is full; is recurrent, has attention, or is plain (neither); is
sparse (experts) or dense. It may be wide (have a feed-forward part), and have an indexer of its
own."""

Recognise = Callable[[int, int], int]
"""From a number of layers and one of tokens to what libllama takes the model for."""

Rewrite = Callable[[GgufIndex, Hyperparameters, LayerRange], Mapping[str, MetadataValue]]
"""Keys of a slice that differ from the model's, without the architecture's name in front."""


def as_one(_layers: int, _vocabulary: int) -> int:
    """For architectures whose models aren't recognised by their number of layers."""
    return 0


def as_is(
    _index: GgufIndex, _sizes: Hyperparameters, _layers: LayerRange
) -> Mapping[str, MetadataValue]:
    """Rewrites nothing."""
    return {}


def no_variant(_index: GgufIndex, _sizes: Hyperparameters) -> str:
    """For architectures without variants that can't be cut."""
    return ""


def any_cut(_sizes: Hyperparameters, _layer: int) -> bool:
    """For architectures that may be cut before any layer."""
    return True


def of_one(_sizes: Hyperparameters) -> int:
    """The period of code that doesn't look at a layer's index."""
    return 1


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a slice of a model of this architecture must mind."""

    name: str
    ties_output: bool = True
    """Whether libllama takes ``token_embd`` for the output matrix where ``output`` is absent."""
    head_size: Literal["any", "even", "rotated"] = "any"
    """What libllama asserts of a head: that its value is as long as its key, or that all of it is
    rotated as well."""
    window: SlidingWindow | None = None
    recurrence: Recurrence = ""
    needs: tuple[Kind, ...] = ()
    """Kinds of which a slice must hold at least one layer, or libllama aborts: the caches and
    inputs of a kind are made of its layers. A slice that lacks one gets a layer of zeros."""
    tensors: tuple[tuple[Kind, tuple[str, ...]], ...] = ()
    """By kind of layer, groups of tensors of which it must have one: libllama takes a file without
    any of them, and dies as it computes."""
    first: Kind | None = None
    """What the first layer of a slice must be."""
    last: Kind | None = None
    """What the last layer of a slice must be, since others leave no tensor to tap; the same goes
    for one of zeros behind it."""
    period: Callable[[Hyperparameters], int] = of_one
    """How often a layer's index repeats its meaning: a slice starts with so many layers of zeros
    that its layers keep theirs."""
    recognise: Recognise = as_one
    """A slice must be taken for what its model is; layers of zeros behind it make up the number."""
    whole_vocabulary: bool = False
    """Whether libllama sets the logits of certain tokens even where none are wanted: all slices
    keep the number of tokens, and have every row flagged."""
    heads_everywhere: bool = False
    """Whether layers without attention get the number of heads that the others have, since head
    sizes are derived from the first layer's."""
    scaled_input: Literal["", "key", "root"] = ""
    """What libllama multiplies a neighbour's output by, as if it were embeddings: the key
    ``embedding_scale``, which is set to 1, or the root of the embedding's length, of which the
    engine multiplies its input by the inverse."""
    rewrite: Rewrite = as_is
    dropped_keys: tuple[str, ...] = ()
    """Left out of every slice: what they say of images doesn't apply to text."""
    only_head: tuple[str, ...] = ()
    """Tensors outside the layers that are added to token embeddings: zeros in other slices."""
    stands_in: Mapping[str, str] = field(default_factory=dict)
    """By the name that a layer's tensor has where rows come in place of tokens, the name it has
    where tokens come. Slices behind the head hold the latter's weights under the former's name."""
    may_cut: Callable[[Hyperparameters, int], bool] = any_cut
    """Whether a cut before a layer leaves all that it needs on its side."""
    variant: Callable[[GgufIndex, Hyperparameters], str] = no_variant
    """Why a model can't be cut though others of its architecture can; empty where it can."""
    refused_keys: tuple[str, ...] = ()
    """Keys of variants that need more at a cut than one tensor."""
    tap: str = "l_out-{last}"
    """Name of the tensor behind a slice's last layer, of number ``last``; ``next`` is the one
    behind it."""
    last_tap: str = ""
    """The same where no layer follows, if the name is another then."""


def kinds_of(sizes: Hyperparameters, layer: int) -> tuple[Kind, ...]:
    """All that a layer is."""
    kinds: list[Kind] = ["sliding" if sizes.sliding[layer] else "full"]
    if sizes.recurrent[layer]:
        kinds.append("recurrent")
    else:
        kinds.append("attention" if sizes.kv_heads[layer] else "plain")
    kinds.append("sparse" if sizes.sparse(layer) else "dense")
    if sizes.feed_forward[layer]:
        kinds.append("wide")
    if sizes.own_indexer[layer]:
        kinds.append("own_indexer")
    return tuple(kinds)


def unverified(name: str) -> Architecture:
    """The rules that hold for most architectures, for one that nobody has proven."""
    return Architecture(name, ties_output=False)
