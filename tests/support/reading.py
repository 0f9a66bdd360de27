"""A generation as its reader gets it, to be compared with another one."""

from __future__ import annotations

from dataclasses import dataclass

from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.session.generate import ChainModel
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from tests.support.dying import Dying


@dataclass(frozen=True, slots=True)
class Stream:
    """What a reader gets."""

    text: str
    tokens: tuple[GeneratedToken, ...]
    finish: FinishReason
    usage: tuple[int, int, int]
    stop_string: str | None


async def read(model: ChainModel, request: TextRequest) -> tuple[Stream, GenerationSummary]:
    """All of it, and the summary at its end."""
    text: list[str] = []
    tokens: list[GeneratedToken] = []
    summary: GenerationSummary | None = None
    async for event in model.generate(request):
        if isinstance(event, TextDelta):
            text.append(event.text)
            tokens += event.tokens
        else:
            summary = event
    assert summary is not None
    usage = (summary.prompt_tokens, summary.completion_tokens, summary.cached_tokens)
    told = Stream("".join(text), tuple(tokens), summary.finish_reason, usage, summary.stop_string)
    return told, summary


async def undisturbed(nodes: Dying, request: TextRequest) -> Stream:
    """What a reader gets while nobody dies."""
    nodes.begin()
    told, summary = await read(nodes.model, request)
    assert summary.pauses == ()
    return told
