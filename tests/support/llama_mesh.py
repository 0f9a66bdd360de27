"""A chain in one process, like ``tests.support.mesh``, on libllama with a model of six layers."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from meshnet.domain.layers import LayerRange
from meshnet.engine.base import EngineLimits
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.model.cache import SliceCache
from tests.support.llama_bench import CHUNK, load_request
from tests.support.mesh import LAYERS, Mesh, Setup

SESSIONS = 4


class LlamaMesh(Mesh):
    """Nodes over slices of one file."""

    def __init__(self, model: Path, cache: Path, context_length: int = 256) -> None:
        super().__init__(
            Setup(chunk_tokens=CHUNK, engine_sessions=SESSIONS, context_length=context_length)
        )
        self._model = model
        self._slices = SliceCache(cache)

    def _engine(  # type: ignore[override]
        self, _number: int, layers: LayerRange, _naps: list[tuple[float, float]]
    ) -> LlamaShardEngine:
        engine = LlamaShardEngine()
        cut = self._slices.ensure(self._model, layers)
        engine.load(load_request(cut, EngineLimits(self.setup.context_length, SESSIONS)))
        return engine


@asynccontextmanager
async def llama_mesh(
    model: Path, cache: Path, cuts: Iterable[int], context_length: int = 256
) -> AsyncIterator[LlamaMesh]:
    """Nodes that share the model's layers at ``cuts``; in the end all of them must be idle."""
    made = LlamaMesh(model, cache, context_length)
    try:
        for start, end in itertools.pairwise([0, *cuts, LAYERS]):
            await made.add(LayerRange(start, end))
        yield made
        await made.idle()
    finally:
        await made.close()
        for node in made.nodes:
            node.engine.close()  # type: ignore[attr-defined]
