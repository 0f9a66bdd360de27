"""Half-open layer ranges and the rules by which they join into a chain."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from meshnet.domain.errors import InvalidArgumentError, LayerRangeError


@dataclass(frozen=True, slots=True, order=True)
class LayerRange:
    """Layers ``[start, end)`` of a model; never empty, never negative.

    Raises :class:`LayerRangeError` at construction otherwise.
    """

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise LayerRangeError(
                f"layer range [{self.start}, {self.end}) must satisfy 0 <= start < end"
            )

    def __len__(self) -> int:
        return self.end - self.start

    def __contains__(self, layer: object) -> bool:
        return isinstance(layer, int) and self.start <= layer < self.end

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"

    def within(self, total_layers: int) -> LayerRange:
        """This range, after checking that a model of ``total_layers`` layers has it."""
        if self.end > total_layers:
            raise LayerRangeError(
                f"layers {self} are out of bounds: the model has {total_layers} layers, "
                f"so a range ends at {total_layers} at most"
            )
        return self

    def is_head(self) -> bool:
        """Whether this range holds layer 0."""
        return self.start == 0

    def is_tail(self, total_layers: int) -> bool:
        """Whether this range holds the last of ``total_layers`` layers."""
        return self.end == total_layers


def parse_layer_range(text: str) -> LayerRange:
    """Read ``A:B``; raises :class:`InvalidArgumentError` for anything else."""
    match = re.fullmatch(r"(\d+):(\d+)", text.strip())
    if match is None:
        raise InvalidArgumentError("layers", f"{text!r} is not a range of the form A:B")
    return LayerRange(int(match[1]), int(match[2]))


def require_chain(ranges: Sequence[LayerRange], total_layers: int) -> None:
    """Check that ``ranges`` cover ``[0, total_layers)`` in order, without a gap or an overlap."""
    expected = 0
    for held in ranges:
        if held.start != expected:
            raise LayerRangeError(
                f"the chain breaks at layer {expected}: the next shard holds {held}; "
                f"ranges must join and be given in order"
            )
        expected = held.end
    if expected != total_layers:
        raise LayerRangeError(
            f"the chain covers layers [0, {expected}), but the model has {total_layers}"
        )


def balanced_ranges(
    weights: Sequence[float], tail_weight: float, shards: int, cuts: Collection[int]
) -> tuple[LayerRange, ...]:
    """``shards`` ranges over all layers, of which the heaviest is as light as can be.

    ``weights`` has an entry a layer, in any unit; ``tail_weight`` is what the last range carries
    besides, such as the output matrix. Cuts may lie before the layers in ``cuts`` alone. Among
    equally good ways, one is preferred whose other ranges weigh alike too. Raises
    :class:`InvalidArgumentError` if the cuts allow fewer shards.
    """
    total = len(weights)
    edges = sorted({0, total} | {cut for cut in cuts if 0 < cut < total})
    if not 1 <= shards < len(edges):
        raise InvalidArgumentError(
            "nodes",
            f"{shards} shards of a model that can be cut into {len(edges) - 1}; ask for 1 to "
            f"{len(edges) - 1}",
        )
    before = [0.0, *itertools.accumulate(weights)]
    # best[i]: the heaviest range, the sum of squares and the edges of the best way to edges[i].
    best: list[tuple[float, float, tuple[int, ...]] | None] = [(0.0, 0.0, (0,))]
    best += [None] * (len(edges) - 1)
    for _ in range(shards):
        best = [_lightest(best, edges, before, tail_weight, end) for end in range(len(edges))]
    found = best[-1]
    if found is None:
        raise InvalidArgumentError("nodes", f"no {shards} shards cover the model")
    return tuple(LayerRange(a, b) for a, b in itertools.pairwise(found[2]))


def _lightest(
    best: Sequence[tuple[float, float, tuple[int, ...]] | None],
    edges: Sequence[int],
    before: Sequence[float],
    tail_weight: float,
    end: int,
) -> tuple[float, float, tuple[int, ...]] | None:
    """The best way to reach ``edges[end]`` with one range more than the ways in ``best``."""
    extra = tail_weight if end == len(edges) - 1 else 0.0
    ways = []
    for start in range(end):
        way = best[start]
        if way is not None:
            weight = before[edges[end]] - before[edges[start]] + extra
            ways.append((max(way[0], weight), way[1] + weight**2, (*way[2], edges[end])))
    return min(ways, default=None)
