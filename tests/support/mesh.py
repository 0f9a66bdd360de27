"""Chains of nodes with the fixture engine in one process, over the loopback transport or gRPC."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from meshnet.domain.errors import MeshnetError
from meshnet.domain.frames import Generate, SeamReply, SessionTerms
from meshnet.domain.generation import GenerationSpec
from meshnet.domain.ids import Address, Digest, NodeId, SessionKey, new_route_session_id
from meshnet.domain.layers import LayerRange
from meshnet.domain.lifecycle import CacheExpectation, CacheMode
from meshnet.domain.nodes import Capability, FlowControl, Hop
from meshnet.domain.recipe import Recipe
from meshnet.domain.sampling import SamplingParams
from meshnet.domain.tracing import NO_TRACER, Tracer
from meshnet.engine.base import (
    DecodeRequest,
    EngineLimits,
    LoadRequest,
    PrefillRequest,
    StepRequest,
    TokenChoice,
)
from meshnet.engine.fixture import Fault, FixtureEngine
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.node.parts import NodeParts, boundaries
from meshnet.node.schedule import Pace
from meshnet.node.shard import ShardNode
from meshnet.node.stepper import EngineStepper
from meshnet.session.chain import Chain, find_chain
from meshnet.session.generate import ChainModel
from meshnet.session.service import GenerationSummary, TextDelta, TextRequest
from meshnet.transport.certificates import Role
from meshnet.transport.channel import ChannelPool, SeamChannel
from meshnet.transport.loopback import LoopbackNetwork
from meshnet.transport.options import GrpcOptions
from meshnet.transport.receipts import ReceiptBook, Signer
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from meshnet.transport.tls import Identity
from tests.support.identities import member

LAYERS = 6
GREEDY = SamplingParams(temperature=0.0)
PENALISED = SamplingParams(
    temperature=0.9, top_k=40, seed=11, repeat_penalty=1.3, frequency_penalty=0.2, penalty_last_n=9
)


@dataclass(frozen=True, slots=True)
class Setup:
    """How the nodes of a chain are made. Faults and delays go by a node's place in the chain."""

    faults: Mapping[int, tuple[Fault, ...]] = field(default_factory=dict)
    step_seconds: Mapping[int, float] = field(default_factory=dict)
    flow: FlowControl = field(default_factory=FlowControl)
    chunk_tokens: int = 8
    context_length: int = 256
    engine_sessions: int = 8
    pace: Pace = field(default_factory=Pace)
    keep_seconds: float = 0.0
    idle_seconds: float = 300.0
    grpc: bool = False
    signed: bool = False
    """Over gRPC with mutual TLS, so that there are receipts."""
    tracer: Tracer = NO_TRACER

    def recipe(self) -> Recipe:
        """What the nodes compute."""
        return Recipe(Digest("sha256:" + "0" * 64), "fixture", "1", chunk_tokens=self.chunk_tokens)


@dataclass(slots=True)
class Node:
    """A node that serves, and what it is made of. ``naps`` are its engine's delays, in order."""

    shard: ShardNode
    engine: FixtureEngine
    hop: Hop
    naps: list[tuple[float, float]]
    server: GrpcNodeServer | None = None


class Mesh:
    """A running chain, head first, and a gateway's connections to it."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.network = LoopbackNetwork()
        self.nodes: list[Node] = []
        self.channels = self._pool(None, Role.GATEWAY)[0]
        self._wake = threading.Event()

    def _pool(
        self, origin: Address | None, role: Role = Role.NODE
    ) -> tuple[ChannelPool, Identity | None]:
        """Somebody's connections, and who that is."""
        if not self.setup.signed:
            return ChannelPool(self._transport(origin)), None
        identity = member(role=role)
        transport = GrpcTransport(self.setup.flow, GrpcOptions(tls=identity))
        return ChannelPool(transport, ReceiptBook(Signer(identity))), identity

    def _transport(self, origin: Address | None) -> GrpcTransport:
        if self.setup.grpc:
            return GrpcTransport(self.setup.flow)
        return self.network.transport(origin)  # type: ignore[return-value]

    async def add(self, layers: LayerRange) -> Node:
        """Start one more node."""
        number = len(self.nodes)
        name = f"node-{number + 1}"
        grpc = self.setup.grpc or self.setup.signed
        address = Address("127.0.0.1:0" if grpc else name)
        channels, identity = self._pool(address)
        if identity is not None:
            name = identity.node_id
        naps: list[tuple[float, float]] = []
        engine = self._engine(number, layers, naps)
        limits = engine.capabilities().limits
        recipe = self.setup.recipe()
        parts = NodeParts(
            NodeId(name),
            engine,
            engine.capabilities(),
            EngineStepper(engine, self.setup.flow.max_queued_work, self.setup.pace),
            channels,
            self.setup.flow,
            tracer=self.setup.tracer,
            boundaries=boundaries(recipe.fingerprint(), engine.capabilities().n_embd),
            keep_seconds=self.setup.keep_seconds,
            idle_seconds=self.setup.idle_seconds,
        )
        capability = Capability(
            NodeId(name),
            layers,
            LAYERS,
            recipe.fingerprint(),
            recipe.model_digest,
            "fixture",
            limits.context_length,
            self.setup.flow,
            tuple(parts.boundaries.values()),
            grammars=parts.capabilities.supports_grammar,
        )
        shard = ShardNode(parts, capability, self.setup.chunk_tokens)
        server: GrpcNodeServer | None = None
        if grpc:
            server = GrpcNodeServer(shard, address, self.setup.flow, GrpcOptions(tls=identity))
            address = await server.start()
        else:
            self.network.register(address, shard)
        node = Node(shard, engine, Hop(NodeId(name), address, layers), naps, server)
        self.nodes.append(node)
        return node

    def _engine(
        self, number: int, layers: LayerRange, naps: list[tuple[float, float]]
    ) -> FixtureEngine:
        def nap(seconds: float) -> None:
            began = time.perf_counter()
            self._wake.wait(seconds)
            naps.append((began, time.perf_counter()))

        engine = FixtureEngine(
            self.setup.faults.get(number, ()),
            step_seconds=self.setup.step_seconds.get(number, 0.0),
            sleep=nap,
        )
        limits = EngineLimits(self.setup.context_length, self.setup.engine_sessions)
        engine.load(
            LoadRequest(None, layers.start, layers.end, LAYERS, self.setup.recipe(), limits)
        )
        return engine

    @property
    def hops(self) -> tuple[Hop, ...]:
        """The route over all nodes."""
        return tuple(node.hop for node in self.nodes)

    @property
    def head(self) -> Node:
        """The first node."""
        return self.nodes[0]

    async def chain(self) -> Chain:
        """The chain as a gateway finds it."""
        return await find_chain(self.channels, [hop.address for hop in self.hops])

    async def model(self) -> ChainModel:
        """The chain as a model of bytes."""
        chain = await self.chain()
        return ChainModel("fixture", ByteTokenizer(), chain, self.channels, self.setup.tracer)

    async def channel(self, place: int = 0) -> SeamChannel:
        """A stream to a node."""
        return await self.channels.channel(self.nodes[place].hop.address, 2.0)

    def other_gateway(self) -> ChannelPool:
        """Connections of somebody else; the caller closes them."""
        return ChannelPool(self._transport(None))

    async def lose(self, place: int) -> None:
        """Lose a node at once, as when its machine loses power."""
        node = self.nodes[place]
        if node.server is not None:
            await node.server.stop(0.0)
        else:
            self.network.drop(node.hop.address)

    def terms(self, place: int = 0, **changed: object) -> SessionTerms:
        """A new session's terms as a node gets them."""
        values: dict[str, object] = {
            "key": SessionKey(new_route_session_id(), 0),
            "fingerprint": self.setup.recipe().fingerprint(),
            "hops": self.hops[place:],
            "deadline_unix_nanos": time.time_ns() + 30 * 10**9,
        }
        return SessionTerms(**(values | changed))  # type: ignore[arg-type]

    def open_sessions(self) -> list[tuple[int, int]]:
        """Sessions of each node and of its engine."""
        return [
            (len(node.shard._sessions), node.engine.metrics().open_sessions) for node in self.nodes
        ]

    async def idle(self, within_seconds: float = 2.0) -> None:
        """Wait until no node and no engine holds a session; fail after the time."""
        try:
            await until(lambda: not any(map(any, self.open_sessions())), within_seconds)
        except TimeoutError:
            raise AssertionError(f"open (node, engine): {self.open_sessions()}") from None

    async def close(self) -> None:
        """End everything."""
        self._wake.set()
        await self.channels.close()
        for node in self.nodes:
            if node.server is not None:
                await node.server.stop(0.1)
            await node.shard.close()
            # Then an engine may be freed: what its thread was doing is over.
            thread = node.shard._parts.stepper._thread._thread
            await asyncio.to_thread(thread.join, 5.0)
            assert not thread.is_alive(), "the engine's thread goes on"


@asynccontextmanager
async def mesh(cuts: Iterable[int] = (), setup: Setup | None = None) -> AsyncIterator[Mesh]:
    """Nodes that share the layers at ``cuts``; in the end all of them must be idle."""
    made = Mesh(setup or Setup())
    edges = [0, *cuts, LAYERS]
    try:
        for start, end in itertools.pairwise(edges):
            await made.add(LayerRange(start, end))
        yield made
        made._wake.set()
        await made.idle()
    finally:
        await made.close()


async def until(happened: Callable[[], bool], within_seconds: float = 2.0) -> None:
    """Wait for what has no event; raises ``TimeoutError``."""
    async with asyncio.timeout(within_seconds):
        while not happened():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)


class Listener:
    """Collects what comes back on one handle."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[SeamReply | MeshnetError] = asyncio.Queue()

    def on_reply(self, reply: SeamReply) -> None:
        self._heard.put_nowait(reply)

    def on_lost(self, error: MeshnetError) -> None:
        self._heard.put_nowait(error)

    async def next(self, within_seconds: float = 2.0) -> SeamReply | MeshnetError:
        """What comes next."""
        return await asyncio.wait_for(self._heard.get(), within_seconds)

    async def until(self, kind: type, within_seconds: float = 2.0) -> SeamReply | MeshnetError:
        """Skip what comes before the first reply of a kind."""
        while not isinstance(reply := await self.next(within_seconds), kind):
            pass
        return reply

    def waiting(self) -> int:
        """How much came that nobody has taken."""
        return self._heard.qsize()


def start(
    channel: SeamChannel, terms: SessionTerms, spec: GenerationSpec, token_credits: int = 1000
) -> tuple[Listener, int]:
    """Send a generation; returns the ear and the handle."""
    listener = Listener()
    handle = channel.attach(listener)
    channel.send(Generate(handle, terms, spec, token_credits))
    return listener, handle


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole generation."""

    tokens: list[int]
    text: str
    summary: GenerationSummary


async def ask(
    model: ChainModel,
    prompt: Sequence[int],
    max_new_tokens: int = 12,
    sampling: SamplingParams = GREEDY,
    **more: object,
) -> Answer:
    """Run a generation to its end."""
    request = TextRequest(tuple(prompt), sampling, max_new_tokens, **more)  # type: ignore[arg-type]
    tokens: list[int] = []
    text: list[str] = []
    summary: GenerationSummary | None = None
    async for event in model.generate(request):
        if isinstance(event, TextDelta):
            tokens += [token.token_id for token in event.tokens]
            text.append(event.text)
        else:
            summary = event
    assert summary is not None, "the last event is a summary"
    return Answer(tokens, "".join(text), summary)


def alone(
    prompt: Sequence[int],
    max_new_tokens: int = 12,
    sampling: SamplingParams = GREEDY,
    setup: Setup | None = None,
) -> list[int]:
    """The tokens of an engine that holds all layers, played without any node."""
    setup = setup or Setup()
    engine = FixtureEngine()
    engine.load(LoadRequest(None, 0, LAYERS, LAYERS, setup.recipe(), EngineLimits(4096)))
    key = SessionKey(new_route_session_id(), 0)
    tokens = list(prompt)
    step = 0
    while len(tokens) - len(prompt) < max_new_tokens:
        position = min(step * setup.chunk_tokens, len(prompt))
        if position < len(prompt):
            rows = tokens[position : min(position + setup.chunk_tokens, len(prompt))]
        else:
            position, rows = len(tokens) - 1, tokens[-1:]
        request = _request(key, position, step, tuple(rows), TokenChoice(sampling, tuple(tokens)))
        step += 1
        chosen = engine.execute([request])[0].token()
        if position + len(rows) == len(tokens):
            tokens.append(chosen.token_id)
    return tokens[len(prompt) :]


def _request(
    key: SessionKey, position: int, step: int, rows: tuple[int, ...], choice: TokenChoice
) -> StepRequest:
    mode = CacheMode.EXACT if position else CacheMode.FRESH
    kind = DecodeRequest if position and len(rows) == 1 else PrefillRequest
    return kind(key, position, CacheExpectation(mode, position), step, rows, choice=choice)


def prompt_of(length: int, seed: int = 0) -> tuple[int, ...]:
    """Printable bytes, other ones for other seeds."""
    return tuple(32 + (seed * 31 + i * 7 + i * i) % 95 for i in range(length))
