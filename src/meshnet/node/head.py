"""The head's session: prefill, then the decode loop. The whole chain works to its beat."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from meshnet.domain.errors import CacheMissError, MeshnetError
from meshnet.domain.frames import (
    Generate,
    GenerationDone,
    ReturnPath,
    SessionOpened,
    TokenReply,
)
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, SessionState
from meshnet.domain.nodes import HopTimings
from meshnet.domain.seamcounts import GatewaySeamCounts
from meshnet.engine.base import DecodeRequest, PrefillRequest, StepResult
from meshnet.node.history import TokenHistory, recent, require_grammar
from meshnet.node.parts import NodeParts
from meshnet.node.prefixes import Prefix, Route, fork_of
from meshnet.node.proposals import PromptLookup
from meshnet.node.replay import Replay, replay_plan
from meshnet.node.session import ShardSession
from meshnet.node.speculation import SpeculationControl
from meshnet.node.track import DecodeTrack, NextStep, Taken
from meshnet.transport.base import ServerSeam
from meshnet.wire.chunks import plan_prefill_chunks

LOGGER = logging.getLogger(__name__)
RETURN_KEY_BYTES = 16
RELEASE_SECONDS = 2.0
"""How long the end of a generation whose tokens are all told may wait for the nodes behind: they
have no more to say than their timings."""


def verdict(
    spec: GenerationSpec, context_length: int, token: GeneratedToken, reported: int
) -> FinishReason | None:
    """Whether a generation ends with ``token``; ``reported`` tokens came before it."""
    if token.token_id in spec.end_ids:
        return FinishReason.STOP
    if spec.max_new_tokens is not None and reported + 1 >= spec.max_new_tokens:
        return FinishReason.LENGTH
    if token.position + 1 >= context_length:
        return FinishReason.LENGTH
    return None


def row_limit(spec: GenerationSpec, context_length: int) -> int:
    """The position from which on no row is needed: that of the last token there can be."""
    last = context_length
    if spec.max_new_tokens is not None:
        last = min(last, len(spec.prompt) + spec.max_new_tokens)
    return last - 1


class HeadSession(ShardSession):
    """Runs one generation: the gateway gets its tokens on the side, a credit for each."""

    def __init__(
        self, parts: NodeParts, request: Generate, chunk_tokens: int, upstream: ServerSeam
    ) -> None:
        spec = request.spec
        require_grammar(spec.sampling, parts.capabilities)
        self._prompt = spec.asked
        history = TokenHistory(spec.sampling, recent(self._prompt, spec.sampling))
        super().__init__(parts, request.terms, upstream, request.handle, history)
        self.counts = GatewaySeamCounts(len(spec.prompt))
        self._spec = spec
        self._replay = Replay(spec.replayed)
        self._chunk_tokens = chunk_tokens
        self._credits = request.token_credits
        self._return_path = _return_path(request)
        context = parts.capabilities.limits.context_length
        self._track = DecodeTrack(len(self._prompt), row_limit(spec, context), spec.end_ids)
        self._lookup = PromptLookup()
        self._control = SpeculationControl(spec.speculation, 0, len(request.terms.hops))
        self._guess: int | None = None
        """What would be guessed at the next token, to know how good the guesses are."""
        self._generated: list[int] = []
        self._reported = 0
        self._unreported: deque[TokenReply] = deque()
        self._stepping = False
        self._started = 0
        self._reason: FinishReason | None = None
        self._finished: asyncio.Future[FinishReason] = asyncio.get_running_loop().create_future()

    @property
    def return_key(self) -> bytes | None:
        """See the base class."""
        return None if self._return_path is None else self._return_path.key

    @property
    def waits_for_upstream(self) -> bool:
        """See the base class: its tokens wait for the gateway's credits."""
        return bool(self._unreported) and self._credits < 1

    def grant(self, tokens: int) -> None:
        """Let the loop run this many more tokens ahead of the gateway."""
        self._credits += tokens
        self.heard = asyncio.get_running_loop().time()
        self._guard(self._go_on)

    def token_returned(self, reply: TokenReply) -> None:
        """Take a token of the tail: tell the gateway, and go on with it."""
        self._guard(lambda: self._take(reply))

    def _take(self, reply: TokenReply) -> None:
        if self._reason is not None:
            return
        token = reply.token
        taken = self._track.take(reply.step, token)
        if taken is None:
            return
        self._generated.append(token.token_id)
        if self._downstream is not None:
            self._clock.returned()
        if self._replay.left:
            self._replay.confirm(token)
            if self._control.possible:
                self._lookup.extend((token.token_id,))
        else:
            self._take_new(reply, taken)
        if not self._stepping or self._downstream is not None:
            self._go_on()

    def _take_new(self, reply: TokenReply, taken: Taken) -> None:
        """A token that the gateway doesn't have yet."""
        token = reply.token
        if self._control.possible:
            self._learn(token.token_id, taken)
        reached = self.parts.capabilities.limits.context_length
        self._reason = verdict(self._spec, reached, token, self._reported)
        if self._reason is not FinishReason.STOP:
            self._reported += 1
            self._unreported.append(TokenReply(self.handle, reply.step, token))
        if self._reason is not None:
            self._release_behind()

    def _learn(self, token: int, taken: Taken) -> None:
        """See how good the guess was, and guess at the next token."""
        now = time.perf_counter_ns()
        control, first = self._control, taken.first_of
        if first is not None and first.alone and not first.truncate:
            control.travelled(len(first.tokens), now - self._started)
        if taken.guessed is not None:
            control.guessed(right=taken.guessed, sent=True)
            self.parts.stepper.figures.guessed(right=taken.guessed)
        elif self._guess is not None:
            control.guessed(right=self._guess == token, sent=False)
        self._lookup.extend((token,))
        control.token(now)
        self._guess = None if self._track.pending else self._lookup.guess(())

    def _go_on(self) -> None:
        """Send the step that is due, and tell the gateway what it has credits for."""
        report = self._report if self._unreported else None
        room = self._credits - len(self._unreported)
        if self._reason is None and not self._stepping and room >= 0:
            step = self._due(room)
            if step is not None:
                self._send(step, report)
                return
        if report is not None or self._reason is not None:
            self._report()

    def _due(self, room: int) -> NextStep | None:
        """The next step; ``room`` is how many tokens the gateway would take."""
        if self._replay.left:
            # The gateway has these tokens.
            plan = replay_plan(self._step_tokens, len(self.terms.hops))
            return self._track.due(plan, self._replay.left, self._replay.guess)
        guesses = room - len(self._track.pending)
        return self._track.due(self._control.plan, guesses, self._lookup.guess)

    def _send(self, step: NextStep, report: Callable[[], None] | None) -> None:
        mode = CacheMode.TRUNCATE if step.truncate else CacheMode.EXACT
        request = DecodeRequest(
            self.key,
            step.position,
            CacheExpectation(mode, step.position),
            step.number,
            token_ids=step.tokens,
            choice=self._history.choice(step.position, step.tokens[1:]),
        )
        self._stepping = True
        if step.alone:
            self._started = time.perf_counter_ns()
        # The gateway can wait a moment; the next step can't.
        self._decode_step(request, meanwhile=report)

    def _wanted(self, step: int) -> bool:
        return self._track.live(step)

    def _handed_on(self, request: DecodeRequest, result: StepResult) -> None:
        self._stepping = False
        self._control.stepped(request.rows, result.engine_nanos)
        self._go_on()

    def _report(self) -> None:
        """Tell the gateway, a credit a token; in the end, that the generation may be finished."""
        while self._unreported and self._credits > 0:
            self._credits -= 1
            self._tell(self._unreported.popleft())
        if self._unreported:
            self._control.interrupted()
        elif self._reason is not None and not self._finished.done():
            self._finished.set_result(self._reason)

    def _tell(self, reply: SessionOpened | TokenReply | GenerationDone) -> None:
        self.counts.reply(reply)
        self._upstream.send(reply)

    def _timings_here(self) -> HopTimings:
        control = self._control
        return replace(
            self._clock.read(), proposed_tokens=control.proposed, accepted_tokens=control.accepted
        )

    async def _work(self) -> None:
        await self._open_downstream(self._return_path)
        self._control.max_rows = self._step_tokens
        cached = self._cached_tokens
        self.parts.stepper.figures.began(cached)
        self.parts.stepper.give_the_beat(len(self.terms.hops))
        self._tell(
            SessionOpened(
                self.handle,
                self.parts.flow,
                cached_tokens=cached,
                replayed_tokens=self._replay.left,
            )
        )
        await self._begin(cached)
        if self._replay.left:
            # Its rows needn't wait for the prompt's token.
            self._go_on()
        reason = await self._finished
        if self._expiry is not None:
            self._expiry.cancel()
        timings = (self._timings_here(), *await self._timings_behind())
        self._tell(GenerationDone(self.handle, reason, timings))
        self._end(SessionState.RELEASED, None)

    def _release_behind(self) -> None:
        """Release the nodes behind. All tokens are there: a node lost now spoils no answer,
        however long its reader takes."""
        self.keeps = self._worth_keeping()
        if self._downstream is not None:
            self._downstream.begin_release(keep=self.keeps)

    async def _timings_behind(self) -> tuple[HopTimings, ...]:
        if self._downstream is None:
            return ()
        try:
            return await self._downstream.released(RELEASE_SECONDS)
        except MeshnetError as error:
            LOGGER.warning("after the last token of session %s: %s", self.key, error.message)
            # What a part of the chain keeps is of no use, and in the way of what is.
            self.keeps = False
            self.give_up()
            return ()

    async def _begin(self, cached: int) -> None:
        """Compute the prompt behind what is cached; all of it if the cache turns out to be gone."""
        if not cached:
            # A node behind has lost the prefix, so that the next prompt can't begin with it either.
            self.place.missed()
        try:
            await self._prefill(cached)
        except CacheMissError:
            if not cached or self.place.reuse is not None:
                raise
            self._lookup = PromptLookup()
            await self._prefill(0)

    @property
    def prefix(self) -> Prefix:
        """What the cache is good for, once all tokens are there."""
        # The last token's own row isn't computed.
        generated = tuple(self._generated[:-1])
        route = Route(self.terms.hops, self.terms.fingerprint)
        return Prefix(self.key, route, self._prompt, generated, self._pieces)

    def _worth_keeping(self) -> bool:
        """Whether others can begin with this session's caches: cut back, they must be usable."""
        usable = self.place.keeps and self._step_tokens > 0
        return usable and self.prefix.good_tokens(self._chunk_tokens) >= self._chunk_tokens

    async def _prefill(self, cached: int) -> None:
        """Compute the prompt from position ``cached`` on; what is before it is in the caches."""
        position, prompt = cached, self._prompt
        if cached and self._control.possible:
            self._lookup.extend(prompt[:cached])
        expectation = CacheExpectation(CacheMode.FRESH, 0)
        if cached and self.place.reuse is not None:
            expectation = fork_of(self.place.reuse)
        for chunk in plan_prefill_chunks(len(prompt), self._chunk_tokens, cached):
            end = position + chunk.token_count
            request = PrefillRequest(
                self.key,
                position,
                expectation,
                self._track.number(),
                token_ids=prompt[position:end],
                choice=self._history.choice(end - 1),
            )
            learn = partial(self._lookup.extend, prompt[position:end])
            meanwhile = learn if self._control.possible else None
            await self._prefill_step(request, chunk, meanwhile=meanwhile)
            position = end
            expectation = CacheExpectation(CacheMode.EXACT, position)


def _return_path(request: Generate) -> ReturnPath | None:
    """The tail's way to this node; None where the seam back leads straight here anyway."""
    hops = request.terms.hops
    if len(hops) < 3:
        return None
    return ReturnPath(hops[0].address, secrets.token_bytes(RETURN_KEY_BYTES), hops[0].node_id)
