"""On libllama too, a reused prefix changes no token: tiny models, one to three nodes."""

import itertools
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from gguf import GGMLQuantizationType

from meshnet.domain.frames import GenerationDone, SessionOpened, TokenReply
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.layers import LayerRange
from meshnet.domain.recipe import Recipe
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.model.cache import SliceCache
from tests.support.mesh import GREEDY, LAYERS, PENALISED, Mesh, Setup, start
from tests.support.tiny_gguf import VOCABULARY, TinyModel, build

KINDS = {
    "f32": GGMLQuantizationType.F32,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_1": GGMLQuantizationType.Q4_1,
}
SETUP = Setup(chunk_tokens=16, context_length=256, engine_sessions=4, keep_seconds=60.0)


class LlamaMesh(Mesh):
    """The chain of :class:`Mesh`, of slices of a GGUF file."""

    def __init__(self, setup: Setup, model: Path, cache: Path) -> None:
        super().__init__(setup)
        self._model = model
        self._cache = SliceCache(cache)

    def _engine(self, number, layers, naps):
        cut = self._cache.ensure(self._model, layers)
        recipe = Recipe(cut.model_digest, "libllama", "test", chunk_tokens=self.setup.chunk_tokens)
        limits = EngineLimits(self.setup.context_length, self.setup.engine_sessions)
        engine = LlamaShardEngine()
        engine.load(LoadRequest(cut.path, layers.start, layers.end, LAYERS, recipe, limits))
        return engine


@asynccontextmanager
async def llama_mesh(
    cuts: tuple[int, ...], setup: Setup, model: Path, cache: Path
) -> AsyncIterator[LlamaMesh]:
    made = LlamaMesh(setup, model, cache)
    try:
        for begin, end in itertools.pairwise([0, *cuts, LAYERS]):
            await made.add(LayerRange(begin, end))
        yield made
        await made.channels.close()
        await made.idle()
    finally:
        await made.close()
        for node in made.nodes:
            node.engine.close()  # type: ignore[attr-defined]


async def generated(
    chain: Mesh, prompt: tuple[int, ...], count: int, sampling: SamplingParams
) -> tuple[list[tuple[int, float | None]], int]:
    """The tokens with their log-probabilities, and how much of the prompt was cached."""
    spec = GenerationSpec(prompt, replace(sampling, logprobs=True), count)
    listener, _ = start(await chain.channel(), chain.terms(), spec)
    tokens: list[tuple[int, float | None]] = []
    cached = 0
    while not isinstance(reply := await listener.next(20.0), GenerationDone):
        if isinstance(reply, SessionOpened):
            cached = reply.cached_tokens
        else:
            assert isinstance(reply, TokenReply), reply
            tokens.append((reply.token.token_id, reply.token.logprob))
    return tokens, cached


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [(), (3,), (2, 4)], ids=["1", "2", "3 nodes"])
async def test_a_conversation_gets_the_same_tokens_with_and_without_reuse(kind, cuts, tmp_path):
    architecture = "gemma3" if kind == "f32" else "llama"
    model = build(
        tmp_path / "model.gguf",
        TinyModel(architecture, layers=LAYERS, quantization=KINDS[kind]),
    )
    draw = random.Random(1)

    def words(count: int) -> tuple[int, ...]:
        return tuple(draw.randrange(3, VOCABULARY) for _ in range(count))

    system = words(37)
    conversation = (*system, *words(20))
    async with (
        llama_mesh(cuts, SETUP, model, tmp_path) as reusing,
        llama_mesh(cuts, replace(SETUP, keep_seconds=0.0), model, tmp_path) as plain,
    ):
        for turn, sampling in enumerate((GREEDY, PENALISED, GREEDY)):
            tokens, cached = await generated(reusing, conversation, 12, sampling)
            expected, none = await generated(plain, conversation, 12, sampling)
            assert (tokens, none) == (expected, 0)
            assert cached >= (32 if turn else 0), f"turn {turn}"
            conversation = (*conversation, *(token for token, _ in tokens), *words(9))
        # Another conversation with the same system prompt.
        other = (*system, *words(15))
        tokens, cached = await generated(reusing, other, 12, GREEDY)
        assert tokens == (await generated(plain, other, 12, GREEDY))[0]
        assert cached >= 32
