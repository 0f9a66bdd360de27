"""One generation, from a prompt's tokens to text: opened at a head, and again if that is lost.

The decode loop itself runs at the head. A reader who leaves early cancels the work on every node.
When a chain is lost, the next one gets the prompt and the tokens so far, and goes on behind them.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from meshnet.domain.errors import (
    ContextLengthError,
    FingerprintMismatchError,
    InvalidArgumentError,
    MeshnetError,
    NodeError,
    NodeUnreachableError,
)
from meshnet.domain.frames import Generate, SessionTerms
from meshnet.domain.generation import FinishReason, GenerationSpec, Speculation
from meshnet.domain.ids import SessionKey, new_route_session_id
from meshnet.domain.nodes import Capability, HealthReport, Hop
from meshnet.domain.seamcounts import GatewaySeamCounts
from meshnet.domain.tracing import NO_TRACER, TraceContext, Tracer
from meshnet.engine.tokenizer import Tokenizer
from meshnet.session.census import Census, take_census
from meshnet.session.chain import Chain, ChainSource, ask_health
from meshnet.session.reading import Events, Inbox, Reader
from meshnet.session.recovery import NO_RECOVERY, GiveUp, Recovery, RecoveryPolicy, helps
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from meshnet.session.template import ChatTemplate
from meshnet.session.tracing import traced
from meshnet.transport.channel import ChannelPool, SeamChannel
from meshnet.transport.countersigning import openers_receipt

LOGGER = logging.getLogger(__name__)
OPEN_SECONDS = 10.0
TOKEN_CREDITS = 128


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
        policy: RecoveryPolicy = NO_RECOVERY,
    ) -> None:
        """``grammars`` looks at grammars before a generation; without, the nodes alone do.

        ``policy``: how long a generation whose chain was lost waits for another one.
        """
        self.timed: Callable[[Sequence[Hop], GenerationSummary], None] | None = None
        """Told how long a generation took that came to its end on its first chain."""
        self._grammars = grammars
        self._policy = policy
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

    def generate(self, request: TextRequest) -> Events:
        """See :class:`~meshnet.session.service.ModelService`."""
        return traced(self._tracer, self._name, request, self._generate)

    async def _generate(self, request: TextRequest, trace: TraceContext) -> Events:
        """Over one chain after the other, until one comes to the end or there is no hope."""
        started = time.perf_counter()
        reader = Reader(self._tokenizer, request, self._spec(request), started)
        recovery = Recovery(self._policy, started + request.timeout_seconds)
        route = _Route(request, trace, recovery.deadline)
        while True:
            try:
                async with contextlib.aclosing(self._on_chain(route, reader, recovery)) as events:
                    async for event in events:
                        if isinstance(event, TextDelta) and event.tokens:
                            recovery = recovery.went_on()
                        yield event
            except MeshnetError as error:
                if reader.complete and helps(error):
                    # There is nothing left that a chain is needed for.
                    for event in reader.end(FinishReason.LENGTH):
                        yield event
                    return
                verdict = recovery.after(error, time.perf_counter(), let_in=reader.let_in)
                if isinstance(verdict, GiveUp):
                    if verdict.error is error:
                        raise
                    raise verdict.error from error
                if reader.let_in:
                    _log_loss(route, error)
                    reader.lost(error, route.heard)
                recovery = verdict.recovery
            else:
                return
            await asyncio.sleep(verdict.pause_seconds)

    async def _on_chain(self, route: _Route, reader: Reader, recovery: Recovery) -> Events:
        """What the chain of now adds; raises what ends it."""
        until = recovery.until
        async with self._chains.used(until - time.perf_counter()) as chain:
            terms = route.over(chain)
            channel = await self._channel(chain.head, until - time.perf_counter())
            spec = reader.spec
            counts = GatewaySeamCounts(len(spec.prompt))
            receipt = openers_receipt(self._channels.receipts, None, terms, counts, channel)
            inbox = Inbox(channel, chain.head, receipt)
            opener = None if receipt is None else receipt.opener
            try:
                inbox.send(Generate(inbox.handle, terms, spec, TOKEN_CREDITS, opener))
                # Of the first chain, the head says itself that the deadline has passed.
                open_by = math.inf if recovery.lost is None else until
                async with contextlib.aclosing(reader.events(inbox, terms, open_by)) as events:
                    async for event in events:
                        if isinstance(event, GenerationSummary):
                            self._tell(chain, event)
                        yield event
            finally:
                route.heard = inbox.heard
                inbox.leave()

    def _tell(self, chain: Chain, summary: GenerationSummary) -> None:
        if self.timed is not None and not summary.pauses:
            self.timed(chain.hops, summary)

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


class _Route:
    """One generation's chains: one session, which each of them has at an epoch of its own."""

    def __init__(self, request: TextRequest, trace: TraceContext, deadline: float) -> None:
        """``deadline`` by ``time.perf_counter``."""
        self._request = request
        self._trace = trace
        self._deadline = deadline
        self._first: Chain | None = None
        self._epochs = itertools.count()
        self.session_id = new_route_session_id()
        self.heard: float | None = None
        """When the last chain last said something, by ``time.perf_counter``."""

    def over(self, chain: Chain) -> SessionTerms:
        """The terms on a chain.

        Raises :class:`InvalidArgumentError` if it can't do what is asked for, and
        :class:`FingerprintMismatchError` if it would compute other numbers than the first one.
        """
        if self._request.sampling.grammar and not chain.grammars:
            raise InvalidArgumentError(
                "grammar",
                "the node that chooses the tokens can't keep them to a grammar, which JSON as "
                "response_format, an enforced tool_choice and strict functions are too; leave "
                "these out",
            )
        first = self._first = self._first or chain
        first.fingerprint.require_equal(chain.fingerprint, f"the chain from {chain.head} on")
        if chain.context_length < first.context_length:
            raise FingerprintMismatchError(
                f"the chain from {chain.head} on has a context of {chain.context_length} tokens, "
                f"less than the {first.context_length} that the generation began with"
            )
        left = self._deadline - time.perf_counter()
        return SessionTerms(
            SessionKey(self.session_id, next(self._epochs)),
            chain.fingerprint,
            chain.hops,
            time.time_ns() + int(left * 1e9),
            self._trace,
        )


def _log_loss(route: _Route, error: MeshnetError) -> None:
    LOGGER.warning("session %s looks for another chain: %s", route.session_id, error.message)
