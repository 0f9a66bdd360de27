"""What a reader makes of a head's replies, on one chain and on the next."""

import asyncio
import math
import time

import pytest

from meshnet.domain.errors import (
    DeadlineExceededError,
    FingerprintMismatchError,
    InternalError,
    MeshnetError,
    NodeLostError,
)
from meshnet.domain.frames import GenerationDone, SeamReply, SessionOpened, TokenReply
from meshnet.domain.generation import FinishReason, GeneratedToken, GenerationSpec
from meshnet.domain.nodes import FlowControl
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.session.reading import Inbox, Reader
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from tests.support.frames import TERMS

PROMPT = (1, 2, 3)


class Channel:
    """A head's channel, on which a test says what comes."""

    def attach(self, _listener: object) -> int:
        return 1

    def send(self, request: object) -> None:
        pass


def reader() -> Reader:
    request = TextRequest(PROMPT, max_new_tokens=9)
    spec = GenerationSpec(PROMPT, max_new_tokens=9)
    return Reader(ByteTokenizer(), request, spec, time.perf_counter())


async def read(
    reading: Reader,
    *replies: SeamReply,
    lost: MeshnetError | None = None,
    open_by: float = math.inf,
) -> list[TextDelta | GenerationSummary]:
    """What a chain's replies add."""
    inbox = Inbox(Channel(), TERMS.hops[0])  # type: ignore[arg-type]
    for reply in replies:
        inbox.on_reply(reply)
    if lost is not None:
        inbox.on_lost(lost)
    async with asyncio.timeout(1.0):
        return [event async for event in reading.events(inbox, TERMS, open_by)]


def opened(replayed: int = 0) -> SessionOpened:
    return SessionOpened(1, FlowControl(), replayed_tokens=replayed)


def token(position: int, text: str) -> TokenReply:
    return TokenReply(1, position, GeneratedToken(position, ord(text)))


async def begun() -> Reader:
    """One that lost its chain after a token."""
    reading = reader()
    with pytest.raises(NodeLostError) as caught:
        await read(reading, opened(), token(3, "a"), lost=NodeLostError("it died"))
    assert reading.let_in
    reading.lost(caught.value, time.perf_counter())
    return reading


async def test_the_next_chain_gets_what_there_is_and_adds_the_rest():
    reading = await begun()
    assert not reading.let_in
    spec = reading.spec
    assert (spec.prompt, spec.generated, spec.max_new_tokens) == ((*PROMPT, ord("a")), 1, 8)
    *deltas, summary = await read(
        reading, opened(1), token(4, "b"), GenerationDone(1, FinishReason.STOP, ())
    )
    assert [it.text for it in deltas if isinstance(it, TextDelta)] == ["b"]
    assert isinstance(summary, GenerationSummary)
    assert (summary.prompt_tokens, summary.completion_tokens) == (3, 2)
    assert len(summary.pauses) == 1


async def test_a_head_that_would_take_the_tokens_for_a_prompt_isnt_gone_on_with():
    reading = await begun()
    with pytest.raises(FingerprintMismatchError, match="older"):
        await read(reading, opened(), token(4, "b"))
    assert not reading.let_in


async def test_a_head_that_says_nothing_is_given_up_when_it_must_have_let_it_in():
    reading = await begun()
    with pytest.raises(DeadlineExceededError):
        await read(reading, open_by=time.perf_counter() + 0.02)


@pytest.mark.parametrize("position", [3, 5])
async def test_a_token_out_of_its_place_is_no_text(position):
    reading = await begun()
    with pytest.raises(InternalError, match="4 is due"):
        await read(reading, opened(1), token(position, "b"))
