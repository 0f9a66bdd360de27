"""Which layers of a node go to a GPU, in the terms in which libllama takes that.

libllama counts from the end: ``n_gpu_layers`` N puts the output matrix and the N - 1 layers before
it on the devices, and shares them out by ``tensor_split``, the first device's layers first. A
slice's stub layers that come after its real ones count as well, and so does the output, also on a
slice that gives no tokens, where neither is ever computed. The processor itself may stand at the
end of the list of devices: there it takes the stubs and the output, weights and KV cache both, and
they cost no device memory. Layers of zeros in front of the real ones come before those that are
counted, and so stay on the processor by themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Placement:
    """What libllama is told, and what the recipe says."""

    n_gpu_layers: int
    tensor_split: tuple[float, ...]
    """A share for each device, and one more for the processor if it ends the list; none means that
    no device is used."""
    processor_last: bool
    offload: str
    """For the recipe: ``none``, ``all`` or ``last N``, of the node's own layers."""


def place_layers(
    wanted: int, own_layers: int, stubs: int, *, tail: bool, free_bytes: Sequence[int]
) -> Placement:
    """Put the last ``wanted`` of a slice's ``own_layers`` on devices with ``free_bytes`` each.

    More than there are means all of them. On a tail the output matrix goes with them, and so do
    the ``stubs`` between, the blocks of :func:`blocks_behind`. Raises
    :class:`InvalidArgumentError` if layers are wanted on a device and there is none.
    """
    if wanted == 0:
        return Placement(0, (), processor_last=False, offload="none")
    if not free_bytes:
        raise InvalidArgumentError(
            "gpu_layers",
            f"{wanted} layers can't be put on a GPU: this build of libllama finds none here; use "
            f"--gpu-layers 0, or install a build of llama-cpp-python for the GPU",
        )
    moved = min(wanted, own_layers)
    behind = stubs + 1
    ends = _ends(moved + behind if tail else moved, free_bytes)
    if not tail:
        ends.append(moved + behind)
    # Borders halfway between layers, so that rounding in libllama can't move one.
    borders = [0.0, *(max(end - 0.5, 0.0) for end in ends[:-1]), float(ends[-1])]
    return Placement(
        moved + behind,
        tuple(b - a for a, b in itertools.pairwise(borders)),
        processor_last=not tail,
        offload="all" if moved == own_layers else f"last {moved}",
    )


def blocks_behind(blocks: int, before: int, own_layers: int) -> range:
    """Numbers of the blocks behind a slice's own layers, of which ``before`` come in front."""
    return range(before + own_layers, blocks)


def _ends(layers: int, free_bytes: Sequence[int]) -> list[int]:
    """Where each device's share of ``layers`` ends, in whole layers by free memory."""
    # A device that doesn't tell its memory counts like the smallest that does.
    least = min((size for size in free_bytes if size), default=1)
    sizes = [size or least for size in free_bytes]
    return [round(layers * part / sum(sizes)) for part in itertools.accumulate(sizes)]
