"""The head's session: prefill, then the decode loop. The whole chain works to its beat."""

from __future__ import annotations

import asyncio
import logging
from functools import partial

from meshnet.domain.errors import InternalError, MeshnetError
from meshnet.domain.frames import Generate, GenerationDone, SessionOpened, TokenReply
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, SessionState
from meshnet.domain.nodes import HopTimings
from meshnet.engine.base import DecodeRequest, PrefillRequest
from meshnet.node.credits import Credits
from meshnet.node.session import NodeParts, ShardSession, TokenHistory, recent
from meshnet.transport.base import ServerSeam
from meshnet.wire.chunks import plan_prefill_chunks

LOGGER = logging.getLogger(__name__)


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


class HeadSession(ShardSession):
    """Runs one generation: the gateway gets its tokens on the side, a credit for each."""

    def __init__(
        self, parts: NodeParts, request: Generate, chunk_tokens: int, upstream: ServerSeam
    ) -> None:
        spec = request.spec
        history = TokenHistory(spec.sampling, recent(spec.prompt, spec.sampling))
        super().__init__(parts, request.terms, upstream, request.handle, history)
        self._spec = spec
        self._chunk_tokens = chunk_tokens
        self._credits = Credits(request.token_credits)
        self._tokens: asyncio.Queue[GeneratedToken] = asyncio.Queue()
        self._next_step = 0

    def grant(self, tokens: int) -> None:
        """Let the loop run this many more tokens ahead of the gateway."""
        self._credits.add(tokens)

    def token_returned(self, reply: TokenReply) -> None:
        """Take the tail's token into the loop."""
        if reply.step != self._next_step - 1:
            self.fail(
                InternalError(f"a token of step {reply.step} came back at {self._next_step - 1}")
            )
            return
        self._time_return()
        self._tokens.put_nowait(reply.token)

    async def _work(self) -> None:
        await self._open_downstream()
        self._upstream.send(SessionOpened(self.handle, self.parts.flow))
        await self._prefill()
        reason = await self._decode_loop()
        timings = (self._timings, *await self._release_behind())
        self._upstream.send(GenerationDone(self.handle, reason, timings))
        self._end(SessionState.RELEASED, None)

    async def _release_behind(self) -> tuple[HopTimings, ...]:
        """Release the nodes behind. All tokens are there: a node lost now spoils no answer."""
        if self._downstream is None:
            return ()
        try:
            return await self._downstream.release()
        except MeshnetError as error:
            LOGGER.warning("after the last token of session %s: %s", self.key, error.message)
            return ()

    async def _prefill(self) -> None:
        position = 0
        for chunk in plan_prefill_chunks(len(self._spec.prompt), self._chunk_tokens):
            mode = CacheMode.FRESH if position == 0 else CacheMode.EXACT
            request = PrefillRequest(
                self.key,
                position,
                CacheExpectation(mode, position),
                self._take_step(),
                token_ids=self._spec.prompt[position : position + chunk.token_count],
                choice=self._history.choice(),
            )
            await self._step(request, chunk)
            position += chunk.token_count

    async def _decode_loop(self) -> FinishReason:
        context_length = self.parts.capabilities.limits.context_length
        reported = 0
        while True:
            token = await self._tokens.get()
            reason = verdict(self._spec, context_length, token, reported)
            if reason is FinishReason.STOP:
                return reason
            await self._credits.take()
            reply = TokenReply(self.handle, self._next_step - 1, token)
            reported += 1
            if reason is not None:
                self._upstream.send(reply)
                return reason
            request = DecodeRequest(
                self.key,
                token.position,
                CacheExpectation(CacheMode.EXACT, token.position),
                self._take_step(),
                token_ids=(token.token_id,),
                choice=self._history.choice(),
            )
            # The gateway can wait a moment; the next step can't.
            await self._step(request, None, meanwhile=partial(self._upstream.send, reply))

    def _take_step(self) -> int:
        self._next_step += 1
        return self._next_step - 1
