"""What the contract promises the node before: acknowledgements, misses, and fields handed on."""

from meshnet.domain.errors import CacheMissError, MeshnetError, NodeLostError, error_from, status_of
from meshnet.domain.frames import (
    Cancel,
    ChunkInfo,
    DecodeFrame,
    DecodeStep,
    GenerationDone,
    OpenSession,
    PrefillChunk,
    Release,
    SeamReply,
    SeamRequest,
    SessionFailed,
    SessionOpened,
    StepAck,
    TokenReply,
    Unknown,
)
from meshnet.domain.generation import GeneratedToken, GenerationSpec
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import Capability, FlowControl, HealthReport
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType, EngineTensor
from meshnet.engine.fixture import N_EMBD
from meshnet.transport.base import ServerSeam, ShardService
from meshnet.transport.channel import SeamChannel
from tests.support.mesh import GREEDY, Listener, Mesh, mesh, start

LATER = Unknown(b"\xf8\x3f\x05", b"\xfa\x3f\x02ok")


def rows(count: int) -> EngineTensor:
    return EngineTensor(RESIDUAL, DType.FLOAT32, (count, N_EMBD), bytes(4 * count * N_EMBD))


def prefill(chain_terms, handle: int, unknown: Unknown) -> PrefillChunk:
    fresh = CacheExpectation(CacheMode.FRESH, 0)
    bundle = BoundaryBundle((rows(5),))
    return PrefillChunk(
        handle, chain_terms.key, ChunkInfo(0, 1, 5, 5), 0, 0, fresh, bundle, unknown
    )


async def opened(chain: Mesh, place: int) -> tuple[SeamChannel, Listener, int, SeamRequest]:
    channel = await chain.channel(place)
    listener, terms = Listener(), chain.terms(place)
    handle = channel.attach(listener)
    channel.send(OpenSession(handle, terms, GREEDY, (), FlowControl(), LATER))
    assert isinstance(await listener.next(), SessionOpened)
    chunk = prefill(terms, handle, LATER)
    channel.send(chunk)
    return channel, listener, handle, chunk


async def test_a_repeated_chunk_or_step_gets_the_first_answer_and_a_duplicate_ack():
    async with mesh((3,)) as chain:
        channel, listener, handle, chunk = await opened(chain, 1)
        step = DecodeFrame((DecodeStep(handle, 5, 1, rows(1)),))
        first = [await listener.next(), await listener.next()]
        channel.send(chunk)
        again = [await listener.next(), await listener.next()]
        channel.send(step)
        token = await listener.next()
        channel.send(step)
        repeated = [await listener.next(), await listener.next()]
        assert [type(reply) for reply in first] == [TokenReply, StepAck]
        assert again[0] == first[0]
        assert [ack.duplicate for ack in (first[1], again[1]) if isinstance(ack, StepAck)] == [
            False,
            True,
        ]
        assert repeated[0] == token
        assert isinstance(repeated[1], StepAck)
        assert repeated[1].duplicate
        assert repeated[1].cache.past_len == 6
        # The cache went on by one position only.
        channel.send(DecodeFrame((DecodeStep(handle, 6, 2, rows(1)),)))
        assert isinstance(await listener.next(), TokenReply)
        channel.send(Cancel(handle, "done"))


async def test_a_step_that_expects_another_length_misses_and_the_stream_lives_on():
    async with mesh((3,)) as chain:
        channel, listener, handle, _ = await opened(chain, 1)
        await listener.until(StepAck)
        wrong = DecodeStep(handle, 5, 1, rows(1), expected_past_len=4)
        channel.send(DecodeFrame((wrong,)))
        assert isinstance(missed(await listener.next()), CacheMissError)
        _, listener, handle, _ = await opened(chain, 1)
        await listener.until(StepAck)
        channel.send(DecodeFrame((DecodeStep(handle, 4, 1, rows(1)),)))
        assert isinstance(missed(await listener.next()), CacheMissError)


async def test_fields_of_a_newer_peer_reach_the_node_behind():
    async with mesh((2, 4)) as chain:
        spy = Spy()
        chain.network.drop(chain.hops[2].address)
        chain.network.register(chain.hops[2].address, spy)
        channel, listener, handle, _ = await opened(chain, 1)
        await listener.until(StepAck)
        step = DecodeStep(handle, 5, 1, rows(1), unknown=LATER)
        channel.send(DecodeFrame((step,)))
        reply = await listener.until(TokenReply)
        assert isinstance(reply, TokenReply)
        assert reply.unknown == LATER
        seen = [frame for frame in spy.seen if not isinstance(frame, Cancel)]
        unknown = [
            frame.steps[0].unknown if isinstance(frame, DecodeFrame) else frame.unknown
            for frame in seen
            if isinstance(frame, OpenSession | PrefillChunk | DecodeFrame)
        ]
        assert unknown == [LATER, LATER, LATER]
        channel.send(Cancel(handle, "done"))


class Spy(ShardService):
    """A tail that remembers what it is sent and answers with a field of its own."""

    def __init__(self) -> None:
        self.seen: list[SeamRequest] = []

    async def capability(self) -> Capability:
        raise NotImplementedError

    async def health(self) -> HealthReport:
        raise NotImplementedError

    async def release(self, key) -> None:
        raise NotImplementedError

    async def cancel(self, key, reason) -> None:
        raise NotImplementedError

    async def serve_seam(self, seam: ServerSeam) -> None:
        while (request := await seam.receive()) is not None:
            self.seen.append(request)
            if isinstance(request, OpenSession):
                seam.send(SessionOpened(request.handle, FlowControl()))
            elif isinstance(request, DecodeFrame):
                step = request.steps[0]
                token = GeneratedToken(step.position + 1, 65)
                seam.send(TokenReply(step.handle, step.step, token, LATER))


def missed(reply: SeamReply | MeshnetError) -> MeshnetError:
    assert isinstance(reply, SessionFailed), reply
    return error_from(reply.status)


class Forgetful(Spy):
    """A tail that gives its tokens and is lost when it is to release the session."""

    async def serve_seam(self, seam: ServerSeam) -> None:
        while (request := await seam.receive()) is not None:
            match request:
                case OpenSession():
                    seam.send(SessionOpened(request.handle, FlowControl()))
                case PrefillChunk():
                    token = GeneratedToken(request.position + request.boundary.rows, 65)
                    seam.send(TokenReply(request.handle, request.step, token))
                case DecodeFrame():
                    step = request.steps[0]
                    token = GeneratedToken(step.position + 1, 66)
                    seam.send(TokenReply(step.handle, step.step, token))
                case Release():
                    seam.send(SessionFailed(request.handle, status_of(NodeLostError("gone"))))


async def test_a_node_lost_after_the_last_token_spoils_no_answer():
    async with mesh((3,)) as chain:
        chain.network.drop(chain.hops[1].address)
        chain.network.register(chain.hops[1].address, Forgetful())
        channel = await chain.channel()
        listener, _ = start(channel, chain.terms(), GenerationSpec((1, 2, 3), GREEDY, 3))
        done = await listener.until(GenerationDone)
        assert isinstance(done, GenerationDone)
        assert [timing.node_id for timing in done.timings] == ["node-1"]
