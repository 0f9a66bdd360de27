"""Files with a model's shapes and no weights: what a machine's speed with it is measured with.

A few ranges of the model are laid out as slices are, but of zeros, as holes in the file. Reading a
hole takes memory like any page, multiplying zeros as long as anything else; only the model's header
is needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.check import check_index
from meshnet.model.description import describe, free_cuts, legal_cuts
from meshnet.model.files import disk_errors
from meshnet.model.gguf import GgufIndex
from meshnet.model.slice_image import image_of
from meshnet.model.slice_plan import SlicePlan, plan_slice

LAYER_BYTES: Final = 256 << 20
"""Of layers in the larger range: more than processors' caches hold, or all of a small model."""


@dataclass(frozen=True, slots=True)
class RehearsedRange:
    """A range that is measured."""

    plan: SlicePlan
    layer_bytes: int
    output_bytes: int = 0
    """Of a tail; 0 elsewhere."""

    @property
    def total_bytes(self) -> int:
        """Of its file."""
        return image_of(self.plan).total

    def write(self, path: Path) -> str:
        """Make the file, and say what it is made of: the SHA-256 (hexadecimal) of its head.

        Raises as :func:`~meshnet.model.files.disk_errors` does.
        """
        image = image_of(self.plan)
        with disk_errors(path.parent, len(image.head)), path.open("xb") as file:
            file.write(image.head)
            file.truncate(image.total)
        return hashlib.sha256(image.head).hexdigest()


def rehearsed_ranges(
    index: GgufIndex, digest: Digest, *, allow_unverified: bool = False
) -> tuple[RehearsedRange, RehearsedRange, RehearsedRange]:
    """A short range and a longer one from a model's middle, and its tail.

    Of two lengths, what a layer takes can be told from what every step takes. Raises
    :class:`ModelUnsupportedError` for a model with fewer than two places where it may be cut, and
    as :func:`~meshnet.model.slice_plan.plan_slice` does.
    """
    check_index(index, allow_unverified=allow_unverified)
    info = describe(index)
    legal = legal_cuts(info, allow_unverified=allow_unverified)
    cuts = free_cuts(info, legal)
    if len(cuts) < 2:
        cuts = legal
    if len(cuts) < 2:
        raise ModelUnsupportedError(f"{info.name} has no layers between two cuts to measure with")
    first, *others = cuts
    sizes = {end: sum(info.layer_bytes[first:end]) for end in others}
    last = max([others[0], *(end for end in others if sizes[end] <= LAYER_BYTES)])

    def planned(start: int, end: int) -> RehearsedRange:
        plan = plan_slice(index, LayerRange(start, end), digest, allow_unverified=allow_unverified)
        output = info.output_bytes if end == info.total_layers else 0
        return RehearsedRange(plan, sum(info.layer_bytes[start:end]), output)

    return (
        planned(first, others[0]),
        planned(first, last),
        planned(_tail_start(cuts, info.layer_bytes), info.total_layers),
    )


def _tail_start(cuts: Sequence[int], layer_bytes: Sequence[int]) -> int:
    """Half of the model, if there is room: behind more layers the output matrix takes longer."""
    later = [cut for cut in cuts if 2 * cut >= len(layer_bytes)]
    return next((cut for cut in later if sum(layer_bytes[cut:]) <= LAYER_BYTES), cuts[-1])
