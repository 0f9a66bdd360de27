"""A shard on libllama by itself, and steps with random inputs for it."""

from __future__ import annotations

import numpy as np
from gguf import GGMLQuantizationType

from meshnet.domain.ids import RouteSessionId, SessionKey
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.recipe import Recipe
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.base import (
    DecodeRequest,
    EngineLimits,
    LoadRequest,
    PrefillRequest,
    StepResult,
    TokenChoice,
)
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.model.cache import SliceFile
from tests.support.tiny_gguf import TinyModel

CHUNK = 16
LAYERS = 4
SHARDS = {"head": (0, 1), "middle": (1, 3), "tail": (3, 4), "whole": (0, 4)}
MODELS = {
    "llama": TinyModel("llama", layers=LAYERS, quantization=GGMLQuantizationType.Q8_0),
    "gemma3": TinyModel("gemma3", layers=LAYERS),
    "qwen3moe": TinyModel("qwen3moe", layers=LAYERS, quantization=GGMLQuantizationType.F16),
}
"""Decode steps share a batch in the first alone; see ``exactness``."""


def key(name: str) -> SessionKey:
    """A session's key."""
    return SessionKey(RouteSessionId(name), 0)


def load_request(cut: SliceFile, limits: EngineLimits) -> LoadRequest:
    """Load a slice with chunks of 16 rows."""
    recipe = Recipe(cut.model_digest, "libllama", "test", chunk_tokens=CHUNK)
    layers = cut.layers
    return LoadRequest(cut.path, layers.start, layers.end, cut.total_layers, recipe, limits)


class Bench:
    """A loaded shard with room for four sessions, and steps with random inputs for it."""

    def __init__(self, cut: SliceFile, limits: EngineLimits | None = None) -> None:
        self.engine = LlamaShardEngine()
        self.limits = limits or EngineLimits(context_length=64, max_sessions=4)
        self.engine.load(load_request(cut, self.limits))
        self.held = self.engine.capabilities()
        self.steps: dict[str, int] = {}

    def _expectation(self, position: int) -> CacheExpectation:
        return CacheExpectation(CacheMode.EXACT if position else CacheMode.FRESH, position)

    def request(
        self, name: str, position: int, rows: int, choice: TokenChoice | None = None
    ) -> PrefillRequest:
        """Inputs are equal for equal names and positions."""
        self.steps[name] = self.steps.get(name, -1) + 1
        draw = [np.random.default_rng([ord(name), position + i]) for i in range(rows)]
        tokens: tuple[int, ...] = ()
        bundle: BoundaryBundle | None = None
        if self.held.is_head:
            tokens = tuple(int(each.integers(0, 256)) for each in draw)
        else:
            data = np.stack([each.standard_normal(self.held.n_embd, np.float32) for each in draw])
            tensor = EngineTensor(RESIDUAL, DType.FLOAT32, data.shape, data.tobytes())
            bundle = BoundaryBundle((tensor,))
        return PrefillRequest(
            SessionKey(RouteSessionId(name), 0),
            position,
            self._expectation(position),
            self.steps[name],
            tokens,
            bundle,
            choice or TokenChoice(),
        )

    def decode(
        self, name: str, position: int, choice: TokenChoice | None = None, rows: int = 1
    ) -> DecodeRequest:
        """Like :meth:`request`, as a decode step."""
        request = self.request(name, position, rows, choice)
        return DecodeRequest(
            request.key,
            position,
            request.expectation,
            request.idempotency_step,
            request.token_ids,
            request.input,
            request.choice,
        )

    def prefilled(self, *names: str) -> None:
        """Open sessions of five positions."""
        for name in names:
            good(self.engine.prefill(self.request(name, 0, 5)))

    def release(self, name: str) -> None:
        """Forget a session, so that its name can be used anew."""
        self.engine.release(SessionKey(RouteSessionId(name), 0))
        self.steps.pop(name, None)


def good(result: StepResult) -> object:
    """The output of a step that must have worked."""
    assert result.status.ok, result.status
    return result.output
