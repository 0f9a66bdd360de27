"""What a peer may make a node hold, and for how long."""

import asyncio
import dataclasses

import pytest

from meshnet.domain.errors import (
    CacheMissError,
    DeadlineExceededError,
    InvalidArgumentError,
    MeshnetError,
    ResourceExhaustedError,
    error_from,
)
from meshnet.domain.frames import (
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    OpenSession,
    PrefillChunk,
    SessionFailed,
    SessionOpened,
    SessionTerms,
    TokenReply,
    Unknown,
)
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import FlowControl
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.fixture import N_EMBD
from meshnet.node import session as node_session
from meshnet.node.seam_session import MAX_UNKNOWN_BYTES
from meshnet.node.stepper import MAX_DECODE_ROWS
from tests.support.mesh import GREEDY, Listener, Mesh, Setup, ask, mesh, prompt_of, start, until

STUCK = Setup(step_seconds={1: 30.0})
"""The tail computes its first step until the test is over."""


def tensor(*shape: int, name: str = RESIDUAL) -> EngineTensor:
    rows, width = shape
    return EngineTensor(name, DType.FLOAT32, shape, bytes(4 * rows * width))


ROW = tensor(1, N_EMBD)


class Peer:
    """The node before the tail, which may send what it likes."""

    def __init__(self, chain: Mesh) -> None:
        self.chain = chain
        self.listener = Listener()

    async def open(self, history: tuple[int, ...] = (), **terms: object) -> SessionTerms:
        self.channel = await self.chain.channel(1)
        self.handle = self.channel.attach(self.listener)
        self.terms = self.chain.terms(1, **terms)
        flow = FlowControl()
        self.channel.send(OpenSession(self.handle, self.terms, GREEDY, history, flow))
        return self.terms

    async def open_and_begin(self, chunks: int = 1) -> None:
        """A session whose first chunk is being computed."""
        await self.open()
        assert isinstance(await self.listener.next(), SessionOpened)
        self.channel.send(self.chunk(BoundaryBundle((ROW,)), 0, chunks))
        await until(lambda: self.chain.nodes[1].shard.parts.stepper._plan.computing)

    def chunk(self, boundary: BoundaryBundle, position: int, chunks: int = 2) -> PrefillChunk:
        mode = CacheMode.EXACT if position else CacheMode.FRESH
        return PrefillChunk(
            self.handle,
            self.terms.key,
            ChunkInfo(position, chunks, 1, chunks),
            position,
            position,
            CacheExpectation(mode, position),
            boundary,
        )

    def step(self, row: EngineTensor, **more: object) -> DecodeFrame:
        return DecodeFrame((DecodeStep(self.handle, 1, 1, row, **more),))  # type: ignore[arg-type]

    async def refusal(self) -> MeshnetError:
        failed = await self.listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        return error_from(failed.status)


LARGE = MAX_DECODE_ROWS + 1


@pytest.mark.parametrize(
    "frame",
    [
        lambda peer: peer.step(tensor(1, 1 << 16)),
        lambda peer: peer.step(tensor(LARGE, N_EMBD), proposed=(7,) * (LARGE - 1)),
        lambda peer: peer.step(tensor(2, N_EMBD)),
        lambda peer: peer.step(ROW, unknown=Unknown(bytes(MAX_UNKNOWN_BYTES + 1))),
        lambda peer: peer.chunk(BoundaryBundle((tensor(1, 1 << 16),)), 1),
        lambda peer: peer.chunk(BoundaryBundle((tensor(2, N_EMBD),)), 1),
        lambda peer: peer.chunk(BoundaryBundle((ROW, tensor(1, 1, name="odd"))), 1),
        lambda peer: peer.chunk(BoundaryBundle((tensor(1, N_EMBD, name="odd"),)), 1),
        lambda peer: peer.chunk(BoundaryBundle((ROW,), (7,) * 9), 1),
    ],
    ids=[
        "wide row",
        "many rows",
        "rows without tokens",
        "much that is unknown",
        "wide chunk",
        "more rows than the chunk says",
        "a second tensor",
        "another tensor",
        "many ids",
    ],
)
async def test_a_busy_session_keeps_no_frame_that_is_no_step(frame):
    async with mesh((3,), STUCK) as chain:
        peer = Peer(chain)
        await peer.open_and_begin()
        peer.channel.send(frame(peer))
        assert isinstance(await peer.refusal(), InvalidArgumentError)


async def test_a_history_longer_than_the_context_is_refused():
    async with mesh((3,)) as chain:
        peer = Peer(chain)
        await peer.open((7,) * (chain.setup.context_length + 1))
        error = await peer.refusal()
        assert isinstance(error, InvalidArgumentError)
        assert error.message.startswith("history")


async def test_a_session_that_fails_in_its_own_task_leaves_no_task():
    setup = Setup(step_seconds={1: 0.05})
    async with mesh((3,), setup) as chain:
        peer = Peer(chain)
        await peer.open_and_begin(chunks=2)
        # It waits until the chunk is done, and is refused by the session's task.
        peer.channel.send(peer.step(ROW, expected_past_len=9))
        assert isinstance(await peer.refusal(), CacheMissError)
        await until(lambda: not tasks_of(peer.terms))


async def test_a_head_that_cant_send_its_first_step_leaves_no_task(monkeypatch):
    async with mesh() as chain:

        def full(*_: object) -> None:
            raise ResourceExhaustedError("no step may wait")

        monkeypatch.setattr(chain.head.shard.parts.stepper, "submit", full)
        with pytest.raises(ResourceExhaustedError):
            await ask(await chain.model(), prompt_of(5))
        await until(lambda: not any(name.startswith("session ") for name in task_names()))


def tasks_of(terms: SessionTerms) -> list[str]:
    return [name for name in task_names() if name == f"session {terms.key}"]


def task_names() -> list[str]:
    return [task.get_name() for task in asyncio.all_tasks()]


async def test_a_session_without_a_deadline_ends_by_itself(monkeypatch):
    monkeypatch.setattr(node_session, "MAX_SESSION_SECONDS", 0.1)
    async with mesh((3,)) as chain:
        peer = Peer(chain)
        await peer.open(deadline_unix_nanos=0)
        assert isinstance(await peer.listener.next(), SessionOpened)
        assert isinstance(await peer.refusal(), DeadlineExceededError)


async def test_a_generation_without_a_deadline_or_credits_ends_by_itself(monkeypatch):
    monkeypatch.setattr(node_session, "MAX_SESSION_SECONDS", 0.2)
    async with mesh() as chain:
        terms = dataclasses.replace(chain.terms(), deadline_unix_nanos=0)
        spec = GenerationSpec(prompt_of(5), GREEDY, 50)
        listener, _ = start(await chain.channel(), terms, spec, token_credits=1)
        await listener.until(TokenReply)
        failed = await listener.until(SessionFailed)
        assert isinstance(failed, SessionFailed)
        assert isinstance(error_from(failed.status), DeadlineExceededError)
