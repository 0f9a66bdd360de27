"""Slices made with one of an architecture's rules switched off, and what notices it.

A slice that would abort must be caught by the check or by the trial. One that would give other
logits must be caught by the check, since nothing else would notice.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, Literal
from unittest import mock

from meshnet.domain.errors import InputError
from meshnet.domain.layers import LayerRange
from meshnet.engine.llamacpp.trial import Order, compute
from meshnet.model.architectures import VERIFIED
from meshnet.model.cache import SliceFile
from meshnet.model.check import check_loadable
from meshnet.model.description import describe, legal_cuts
from meshnet.model.gguf import read_index
from meshnet.model.rules import Architecture
from meshnet.model.slice_file import WrittenSlice, write_slice
from meshnet.model.slice_plan import plan_slice
from tests.support.parity import Logits, Slices, play_on
from tests.support.zoo.build import build
from tests.support.zoo.jobs import Died, run_jobs
from tests.support.zoo.parity import MANY_LAYERS, PLAY, largest_difference, spread
from tests.support.zoo.spec import ZooModel
from tests.support.zoo.table import MODELS

Notice = Literal["same", "slicer", "check", "libllama", "trial", "exact", "wrong", "late"]
"""Who notices: nobody has to, since the slice is the same as with the rule, or gives the same bits
all the same; the slicer has no such slice; the check refuses it; libllama refuses it, without
ending; it ends the trial. ``wrong`` and ``late`` (it ends a process only after it has passed the
trial) are what mustn't be."""

UNNOTICED: Final[frozenset[Notice]] = frozenset({"wrong", "late"})
CUTS: Final = 6
"""So many heads and as many tails are tried."""
ABOUT_MODELS: Final = frozenset({"variant", "refused_keys"})
"""Fields that say which models can't be cut, and nothing of the others."""
CHANGES_NO_SLICE: Final = frozenset({"name", "head_size", "tensors"})
"""Fields that say nothing of how slices are made."""


@dataclass(frozen=True, slots=True)
class WeakResult:
    """What became of a model's slices without a rule."""

    architecture: str
    variant: str
    rule: str
    notices: dict[str, int]
    detail: str = ""

    @property
    def unnoticed(self) -> int:
        """Slices that nothing would have stopped."""
        return sum(self.notices.get(notice, 0) for notice in UNNOTICED)


def rules_in(entry: Architecture) -> list[str]:
    """The rules of an architecture that can be switched off, by the names of their fields."""
    none = Architecture("none")
    return [
        field.name
        for field in fields(entry)
        if field.name not in CHANGES_NO_SLICE
        and getattr(entry, field.name) != getattr(none, field.name)
    ]


def pairs() -> list[tuple[ZooModel, str]]:
    """Each model of the table with each of its architecture's rules."""
    return [
        (model, rule)
        for model in MODELS
        if model.architecture in VERIFIED
        for rule in rules_in(VERIFIED[model.architecture])
        if model.refused == (rule in ABOUT_MODELS)
    ]


def without(model: ZooModel, rule: str, folder: Path) -> WeakResult:
    """Make the model's slices without the rule, and see who notices."""
    path = build(model, folder)
    entry = VERIFIED[model.architecture]
    weak = replace(entry, **{rule: getattr(Architecture("none"), rule)})
    seen: Counter[str] = Counter()
    details = []
    maker = _Maker(path, weak, folder)
    slices = _slices(maker)
    if not slices:
        seen["slicer"] += 1
    for layers in slices:
        notice, detail = maker.notice(layers)
        seen[notice] += 1
        if notice in UNNOTICED:
            details.append(f"{layers}: {detail}")
    return WeakResult(model.architecture, model.label, rule, dict(seen), "; ".join(details[:3]))


def _slices(maker: _Maker) -> list[LayerRange]:
    """Some heads and tails, and middles of a single layer, which lack the most."""
    with maker.weakened():
        legal = legal_cuts(describe(maker.index))
    ends = spread(legal, CUTS)
    middles = [pair for pair in itertools.pairwise(legal) if len(legal) <= MANY_LAYERS]
    return [
        *(LayerRange(0, cut) for cut in ends),
        *(LayerRange(cut, maker.total) for cut in ends),
        *(LayerRange(*pair) for pair in middles),
    ]


class _Maker:
    """Makes slices of one model by weak rules and tries them by the right ones."""

    def __init__(self, path: Path, weak: Architecture, folder: Path) -> None:
        self.index = read_index(path)
        self._weak = weak
        self._folder = folder
        self._right = Slices(path, folder / "right", PLAY)
        self.total = self._right.info.total_layers
        self._unsplit: list[Logits] = []

    def weakened(self) -> AbstractContextManager[object]:
        """While it lasts, the table lacks the rule."""
        return mock.patch.dict(VERIFIED, {self._weak.name: self._weak})

    def notice(self, layers: LayerRange) -> tuple[Notice, str]:
        """Who notices that the slice was made without the rule, and what it says."""
        try:
            made = self._make(layers)
        except InputError as error:
            return "slicer", str(error)
        right = self._right_slice(layers)
        if right is not None and right.digest == made.digest:
            return "same", ""
        return self._caught(made.path, layers) or self._together(made.path, layers)

    def _make(self, layers: LayerRange) -> WrittenSlice:
        with self.weakened():
            plan = plan_slice(self.index, layers, self._right.digest)
        return write_slice(plan, self._folder / f"{layers.start}-{layers.end}.gguf")

    def _right_slice(self, layers: LayerRange) -> SliceFile | None:
        try:
            return self._right.cut(layers)
        except InputError:
            return None

    def _together(self, made: Path, layers: LayerRange) -> tuple[Notice, str]:
        """What comes of a chain that holds the slice."""
        parts = [(made, layers)]
        for other in self._others(layers):
            right = self._right_slice(other)
            if right is not None:
                parts.append((right.path, other))
                continue
            # Only a chain of slices without the rule is possible; any may be caught.
            path = self._make(other).path
            caught = self._caught(path, other)
            if caught is not None:
                return caught
            parts.append((path, other))
        return self._played(*parts)

    def _others(self, layers: LayerRange) -> Iterator[LayerRange]:
        if not layers.is_head():
            yield LayerRange(0, layers.start)
        if not layers.is_tail(self.total):
            yield LayerRange(layers.end, self.total)

    def _caught(self, path: Path, layers: LayerRange) -> tuple[Notice, str] | None:
        try:
            check_loadable(path)
        except InputError as error:
            return "check", f"{layers}: {error}"
        return self._trial(path, layers)

    def _trial(self, made: Path, layers: LayerRange) -> tuple[Notice, str] | None:
        request = Order.of(self._right.request(made, layers)).request()
        tried = _in_child(lambda: compute(request))
        if isinstance(tried, Died):
            return ("trial" if tried.by_signal else "libllama"), tried.reason
        return None

    def _played(self, *parts: tuple[Path, LayerRange]) -> tuple[Notice, str]:
        if not self._unsplit:
            with self._right.loaded([LayerRange(0, self.total)]) as whole:
                self._unsplit = play_on(whole, self._right.info.n_vocab, PLAY)
        played = _in_child(lambda: self._distance(*parts))
        if isinstance(played, Died):
            return "late", played.reason
        return ("exact", "") if played is None else ("wrong", f"by {played}")

    def _distance(self, *parts: tuple[Path, LayerRange]) -> float | None:
        """How far a chain of them is from the unsplit model."""
        ordered = sorted(parts, key=lambda part: part[1].start)
        chain = [self._right.open(path, layers) for path, layers in ordered]
        return largest_difference(self._unsplit, play_on(chain, self._right.info.n_vocab, PLAY))


def _in_child(work: Callable[[], object]) -> object:
    """What the function returns, or how the process that called it ended."""
    return next(iter(run_jobs([None], lambda _job, _folder: work(), 1)))[1]
