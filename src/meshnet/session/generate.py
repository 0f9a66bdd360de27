"""One generation, from a prompt's tokens to text: opens it at the head, reads tokens, stops it.

The decode loop itself runs at the head; here tokens become text, stop strings are watched for, and
a reader who leaves early cancels the work on every node.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Protocol

from meshnet.domain.errors import (
    ContextLengthError,
    DeadlineExceededError,
    InvalidArgumentError,
    MeshnetError,
    NodeError,
    NodeLostError,
    NodeUnreachableError,
    error_from,
)
from meshnet.domain.frames import (
    Cancel,
    Generate,
    GenerationDone,
    GrantTokens,
    SeamReply,
    SessionFailed,
    SessionOpened,
    SessionTerms,
    TokenReply,
)
from meshnet.domain.generation import FinishReason, GenerationSpec, Speculation
from meshnet.domain.ids import SessionKey, new_route_session_id
from meshnet.domain.nodes import Capability, HealthReport, Hop, HopTimings
from meshnet.domain.tracing import NO_TRACER, TraceContext, Tracer
from meshnet.engine.tokenizer import Tokenizer
from meshnet.session.census import Census, take_census
from meshnet.session.chain import Chain, ChainSource, ask_health
from meshnet.session.service import GenerationSummary, Opened, TextDelta, TextRequest
from meshnet.session.template import ChatTemplate
from meshnet.session.text import TextStream
from meshnet.session.tracing import traced
from meshnet.transport.channel import ChannelPool, SeamChannel

OPEN_SECONDS = 10.0
DEADLINE_SLACK_SECONDS = 5.0
"""How long after its deadline a head that says nothing is given up."""
TOKEN_CREDITS = 128
GRANT_AFTER = 32


class GrammarCheck(Protocol):
    """Who can tell whether a grammar can be followed."""

    def check(self, grammar: str) -> None:
        """Raise :class:`InvalidArgumentError` naming ``grammar`` if it can't."""


class ChainModel:
    """A model served by chains of nodes, one a generation; it fulfils ``ModelService``."""

    def __init__(
        self,
        name: str,
        tokenizer: Tokenizer,
        chains: ChainSource,
        channels: ChannelPool,
        tracer: Tracer = NO_TRACER,
        speculation: Speculation = Speculation.AUTO,
        grammars: GrammarCheck | None = None,
    ) -> None:
        """``grammars`` looks at grammars before a generation; without, the nodes alone do."""
        self._grammars = grammars
        self._tracer = tracer
        self._speculation = speculation
        self._name = name
        self._tokenizer = tokenizer
        self._chains = chains
        self._channels = channels
        self._created = int(time.time())
        self._template = ChatTemplate(
            tokenizer.chat_template, tokenizer.bos_token, tokenizer.eos_token
        )

    @property
    def name(self) -> str:
        """The name users call it by."""
        return self._name

    @property
    def created_unix(self) -> int:
        """When the service came up, in seconds."""
        return self._created

    @property
    def context_length(self) -> int:
        """Tokens that prompt and answer may have together."""
        return self._chains.context_length

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's vocabulary."""
        return self._tokenizer

    def prompt_from_messages(
        self,
        messages: Sequence[Mapping[str, object]],
        tools: Sequence[Mapping[str, object]] | None = None,
    ) -> tuple[int, ...]:
        """Render the model's own chat template and tokenise it; raises ``TemplateError``."""
        text = self._template.prompt(messages, tools)
        # Templates write the beginning-of-sequence token themselves where the model wants one.
        bos = self._tokenizer.bos_token
        add_special = not (bos and text.startswith(bos))
        return self._tokenizer.tokenize(text, add_special=add_special, parse_special=True)

    def prompt_from_text(self, text: str) -> tuple[int, ...]:
        """Tokenise plain text, with the beginning-of-sequence token if the model wants one."""
        return self._tokenizer.tokenize(text, add_special=True, parse_special=True)

    def require_grammar(self, grammar: str) -> None:
        """See :class:`~meshnet.session.service.ModelService`."""
        if self._grammars is not None:
            self._grammars.check(grammar)

    async def chain(self) -> tuple[tuple[Capability, HealthReport], ...]:
        """Every node of the chain, head first; raises ``NodeError`` if one can't be asked."""
        return await ask_health(self._channels, await self._chains.current())

    async def census(self, timeout_seconds: float) -> Census:
        """Every node of the chain, those that can't be asked too; none has longer than that."""
        return await take_census(self._channels, await self._chains.current(), timeout_seconds)

    def generate(self, request: TextRequest) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        """See :class:`~meshnet.session.service.ModelService`."""
        return traced(self._tracer, self._name, request, self._generate)

    async def _generate(
        self, request: TextRequest, trace: TraceContext
    ) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        started = time.perf_counter()
        spec = self._spec(request)
        async with self._chains.used(request.timeout_seconds) as chain:
            if request.sampling.grammar and not chain.grammars:
                raise InvalidArgumentError(
                    "grammar",
                    "the node that chooses the tokens can't keep them to a grammar, which JSON as "
                    "response_format and a tool_choice that is enforced are too; leave these out",
                )
            terms = _terms(chain, request, trace)
            inbox = _Inbox(await self._channel(chain.head, request.timeout_seconds), chain.head)
            try:
                inbox.send(Generate(inbox.handle, terms, spec, token_credits=TOKEN_CREDITS))
                reader = _Reader(self._tokenizer, request, terms, started)
                async with contextlib.aclosing(reader.events(inbox)) as events:
                    async for event in events:
                        yield event
            finally:
                inbox.leave()

    async def _channel(self, head: Hop, timeout_seconds: float) -> SeamChannel:
        timeout = min(OPEN_SECONDS, timeout_seconds)
        try:
            return await self._channels.channel(head.address, timeout, head.node_id)
        except NodeError as error:
            raise NodeUnreachableError(
                f"can't reach node {head}: {error.message}",
                node=head.node_id,
                layers=str(head.layers),
            ) from error

    def _spec(self, request: TextRequest) -> GenerationSpec:
        room = self.context_length - len(request.prompt)
        if room < 1:
            raise ContextLengthError(
                f"the prompt has {len(request.prompt)} tokens; with room for an answer, the "
                f"context holds {self.context_length}"
            )
        asked = request.max_new_tokens
        return GenerationSpec(
            request.prompt,
            request.sampling,
            room if asked is None else min(asked, room),
            frozenset() if request.ignore_end else self._tokenizer.end_of_generation,
            request.speculation or self._speculation,
        )


def _terms(chain: Chain, request: TextRequest, trace: TraceContext) -> SessionTerms:
    return SessionTerms(
        SessionKey(new_route_session_id(), 0),
        chain.fingerprint,
        chain.hops,
        time.time_ns() + int(request.timeout_seconds * 1e9),
        trace,
    )


class _Inbox:
    """The generation's ear on the head's channel."""

    def __init__(self, channel: SeamChannel, head: Hop) -> None:
        self._channel = channel
        self._head = head
        self._replies: asyncio.Queue[SeamReply | MeshnetError] = asyncio.Queue()
        self._over = False
        self.handle = channel.attach(self)

    def on_reply(self, reply: SeamReply) -> None:
        """Keep the reply until it is read."""
        self._replies.put_nowait(reply)

    def on_lost(self, error: MeshnetError) -> None:
        """The head is gone."""
        self._replies.put_nowait(error)

    async def next(self, timeout_seconds: float) -> SeamReply:
        """The next reply; raises the error that ended the generation."""
        try:
            # Not with wait_for: Python 3.11's loses a cancel that comes together with a reply.
            async with asyncio.timeout(timeout_seconds):
                reply = await self._replies.get()
        except TimeoutError:
            raise DeadlineExceededError("the head said nothing until past the deadline") from None
        if isinstance(reply, MeshnetError):
            self._over = True
            raise self._lost(reply) from reply
        if isinstance(reply, SessionFailed):
            self._over = True
            raise error_from(reply.status)
        self._over = isinstance(reply, GenerationDone)
        return reply

    def send(self, request: Generate | GrantTokens) -> None:
        """Send to the head; raises ``NodeLostError`` once it is gone."""
        try:
            self._channel.send(request)
        except NodeError as error:
            raise self._lost(error) from error

    def leave(self) -> None:
        """Stop listening; a generation that still runs is cancelled."""
        self._channel.detach(self.handle)
        if not self._over:
            # A head that is gone has nothing left to cancel.
            with contextlib.suppress(NodeError):
                self._channel.send(Cancel(self.handle, "the reader has left"))

    def _lost(self, error: MeshnetError) -> NodeLostError:
        head = self._head
        return NodeLostError(
            f"lost node {head}: {error.message}", node=head.node_id, layers=str(head.layers)
        )


class _Reader:
    """Turns replies into text events, and counts."""

    def __init__(
        self, tokenizer: Tokenizer, request: TextRequest, terms: SessionTerms, started: float
    ) -> None:
        self._terms = terms
        self._text = TextStream(tokenizer, request.stop, shown=request.shown_tokens)
        self._request = request
        self._started = started
        self._first: float | None = None
        self._tokens = 0
        self._cached = 0

    async def events(self, inbox: _Inbox) -> AsyncGenerator[TextDelta | GenerationSummary, None]:
        deadline = self._started + self._request.timeout_seconds + DEADLINE_SLACK_SECONDS
        while True:
            reply = await inbox.next(max(deadline - time.perf_counter(), 0.0))
            if isinstance(reply, TokenReply):
                yield self._take(reply)
                if self._text.stopped is not None:
                    yield self._summary(FinishReason.STOP, ())
                    return
                if self._tokens % GRANT_AFTER == 0:
                    inbox.send(GrantTokens(inbox.handle, GRANT_AFTER))
            elif isinstance(reply, SessionOpened):
                self._open(reply.cached_tokens)
            elif isinstance(reply, GenerationDone):
                rest = self._text.finish()
                if rest:
                    yield TextDelta(rest, ())
                yield self._summary(reply.finish_reason, reply.timings)
                return

    def _open(self, cached_tokens: int) -> None:
        self._cached = cached_tokens
        if self._request.on_open is not None:
            opened = Opened(self._terms.key.session_id, self._terms.hops, cached_tokens)
            self._request.on_open(opened)

    def _take(self, reply: TokenReply) -> TextDelta:
        if self._first is None:
            self._first = time.perf_counter()
        self._tokens += 1
        return TextDelta(self._text.feed(reply.token.token_id), (reply.token,))

    def _summary(self, reason: FinishReason, timings: tuple[HopTimings, ...]) -> GenerationSummary:
        now = time.perf_counter()
        first = now if self._first is None else self._first
        return GenerationSummary(
            reason,
            len(self._request.prompt),
            self._tokens,
            first - self._started,
            now - self._started,
            self._text.stopped,
            self._cached,
            timings,
        )
