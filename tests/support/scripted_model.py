"""A model service that says what it is told to, when it is told to."""

from __future__ import annotations

import asyncio
import codecs
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass

from meshnet.domain.errors import ContextLengthError, MeshnetError
from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.domain.ids import Address, Digest, NodeId, RouteSessionId
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import LifecycleState
from meshnet.domain.nodes import Capability, FlowControl, HealthReport, Hop
from meshnet.domain.recipe import Fingerprint
from meshnet.domain.sampling import SamplingParams, TokenLogprob
from meshnet.engine.tokenizer import ByteTokenizer, Tokenizer
from meshnet.session.service import GenerationSummary, Opened, TextDelta, TextRequest

Node = tuple[Capability, HealthReport]
READY = HealthReport(LifecycleState.READY)
OPENED = Opened(
    RouteSessionId("gen-scripted"),
    (
        Hop(NodeId("head"), Address("head:1"), LayerRange(0, 3)),
        Hop(NodeId("tail"), Address("tail:1"), LayerRange(3, 4)),
    ),
    cached_tokens=0,
)
"""What every generation says when it begins."""


@dataclass(frozen=True, slots=True)
class Script:
    """One generation: its text, a byte a token, and what happens on the way."""

    text: str = "Hello, world!"
    delay_seconds: float = 0.0
    """Before each token."""
    error: Exception | None = None
    error_at: int = 0
    """Index of the token in whose place ``error`` comes."""
    closing_seconds: float = 0.0
    """How long the generation takes to end after it was cancelled."""


def scripted_node(
    name: str,
    layers: LayerRange,
    total_layers: int,
    health: HealthReport = READY,
) -> Node:
    """A node of a chain, with the health it reports."""
    digest = Digest("sha256:" + "0" * 64)
    capability = Capability(
        node_id=NodeId(name),
        layers=layers,
        total_layers=total_layers,
        fingerprint=Fingerprint(digest, digest, "scripted"),
        slice_digest=digest,
        architecture="scripted",
        context_length=1024,
        flow=FlowControl(),
    )
    return capability, health


class Templated:
    """Bytes, with a chat template of one's own."""

    end_of_generation = ByteTokenizer.end_of_generation
    n_vocab = ByteTokenizer.n_vocab
    bos_token = ByteTokenizer.bos_token
    eos_token = ByteTokenizer.eos_token

    def __init__(self, chat_template: str) -> None:
        self.chat_template: str | None = chat_template
        self._bytes = ByteTokenizer()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        return self._bytes.tokenize(text, add_special=add_special, parse_special=parse_special)

    def piece(self, token_id: int, *, special: bool) -> bytes:
        return self._bytes.piece(token_id, special=special)


class ScriptedModel:
    """A ``ModelService``; plays one script for all requests, or the one ``script`` makes for each.

    ``requests``, ``conversations`` and ``cancelled`` record what came in; ``running`` counts the
    generations that haven't ended.
    """

    def __init__(
        self,
        script: Script | Callable[[TextRequest], Script] = Script(),
        *,
        name: str = "scripted",
        context_length: int = 1024,
        template_error: MeshnetError | None = None,
        template: str | None = None,
        prompt_end: str = "",
    ) -> None:
        """``template`` tells the format of calls and reasoning; ``prompt_end`` ends every prompt
        that is made of messages."""
        self._script = script
        self._name = name
        self._context_length = context_length
        self._template_error = template_error
        self._tokenizer: Tokenizer = ByteTokenizer() if template is None else Templated(template)
        self._prompt_end = prompt_end
        self.nodes: tuple[Node, ...] | Exception = (
            scripted_node("head", LayerRange(0, 2), 4),
            scripted_node("tail", LayerRange(2, 4), 4),
        )
        self.node_seconds = 0.0
        self.grammars: list[str] = []
        self.grammar_error: MeshnetError | None = None
        self.requests: list[TextRequest] = []
        self.conversations: list[Sequence[Mapping[str, object]]] = []
        self.tools: list[Sequence[Mapping[str, object]] | None] = []
        self.cancelled: list[TextRequest] = []
        self.running = 0

    @property
    def name(self) -> str:
        return self._name

    @property
    def created_unix(self) -> int:
        return 1_700_000_000

    @property
    def context_length(self) -> int:
        return self._context_length

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    def prompt_from_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> tuple[int, ...]:
        if self._template_error is not None:
            raise self._template_error
        self.conversations.append(messages)
        self.tools.append(tools)
        turns = "".join(f"{turn['role']}: {turn['content']}\n" for turn in messages)
        return self.prompt_from_text(turns + self._prompt_end)

    def prompt_from_text(self, text: str) -> tuple[int, ...]:
        return self._tokenizer.tokenize(text, add_special=False, parse_special=False)

    def require_grammar(self, grammar: str) -> None:
        self.grammars.append(grammar)
        if self.grammar_error is not None:
            raise self.grammar_error

    async def generate(
        self, request: TextRequest
    ) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        self.requests.append(request)
        if len(request.prompt) >= self._context_length:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt)} tokens, "
                f"but the context holds {self._context_length}"
            )
        script = self._script if isinstance(self._script, Script) else self._script(request)
        self.running += 1
        if request.on_open is not None:
            request.on_open(OPENED)
        try:
            async for event in self._play(script, request):
                yield event
        except (asyncio.CancelledError, GeneratorExit):
            await asyncio.sleep(script.closing_seconds)
            self.cancelled.append(request)
            raise
        finally:
            self.running -= 1

    async def chain(self) -> tuple[Node, ...]:
        await asyncio.sleep(self.node_seconds)
        if isinstance(self.nodes, Exception):
            raise self.nodes
        return self.nodes

    async def _play(
        self, script: Script, request: TextRequest
    ) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        ids = self._tokenizer.tokenize(script.text, add_special=False, parse_special=False)
        limit = request.max_new_tokens or len(ids) + 1
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, shown = "", 0
        for index, token_id in enumerate(ids[:limit]):
            await asyncio.sleep(script.delay_seconds)
            if script.error is not None and index == script.error_at:
                raise script.error
            token = _token(len(request.prompt) + index, token_id, request.sampling)
            text += decoder.decode(self._tokenizer.piece(token_id, special=False))
            found = [(text.index(stop), stop) for stop in request.stop if stop in text]
            end = min(found)[0] if found else _safe_length(text, request.stop)
            yield TextDelta(text[shown:end], (token,))
            shown = max(shown, end)
            if found:
                yield _summary(request, FinishReason.STOP, index + 1, min(found)[1])
                return
        yield TextDelta(text[shown:], ())
        reason = FinishReason.LENGTH if limit <= len(ids) else FinishReason.STOP
        yield _summary(request, reason, min(limit, len(ids)))


def _safe_length(text: str, stops: Sequence[str]) -> int:
    """Where the longest end of ``text`` begins that a stop string may begin with."""
    held = [n for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])]
    return len(text) - max(held, default=0)


def _token(position: int, token_id: int, sampling: SamplingParams) -> GeneratedToken:
    """Token n + 1 is the runner-up of token n, and so on, each half a nat less likely."""
    if not sampling.logprobs:
        return GeneratedToken(position, token_id)
    top = tuple(
        TokenLogprob((token_id + n) % 256, -0.25 - n / 2) for n in range(sampling.top_logprobs)
    )
    return GeneratedToken(position, token_id, -0.25, top)


def _summary(
    request: TextRequest, reason: FinishReason, tokens: int, stop: str | None = None
) -> GenerationSummary:
    return GenerationSummary(
        finish_reason=reason,
        prompt_tokens=len(request.prompt),
        completion_tokens=tokens,
        seconds_to_first_token=0.0,
        seconds=0.0,
        stop_string=stop,
    )
