"""What a whole model on libllama says, computed in this process without any of the nodes."""

from __future__ import annotations

from pathlib import Path

from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.model.description import describe
from meshnet.model.gguf import read_index


def unsplit_tokens(model: Path, prompt: str, count: int) -> list[int]:
    """``count`` tokens after a raw prompt of up to 128 tokens, the likeliest one each time."""
    layers = describe(read_index(model)).total_layers
    recipe = Recipe(Digest("sha256:" + "0" * 64), "libllama", "test")
    limits = EngineLimits(context_length=512, max_sessions=1)
    context = LlamaContext(LoadRequest(model, 0, layers, layers, recipe, limits), max_outputs=1)
    try:
        with Vocabulary.load(model) as vocabulary:
            rows = vocabulary.tokenize(prompt, add_special=True, parse_special=True)
        tokens: list[int] = []
        position = 0
        while len(tokens) < count:
            logits = context.decode([Rows(0, position, rows, outputs=1)])
            position += len(rows)
            tokens.append(int(logits[-1].argmax()))
            rows = (tokens[-1],)
        return tokens
    finally:
        context.close()
