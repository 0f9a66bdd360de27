"""What comes back from a head: replies become text events, and a log of the tokens is kept.

The log is all that another chain needs to go on when this one is lost. The text, with what is held
back of it, knows nothing of chains.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Iterator
from dataclasses import replace

from meshnet.domain.errors import (
    DeadlineExceededError,
    FingerprintMismatchError,
    InternalError,
    MeshnetError,
    NodeError,
    NodeLostError,
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
    SignedWork,
    TokenReply,
)
from meshnet.domain.generation import FinishReason, GenerationSpec
from meshnet.domain.nodes import Hop, HopTimings
from meshnet.domain.seamcounts import GatewaySeamCounts
from meshnet.engine.tokenizer import Tokenizer
from meshnet.session.service import GenerationSummary, Opened, Recovered, TextDelta, TextRequest
from meshnet.session.text import TextStream
from meshnet.transport.channel import SeamChannel
from meshnet.transport.countersigning import OpenersReceipt

DEADLINE_SLACK_SECONDS = 5.0
"""How long after its deadline a head that says nothing is given up."""
GRANT_AFTER = 32

Events = AsyncGenerator[TextDelta | GenerationSummary, None]


class Inbox:
    """The generation's ear on a head's channel."""

    def __init__(
        self,
        channel: SeamChannel,
        head: Hop,
        receipt: OpenersReceipt[GatewaySeamCounts] | None = None,
    ) -> None:
        """``receipt`` sees every reply; None where there are none."""
        self._receipt = receipt
        self._channel = channel
        self._head = head
        self._replies: asyncio.Queue[SeamReply | MeshnetError] = asyncio.Queue()
        self._over = False
        self.heard: float | None = None
        """When the last reply came that was no failure, by ``time.perf_counter``."""
        self.handle = channel.attach(self)

    @property
    def signed(self) -> bool:
        """Whether there is to be a receipt."""
        return self._receipt is not None

    def on_reply(self, reply: SeamReply) -> None:
        """Keep the reply until it is read."""
        if self._receipt is not None:
            self._receipt.on_reply(reply)
        if isinstance(reply, SignedWork):
            return
        if not isinstance(reply, SessionFailed):
            self.heard = time.perf_counter()
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
        if self._receipt is None:
            self._channel.detach(self.handle)
        else:
            self._receipt.linger(self.handle)
        if not self._over:
            # A head that is gone has nothing left to cancel.
            with contextlib.suppress(NodeError):
                self._channel.send(Cancel(self.handle, "the reader has left"))

    def _lost(self, error: MeshnetError) -> NodeLostError:
        head = self._head
        return NodeLostError(
            f"lost node {head}: {error.message}", node=head.node_id, layers=str(head.layers)
        )


class Reader:
    """Turns replies into text events over all chains of one generation, and counts."""

    def __init__(
        self, tokenizer: Tokenizer, request: TextRequest, spec: GenerationSpec, started: float
    ) -> None:
        """``spec``: of the whole generation; ``started`` by ``time.perf_counter``."""
        self._text = TextStream(tokenizer, request.stop, shown=request.shown_tokens)
        self._request = request
        self._spec = spec
        self._started = started
        self._first: float | None = None
        self._log: list[int] = []
        self._cached: int | None = None
        self._quiet_since: float | None = None
        """When the chain that was lost last said something; None while tokens come."""
        self._lost: MeshnetError | None = None
        self._pauses: list[float] = []
        self.let_in = False
        """Whether the chain of now has let the generation in."""

    @property
    def spec(self) -> GenerationSpec:
        """What is left to be generated, with the tokens so far as the end of the prompt."""
        made, most = tuple(self._log), self._spec.max_new_tokens
        return replace(
            self._spec,
            prompt=self._spec.prompt + made,
            max_new_tokens=None if most is None else most - len(made),
            generated=len(made),
        )

    @property
    def complete(self) -> bool:
        """Whether as many tokens are there as may be."""
        return len(self._log) == self._spec.max_new_tokens

    async def events(self, inbox: Inbox, terms: SessionTerms, open_by: float) -> Events:
        """What one chain adds; raises what ends it. It must let it in by ``open_by``."""
        deadline = self._started + self._request.timeout_seconds + DEADLINE_SLACK_SECONDS
        while True:
            limit = deadline if self.let_in else min(open_by, deadline)
            reply = await inbox.next(max(limit - time.perf_counter(), 0.0))
            if isinstance(reply, TokenReply):
                yield self._take(reply, terms)
                if self._text.stopped is not None:
                    yield self._summary(FinishReason.STOP, ())
                    return
                if len(self._log) % GRANT_AFTER == 0:
                    inbox.send(GrantTokens(inbox.handle, GRANT_AFTER))
            elif isinstance(reply, SessionOpened):
                self._open(reply, terms, signed=inbox.signed)
            elif isinstance(reply, GenerationDone):
                self._went_on(terms)
                for event in self.end(reply.finish_reason, reply.timings):
                    yield event
                return

    def end(
        self, reason: FinishReason, timings: tuple[HopTimings, ...] = ()
    ) -> Iterator[TextDelta | GenerationSummary]:
        """The events after the last token."""
        rest = self._text.finish()
        if rest:
            yield TextDelta(rest, ())
        yield self._summary(reason, timings)

    def lost(self, error: MeshnetError, heard: float | None) -> None:
        """A chain that had let the generation in was lost; it was last ``heard`` then."""
        self.let_in = False
        self._lost = error
        if self._quiet_since is None:
            self._quiet_since = heard

    def _open(self, reply: SessionOpened, terms: SessionTerms, *, signed: bool) -> None:
        if reply.replayed_tokens != len(self._log):
            raise FingerprintMismatchError(
                f"node {terms.hops[0]} takes up no generation of another chain; its Meshnet may be "
                "an older one"
            )
        self.let_in = True
        if self._cached is None:
            self._cached = reply.cached_tokens
        if self._request.on_open is not None:
            self._request.on_open(Opened(terms.key.session_id, terms.hops, self._cached, signed))

    def _take(self, reply: TokenReply, terms: SessionTerms) -> TextDelta:
        token, due = reply.token, len(self._spec.prompt) + len(self._log)
        if token.position != due:
            raise InternalError(f"the token at position {token.position} came, but {due} is due")
        if self._first is None:
            self._first = time.perf_counter()
        self._went_on(terms)
        self._log.append(token.token_id)
        return TextDelta(self._text.feed(token.token_id), (token,))

    def _went_on(self, terms: SessionTerms) -> None:
        """Something came that the reader didn't have; the end of a pause, if there was one."""
        if self._quiet_since is None or self._lost is None:
            return
        pause = time.perf_counter() - self._quiet_since
        self._quiet_since = None
        self._pauses.append(pause)
        if self._request.on_recovery is not None:
            self._request.on_recovery(
                Recovered(terms.key, terms.hops, len(self._log), self._lost.message, pause)
            )

    def _summary(self, reason: FinishReason, timings: tuple[HopTimings, ...]) -> GenerationSummary:
        now = time.perf_counter()
        first = now if self._first is None else self._first
        return GenerationSummary(
            reason,
            len(self._request.prompt),
            len(self._log),
            first - self._started,
            now - self._started,
            self._text.stopped,
            self._cached or 0,
            timings,
            tuple(self._pauses),
        )
