"""What one answer uses, counted while it is made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from starlette.requests import ClientDisconnect

from meshnet.domain.errors import MeshnetError
from meshnet.domain.generation import FinishReason
from meshnet.domain.status import StatusCode
from meshnet.gateway.openai import Call
from meshnet.gateway.requestlog import log
from meshnet.session.service import GenerationSummary, Opened, TextDelta, TextRequest
from meshnet.tracker.usage import GenerationUse, UsageRecord, joined

DONE = "done"
"""The end of an answer that nothing cut short."""
LEFT = "left"
"""The end of one whose client went, or whose gateway was stopped."""


def end_of(error: BaseException) -> str:
    """How an answer ended by an error: ``left``, or the error's code."""
    if isinstance(error, ClientDisconnect | asyncio.CancelledError):
        return LEFT
    return (error.code if isinstance(error, MeshnetError) else StatusCode.INTERNAL).value


@dataclass(slots=True)
class _Choice:
    prompt_tokens: int
    began: bool = False
    completion_tokens: int = 0
    opened: Opened | None = None
    summary: GenerationSummary | None = None

    def use(self) -> GenerationUse:
        """What it used so far."""
        opened, summary = self.opened, self.summary
        cached = opened.cached_tokens if opened is not None else 0
        return GenerationUse(
            self.prompt_tokens,
            summary.cached_tokens if summary is not None else cached,
            self.completion_tokens,
            opened.hops if opened is not None else (),
            summary.timings if summary is not None else (),
            ended=summary is not None
            and summary.finish_reason is FinishReason.STOP
            and summary.stop_string is None,
            signed=opened is not None and opened.signed,
        )


class Tally:
    """The choices of one answer."""

    def __init__(self, reply_id: str, call: Call) -> None:
        self._reply_id = reply_id
        self._model = call.model.name
        self._n = call.n
        self._began_unix = time.time()
        self._began = time.monotonic()
        self._choices = [_Choice(len(request.prompt)) for request in call.requests]

    def watched(self, index: int, request: TextRequest) -> TextRequest:
        """The request of a choice, which now tells here when a node lets it in."""
        opened: Callable[[Opened], None] = partial(self._opened, index)
        return replace(request, on_open=opened)

    def take(self, index: int, event: TextDelta | GenerationSummary) -> None:
        """Count an event of a choice."""
        choice = self._choices[index]
        choice.began = True
        if isinstance(event, TextDelta):
            choice.completion_tokens += len(event.tokens)
        else:
            choice.summary = event

    def record(self, request_id: str, key_id: str, end: str) -> UsageRecord | None:
        """What the answer used; None if none of its generations came so far as to begin.

        A prompt counts once, however many choices it has, as in the answer's ``usage``.
        """
        begun = [choice.use() for choice in self._choices if choice.began or choice.opened]
        if not begun:
            return None
        prompts = [self._prompt(first) for first in range(0, len(self._choices), self._n)]
        return UsageRecord(
            entry_id=self._reply_id,
            request_id=request_id,
            key_id=key_id,
            model=self._model,
            began_unix=int(self._began_unix),
            seconds=time.monotonic() - self._began,
            end=end,
            prompt_tokens=sum(use.prompt_tokens for use in prompts if use is not None),
            cached_tokens=sum(use.cached_tokens for use in prompts if use is not None),
            completion_tokens=sum(use.completion_tokens for use in begun),
            token_layers=sum(use.token_layers for use in begun),
            nodes=joined(begun),
        )

    def _prompt(self, first: int) -> GenerationUse | None:
        """The first choice of a prompt that began."""
        choices = self._choices[first : first + self._n]
        return next((each.use() for each in choices if each.began or each.opened), None)

    def _opened(self, index: int, opened: Opened) -> None:
        self._choices[index].opened = opened
        # The nodes' own lines name the session.
        log.info("%s is session %s at %s", self._reply_id, opened.session_id, opened.hops[0])
