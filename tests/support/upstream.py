"""Plays the node before a middle or tail, frame by frame, on the fixture's arithmetic."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from meshnet.domain.frames import (
    DecodeFrame,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    Release,
    SeamReply,
    SessionOpened,
    SessionReleased,
    SessionTerms,
    StepAck,
    TokenReply,
)
from meshnet.domain.ids import RouteSessionId, SessionKey, new_route_session_id
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode, CacheResult
from meshnet.domain.nodes import FlowControl, Hop
from meshnet.domain.sampling import SamplingParams
from meshnet.engine.base import DecodeRequest, EngineLimits, LoadRequest, PrefillRequest
from meshnet.engine.fixture import FixtureEngine
from meshnet.transport.base import ClientSeam, Peer
from meshnet.wire.chunks import plan_prefill_chunks
from tests.support.external_node import NodeSetup

GREEDY = SamplingParams(temperature=0.0)
REPLY_SECONDS = 5.0

R = TypeVar("R", bound=SeamReply)


def new_key(epoch: int = 0) -> SessionKey:
    """A session nobody used before."""
    return SessionKey(new_route_session_id(), epoch)


def terms_for(setup: NodeSetup, hops: Sequence[Hop], **changed: object) -> SessionTerms:
    """Terms that the node accepts, but for what is changed."""
    values: dict[str, object] = {
        "key": new_key(),
        "fingerprint": setup.recipe().fingerprint(),
        "hops": tuple(hops),
        "deadline_unix_nanos": time.time_ns() + 30 * 10**9,
    }
    return SessionTerms(**(values | changed))  # type: ignore[arg-type]


async def receive(seam: ClientSeam, kind: type[R]) -> R:
    """The next reply, which must be of that kind."""
    async with asyncio.timeout(REPLY_SECONDS):
        reply = await seam.receive()
    assert isinstance(reply, kind), reply
    return reply


async def until_idle(peer: Peer) -> None:
    """Wait until the node holds no session."""
    held = 1
    for _ in range(1000):
        if not (held := (await peer.health(REPLY_SECONDS)).open_sessions):
            return
        await asyncio.sleep(0.005)
    raise AssertionError(f"{held} sessions are still open")


class Upstream:
    """One session's layers before the node under test, and its frames for it."""

    def __init__(
        self, seam: ClientSeam, setup: NodeSetup, hops: Sequence[Hop], handle: int = 1
    ) -> None:
        self.seam = seam
        self.handle = handle
        self.terms = terms_for(setup, hops)
        self._chunk_tokens = setup.chunk_tokens
        self._step = 0
        self._engine = FixtureEngine()
        layers = LayerRange(0, setup.layers.start)
        self._engine.load(
            LoadRequest(None, 0, layers.end, setup.total_layers, setup.recipe(), EngineLimits(4096))
        )

    @property
    def key(self) -> SessionKey:
        """The session."""
        return self.terms.key

    def opening(self, **changed: object) -> OpenSession:
        """The frame that opens the session, with other terms where they are changed."""
        terms = replace(self.terms, **changed)  # type: ignore[arg-type]
        return OpenSession(self.handle, terms, GREEDY, (), FlowControl())

    async def open(self) -> SessionOpened:
        """Open the session."""
        self.seam.send(self.opening())
        return await receive(self.seam, SessionOpened)

    def chunks(self, prompt: Sequence[int]) -> list[PrefillChunk]:
        """The frames of a prompt, each computed here up to the border."""
        frames: list[PrefillChunk] = []
        position = 0
        for chunk in plan_prefill_chunks(len(prompt), self._chunk_tokens):
            mode = CacheMode.FRESH if position == 0 else CacheMode.EXACT
            expectation = CacheExpectation(mode, position)
            tokens = tuple(prompt[position : position + chunk.token_count])
            request = PrefillRequest(self.key, position, expectation, self._step, tokens)
            boundary = self._engine.prefill(request).boundary()
            frames.append(
                PrefillChunk(
                    self.handle, self.key, chunk, position, self._step, expectation, boundary
                )
            )
            position += chunk.token_count
            self._step += 1
        return frames

    async def prefill(self, prompt: Sequence[int]) -> int:
        """Send a prompt within the credits; the first token. Checks every acknowledgement."""
        frames = self.chunks(prompt)
        unsent = deque(frames)
        window = FlowControl().chunk_credits
        acks: list[StepAck] = []
        tokens: list[TokenReply] = []
        while len(acks) < len(frames) or not tokens:
            while unsent and len(frames) - len(unsent) - len(acks) < window:
                self.seam.send(unsent.popleft())
            async with asyncio.timeout(REPLY_SECONDS):
                reply = await self.seam.receive()
            assert isinstance(reply, StepAck | TokenReply), reply
            (acks if isinstance(reply, StepAck) else tokens).append(reply)  # type: ignore[arg-type]
        for ack, frame in zip(acks, frames, strict=True):
            end = frame.position + frame.chunk.token_count
            assert ack == StepAck(self.handle, frame.step, False, CacheResult(True, end))
        (token,) = tokens
        assert (token.handle, token.step) == (self.handle, frames[-1].step)
        assert token.token.position == len(prompt)
        return token.token.token_id

    def decode_step(self, token: int, position: int) -> DecodeStep:
        """The frame of one token."""
        request = DecodeRequest(
            self.key, position, CacheExpectation(CacheMode.EXACT, position), self._step, (token,)
        )
        self._step += 1
        tensor = self._engine.decode(request).boundary().tensors[0]
        return DecodeStep(self.handle, position, request.idempotency_step, tensor)

    async def decode(self, token: int, position: int) -> int:
        """Send one token's step; the token that comes back."""
        step = self.decode_step(token, position)
        self.seam.send(DecodeFrame((step,)))
        reply = await receive(self.seam, TokenReply)
        assert (reply.handle, reply.step) == (self.handle, step.step)
        assert reply.token.position == position + 1
        return reply.token.token_id

    async def answer(self, prompt: Sequence[int], count: int) -> list[int]:
        """Play prompt and decode steps; the tokens."""
        tokens = [await self.prefill(prompt)]
        while len(tokens) < count:
            tokens.append(await self.decode(tokens[-1], len(prompt) + len(tokens) - 1))
        return tokens

    async def release(self) -> SessionReleased:
        """End the session in good order."""
        self.seam.send(Release(self.handle))
        return await receive(self.seam, SessionReleased)


def renamed(terms: SessionTerms, epoch: int, name: RouteSessionId | None = None) -> SessionTerms:
    """The same terms for another epoch, or another session."""
    return replace(terms, key=SessionKey(name or terms.key.session_id, epoch))
