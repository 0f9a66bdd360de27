"""Which layers of a model make a slice: its own, and layers of zeros that it can't do without.

A layer of zeros is shaped after one of the model's and adds nothing to the residual. In front of
the slice's own layers it is computed, and behind them only on the tail: elsewhere the graph stops
before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.model.hyperparameters import MAX_LAYERS
from meshnet.model.rules import Architecture, Kind

PLACEHOLDER_VOCABULARY: Final = 32
"""Tokens of a slice that neither embeds nor samples."""


@dataclass(frozen=True, slots=True)
class Structure:
    """What a model's layers are, as far as cuts go."""

    kinds: tuple[tuple[Kind, ...], ...]
    period: int
    """How often a layer's index repeats its meaning."""
    vocabulary: int

    @property
    def total(self) -> int:
        """Layers of the model."""
        return len(self.kinds)


@dataclass(frozen=True, slots=True)
class Layout:
    """A slice, layer by layer: ``before`` and ``after`` are layers of zeros."""

    before: tuple[int, ...]
    """The model's layers that they are shaped after; ``after`` likewise."""
    real: LayerRange
    after: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """For each of the slice's layers, the model's layer that it is, or is shaped after."""
        return (*self.before, *self.real, *self.after)

    @property
    def last(self) -> int:
        """Index in the slice of the last layer of its own."""
        return len(self.before) + len(self.real) - 1


def lay_out(rules: Architecture, structure: Structure, layers: LayerRange) -> Layout:
    """Add to ``layers`` the layers of zeros that the architecture's rules ask for.

    Raises :class:`~meshnet.domain.errors.ModelUnsupportedError` where none would do.
    """
    start = layers.start - layers.start % structure.period
    before = list(range(start, layers.start))
    first = before[0] if before else layers.start
    missing = _missing(rules, structure, (*before, *layers))
    if rules.first is not None and rules.first not in structure.kinds[first]:
        able = [layer for layer, kinds in enumerate(structure.kinds) if rules.first in kinds]
        before[:0] = _nearest(structure, {rules.first, *missing}, first, able)[:1]
        missing = _missing(rules, structure, (*before, *layers))
    after: list[int] = []
    while missing:
        source = _behind(structure, (*before, *layers, *after), missing)
        # A kind of dense layers alone doesn't come again behind layers with experts.
        endless = len(after) >= structure.period * len(rules.needs)
        if source is not None and not endless:
            after.append(source)
        elif structure.period == 1:
            before[:0] = _nearest(structure, missing, layers.start, range(structure.total))[:1]
        else:
            raise ModelUnsupportedError(f"{rules.name}: no slice of layers {layers} would do")
        missing = _missing(rules, structure, (*before, *layers, *after))
    if not after and layers.is_head() and not rules.whole_vocabulary:
        able = list(range(structure.total))
        if rules.last is not None:
            able = [layer for layer in able if rules.last in structure.kinds[layer]]
        after.append(min(able, key=lambda layer: abs(layer - layers.end)))
    after += _to_be_recognised(rules, structure, layers, (*before, *layers, *after))
    return Layout(tuple(before), layers, tuple(after))


def nulls_computed(layout: Layout, total: int) -> int:
    """How many layers of zeros a step computes."""
    return len(layout.before) + (len(layout.after) if layout.real.is_tail(total) else 0)


def _missing(rules: Architecture, structure: Structure, blocks: Iterable[int]) -> set[Kind]:
    """Kinds that a slice must have, which the model has and the blocks lack."""
    needed = set(rules.needs) & _covered(structure, range(structure.total))
    return needed - _covered(structure, blocks)


def _covered(structure: Structure, blocks: Iterable[int]) -> set[Kind]:
    return {kind for block in blocks for kind in structure.kinds[block]}


def _behind(structure: Structure, blocks: Sequence[int], wanted: set[Kind]) -> int | None:
    """A layer to shape the next block after: one of a kind that is wanted, if it fits there."""
    fitting = _fitting(structure, blocks)
    nearest = _nearest(structure, wanted, blocks[-1] + 1, fitting)
    if nearest or structure.period == 1:
        return nearest[0] if nearest else None
    # What is wanted comes within a period.
    return _next(blocks, fitting)


def _next(blocks: Sequence[int], fitting: Sequence[int]) -> int | None:
    """The model's next layer, if it has one, else the last that fits."""
    place = blocks[0] + len(blocks)
    return place if place in fitting else max(fitting, default=None)


def _fitting(structure: Structure, blocks: Sequence[int]) -> list[int]:
    """Layers whose index means what the next block's does, and that may follow those before it.

    How many layers in front are dense is one number, so none of those can follow one with experts.
    """
    phase = (blocks[0] + len(blocks)) % structure.period
    alike = range(phase, structure.total, structure.period)
    if "sparse" not in _covered(structure, blocks) or not alike:
        return list(alike)
    usual = "sparse" in structure.kinds[alike[-1]]
    return [layer for layer in alike if ("sparse" in structure.kinds[layer]) == usual]


def _nearest(
    structure: Structure, wanted: set[Kind], place: int, layers: Iterable[int]
) -> list[int]:
    """Those of the layers that are of a wanted kind: of the most kinds first, then the nearest."""
    having = [layer for layer in layers if wanted & set(structure.kinds[layer])]
    return sorted(
        having, key=lambda layer: (-len(wanted & set(structure.kinds[layer])), abs(layer - place))
    )


def _to_be_recognised(
    rules: Architecture, structure: Structure, layers: LayerRange, blocks: Sequence[int]
) -> list[int]:
    middle = not layers.is_head() and not layers.is_tail(structure.total)
    small = middle and not rules.whole_vocabulary
    tokens = PLACEHOLDER_VOCABULARY if small else structure.vocabulary
    model = rules.recognise(structure.total, structure.vocabulary)
    for count in range(len(blocks), MAX_LAYERS + 1):
        if rules.recognise(count, tokens) == model:
            break
    else:
        raise ModelUnsupportedError(
            f"{rules.name}: libllama recognises models by their number of layers, and would take "
            f"a slice of layers {layers} for another one whatever is added to it"
        )
    added: list[int] = []
    while len(blocks) + len(added) < count:
        sofar = (*blocks, *added)
        source = _next(sofar, _fitting(structure, sofar))
        if source is None:
            raise ModelUnsupportedError(f"{rules.name}: no slice of layers {layers} would do")
        added.append(source)
    return added
