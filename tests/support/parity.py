"""A chain of slices beside the unsplit model, in one process: logits to compare as bits."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.layers import LayerRange
from meshnet.domain.recipe import MAX_CHUNK_TOKENS, Recipe
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.description import describe
from meshnet.model.gguf import read_index

Logits = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Play:
    """What is played: so many tokens of prompt in chunks, then greedy decode steps."""

    prompt_tokens: int
    decode_steps: int
    threads: int = 1
    chunk_tokens: int = MAX_CHUNK_TOKENS
    kv_type: str = "f16"
    flash_attention: bool = False

    @property
    def context_length(self) -> int:
        """Enough for all of it."""
        return self.prompt_tokens + self.decode_steps


class Slices:
    """Loads any range of a model."""

    def __init__(self, model: Path, cache: Path, play: Play) -> None:
        self._model = model
        self._cache = SliceCache(cache)
        self._play = play
        self.info = describe(read_index(model))
        self.digest = self._cache.digest(model)

    @contextmanager
    def loaded(self, ranges: Sequence[LayerRange]) -> Iterator[list[LlamaContext]]:
        """Contexts over ``ranges``, freed on the way out."""
        with ExitStack() as stack:
            contexts = []
            for layers in ranges:
                context = self.load(layers)
                stack.callback(context.close)
                contexts.append(context)
            yield contexts

    def load(self, layers: LayerRange) -> LlamaContext:
        """A context over ``layers``; the caller closes it."""
        cut = self.cut(layers)
        return self.open(cut.path, layers)

    def cut(self, layers: LayerRange) -> SliceFile:
        """The slice's file."""
        return self._cache.ensure(self._model, layers)

    def request(self, path: Path, layers: LayerRange) -> LoadRequest:
        """What loads a file that holds ``layers``."""
        play = self._play
        recipe = Recipe(
            self.digest,
            "libllama",
            "test",
            kv_type_k=play.kv_type,
            kv_type_v=play.kv_type,
            flash_attention=play.flash_attention,
            chunk_tokens=play.chunk_tokens,
        )
        limits = EngineLimits(play.context_length, max_sessions=1, threads=play.threads)
        total = self.info.total_layers
        return LoadRequest(path, layers.start, layers.end, total, recipe, limits)

    def open(self, path: Path, layers: LayerRange) -> LlamaContext:
        """A context over a file that holds ``layers``; the caller closes it."""
        return LlamaContext(self.request(path, layers), max_outputs=self._play.chunk_tokens)


def play_chain(slices: Slices, cuts: Sequence[int], play: Play, seed: int = 1) -> list[Logits]:
    """Logits of every prompt row, then of every decode step; no cuts means the unsplit model."""
    edges = [0, *cuts, slices.info.total_layers]
    ranges = [LayerRange(a, b) for a, b in itertools.pairwise(edges)]
    with slices.loaded(ranges) as contexts:
        return play_on(contexts, slices.info.n_vocab, play, seed)


def play_on(
    contexts: Sequence[LlamaContext], n_vocab: int, play: Play, seed: int = 1
) -> list[Logits]:
    """The same on contexts that are loaded, and whose caches are empty."""
    draw = np.random.default_rng(seed)
    prompt = [int(token) for token in draw.integers(0, n_vocab, play.prompt_tokens)]
    made = [
        _step(contexts, start, prompt[start : start + play.chunk_tokens])
        for start in range(0, len(prompt), play.chunk_tokens)
    ]
    position = len(prompt)
    for _ in range(play.decode_steps):
        made.append(_step(contexts, position, [int(made[-1][-1].argmax())]))
        position += 1
    return made


def _step(contexts: Sequence[LlamaContext], position: int, tokens: Sequence[int]) -> Logits:
    rows = Rows(0, position, tuple(tokens), outputs=len(tokens) if len(contexts) == 1 else 0)
    out = contexts[0].decode([rows]).copy()
    for context in contexts[1:]:
        wanted = 0 if context.taps else len(tokens)
        out = context.decode([Rows(0, position, embeddings=out, outputs=wanted)]).copy()
    return out


def differing(unsplit: Sequence[Logits], split: Sequence[Logits]) -> list[int]:
    """The steps at which any bit differs."""
    return [
        step
        for step, (a, b) in enumerate(zip(unsplit, split, strict=True))
        if a.tobytes() != b.tobytes()
    ]
