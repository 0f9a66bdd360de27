"""One model's cuts beside the whole: what every chain of slices computes, compared as bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

from meshnet.domain.errors import ModelUnsupportedError
from meshnet.domain.layers import LayerRange
from meshnet.engine.llamacpp.context import LlamaContext
from meshnet.model.check import check_loadable
from meshnet.model.description import legal_cuts, nulls_of, require_legal
from tests.support.parity import Logits, Play, Slices, play_on
from tests.support.zoo.build import build
from tests.support.zoo.results import Result
from tests.support.zoo.spec import F32, ZooModel

PLAY = Play(prompt_tokens=40, decode_steps=8, threads=1, chunk_tokens=16)
"""Windows are of 8 tokens, so text, chunks and steps all reach beyond them."""
MANY_LAYERS = 20
FEW = 6
"""So many two-way cuts are played of models with more layers than that."""
QUANTIZED = 4
"""So many of models that aren't F32: their rules are the same, and their kernels alike."""


class Chains:
    """Plays any chain of a model's slices; each range is loaded once."""

    def __init__(self, model: Path, cache: Path, play: Play = PLAY) -> None:
        self._slices = Slices(model, cache, play)
        self._play = play
        self._open: dict[LayerRange, LlamaContext] = {}
        self._stack = ExitStack()
        self.info = self._slices.info

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def play(self, cut: Sequence[int] = ()) -> list[Logits]:
        """The logits of every step; no cuts means the unsplit model."""
        return self.play_ranges(self.ranges(cut))

    def play_ranges(self, ranges: Sequence[LayerRange]) -> list[Logits]:
        """The same for any ranges, be they a whole model or not."""
        contexts = [self._context(layers) for layers in ranges]
        for context in contexts:
            context.clear()
        return play_on(contexts, self.info.n_vocab, self._play)

    def ranges(self, cut: Sequence[int]) -> list[LayerRange]:
        """The slices of a cut."""
        edges = [0, *cut, self.info.total_layers]
        return [LayerRange(a, b) for a, b in itertools.pairwise(edges)]

    def allowed(self, cut: Sequence[int]) -> bool:
        """Whether the package cuts the model so."""
        try:
            for layers in self.ranges(cut):
                require_legal(self.info, layers)
        except ModelUnsupportedError:
            return False
        return True

    def nulls(self, cut: Sequence[int]) -> int:
        """The most layers of zeros that a slice of the cut computes."""
        return max(nulls_of(self.info, layers) for layers in self.ranges(cut))

    def _context(self, layers: LayerRange) -> LlamaContext:
        if layers not in self._open:
            cut = self._slices.cut(layers)
            check_loadable(cut.path)
            context = self._slices.open(cut.path, layers)
            self._stack.callback(context.close)
            self._open[layers] = context
        return self._open[layers]


def compare(model: ZooModel, folder: Path, *, quick: bool = False) -> Result:
    """Build the model and play its cuts; what ends the process is for the caller to see."""
    path = build(model, folder)
    with Chains(path, folder / "cache") as chains:
        if chains.info.obstacle:
            return _result(model, "refused", chains.info.obstacle)
        unsplit = chains.play()
        if not all(np.isfinite(logits).all() for logits in unsplit):
            return _result(model, "failed", "the unsplit model's logits aren't finite")
        return _compared(model, chains, unsplit, list(_cuts(model, chains, quick=quick)))


def cuts_of(total: int, legal: Sequence[int], *, at_most: int = 0) -> list[tuple[int, ...]]:
    """Two-way cuts, and three-way cuts around a single layer; of many layers a part of them.

    ``at_most`` so many two-way cuts alone, from the first to the last, if it is given.
    """
    if at_most:
        return [(cut,) for cut in spread(legal, at_most)]
    chosen = legal if total <= MANY_LAYERS else spread(legal, FEW)
    around = [pair for pair in itertools.pairwise(legal) if pair[0] in chosen]
    return [*((cut,) for cut in chosen), *around]


def spread(items: Sequence[int], count: int) -> list[int]:
    """So many of them, evenly, the ends included."""
    last = len(items) - 1
    if last < count:
        return list(items)
    return [items[round(place * last / (count - 1))] for place in range(count)]


def _cuts(model: ZooModel, chains: Chains, *, quick: bool) -> Iterator[tuple[int, ...]]:
    total, legal = chains.info.total_layers, legal_cuts(chains.info)
    if quick:
        middle = len(legal) // 2
        chosen = [*cuts_of(total, legal[middle : middle + 1]), *itertools.pairwise(legal[:2])]
    else:
        chosen = cuts_of(total, legal, at_most=0 if model.quantization is F32 else QUANTIZED)
    for cut in chosen:
        if chains.allowed(cut):
            yield cut


def _compared(
    model: ZooModel, chains: Chains, unsplit: list[Logits], cuts: Sequence[tuple[int, ...]]
) -> Result:
    wrong = {}
    for cut in cuts:
        distance = largest_difference(unsplit, chains.play(cut))
        if distance is not None:
            wrong[cut] = distance
    idle = [pair[0] for pair in cuts if len(pair) == 2 and not _matters(chains, pair, unsplit)]
    if idle:
        return _result(model, "failed", f"without layers {idle} the logits are the same")
    total = chains.info.total_layers
    legal = [cut for cut in legal_cuts(chains.info) if chains.allowed((cut,))]
    return _result(
        model,
        "differs" if wrong else "exact",
        _in_words(wrong),
        cuts=len(cuts),
        impossible_cuts=total - 1 - len(legal),
        nulls=max(map(chains.nulls, cuts), default=0),
    )


def _matters(chains: Chains, around: Sequence[int], unsplit: list[Logits]) -> bool:
    """Whether a chain that leaves out the layer between two cuts gives other logits."""
    head, _, tail = chains.ranges(around)
    return largest_difference(unsplit, chains.play_ranges([head, tail])) is not None


def _in_words(wrong: dict[tuple[int, ...], float]) -> str:
    if not wrong:
        return ""
    worst = max(wrong, key=wrong.__getitem__)
    return f"{len(wrong)} cuts, most at {worst} by {wrong[worst]:.2g}"


def _result(model: ZooModel, outcome: str, detail: str = "", **figures: int) -> Result:
    return Result(
        model.architecture,
        model.label,
        model.quantization.name,
        model.layers,
        outcome,  # type: ignore[arg-type]
        detail,
        **figures,
    )


def largest_difference(unsplit: Sequence[Logits], split: Sequence[Logits]) -> float | None:
    """None where all bits agree, else the largest distance of any two logits."""
    if all(a.tobytes() == b.tobytes() for a, b in zip(unsplit, split, strict=True)):
        return None
    return max(float(np.abs(a - b).max()) for a, b in zip(unsplit, split, strict=True))
