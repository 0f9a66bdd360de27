"""A gateway over two nodes with a model of random weights, whose template shows calls of tools.

Only grammars make sense of its answers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.session.generate import ChainModel
from tests.support.gguf_values import CHAT_TEMPLATE
from tests.support.live_gateway import live_gateway
from tests.support.llama_mesh import llama_mesh
from tests.support.mesh import LAYERS
from tests.support.tiny_gguf import TinyModel, build

TEMPLATE = (
    '{% if tools %}{{ tools }} <tool_call>{"name": n, "arguments": a}</tool_call>{% endif %}'
    + CHAT_TEMPLATE
)


@asynccontextmanager
async def tiny_server(path: Path) -> AsyncIterator[str]:
    """Serve the model ``tiny`` and yield the URL; its files are written to the folder ``path``."""
    described = {"tokenizer.chat_template": TEMPLATE}
    model = build(path / "tiny.gguf", TinyModel(layers=LAYERS), described=described)
    async with llama_mesh(model, path / "cache", (3,), context_length=2048) as nodes:
        with Vocabulary.load(model) as vocabulary, closing(LlamaGrammars(model)) as grammars:
            chain = await nodes.chain()
            served = ChainModel("tiny", vocabulary, chain, nodes.channels, grammars=grammars)
            async with live_gateway(served) as url:
                yield url
