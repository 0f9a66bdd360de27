"""A chain of three nodes, each with a twin, whose nodes die in the middle of a step."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from meshnet.domain.errors import NodeNotReadyError
from meshnet.domain.ids import SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import Hop
from meshnet.engine.base import PrefillRequest, ShardEngine, StepRequest, StepResult
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.engine.tokenizer import ByteTokenizer, Tokenizer
from meshnet.session.generate import ChainModel
from meshnet.session.recovery import RecoveryPolicy
from meshnet.session.routed import RoutedChains
from tests.support.mesh import LAYERS, Mesh, Setup

CUTS = (2, 4)
QUICK = RecoveryPolicy(2.0, 0.001, 0.01)


@dataclass(frozen=True, slots=True)
class Ran:
    """A step that an engine was asked for."""

    node: str
    key: SessionKey
    prefill: bool
    position: int
    rows: int


class Doom:
    """Kills nodes at their steps, from the engine's own thread, before the step gives anything."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._loop = asyncio.get_running_loop()
        self._at: dict[int, int] = {}
        self.steps: dict[int, int] = {}
        self.ran: list[Ran] = []
        self.dead: list[int] = []

    def begin(self) -> None:
        """Nobody is doomed, and nothing ran yet."""
        self._at, self.steps, self.ran, self.dead = {}, {}, [], []

    def kill(self, place: int, at_step: int) -> None:
        """The node at a place dies at its step of that number from now on, 0 the next one."""
        self._at[place] = self.steps.get(place, 0) + at_step

    def watch(self, place: int, engine: ShardEngine) -> None:
        """Be told of an engine's steps."""
        execute = engine.execute

        def watched(requests: Sequence[StepRequest]) -> list[StepResult]:
            number = self.steps[place] = self.steps.get(place, 0) + 1
            name = self._mesh.nodes[place].hop.node_id
            self.ran += [
                Ran(name, it.key, isinstance(it, PrefillRequest), it.position, it.rows)
                for it in requests
            ]
            results = execute(requests)
            if self._at.get(place) == number - 1:
                self._drop(place)
            return results

        engine.execute = watched  # type: ignore[method-assign]

    def _drop(self, place: int) -> None:
        gone = threading.Event()

        def drop() -> None:
            self.dead.append(place)
            self._mesh.network.drop(self._mesh.nodes[place].hop.address)
            gone.set()

        self._loop.call_soon_threadsafe(drop)
        gone.wait(5)

    def revive(self) -> None:
        """The dead are there again."""
        for place in self.dead:
            node = self._mesh.nodes[place]
            self._mesh.network.register(node.hop.address, node.shard)
        self.dead = []


class Twins:
    """Names for each range the first node that hasn't erred; it fulfils ``Routes``."""

    def __init__(self, hops: Sequence[Hop]) -> None:
        self._hops = tuple(hops)
        self.avoided: set[str] = set()
        self.asked = 0

    async def route(self) -> tuple[Hop, ...]:
        self.asked += 1
        chosen: dict[LayerRange, Hop] = {}
        for hop in self._hops:
            if hop.node_id not in self.avoided:
                chosen.setdefault(hop.layers, hop)
        route = tuple(chosen[layers] for layers in sorted(chosen))
        if sum(len(hop.layers) for hop in route) < LAYERS:
            raise NodeNotReadyError("no node is ready with all layers")
        return route

    def took(self, hops: Sequence[Hop]) -> None:
        pass

    def worked(self, hops: Sequence[Hop]) -> None:
        pass

    def erred(self, node_id: str) -> None:
        self.avoided.add(node_id)


@dataclass(slots=True)
class Dying:
    """The twins' mesh, and a model over it."""

    mesh: Mesh
    doom: Doom
    routes: Twins
    model: ChainModel

    def begin(self) -> None:
        """All nodes are there, and none is doomed."""
        self.doom.revive()
        self.doom.begin()
        self.routes.avoided.clear()


@asynccontextmanager
async def dying(
    made: Mesh | None = None,
    tokenizer: Tokenizer | None = None,
    policy: RecoveryPolicy = QUICK,
    cuts: Iterable[int] = CUTS,
) -> AsyncIterator[Dying]:
    """``made``: without nodes yet; in the end all of them must be idle."""
    mesh = made or Mesh(Setup(context_length=512))
    edges = [0, *cuts, LAYERS]
    try:
        for _ in range(2):
            for start, end in itertools.pairwise(edges):
                await mesh.add(LayerRange(start, end))
        doom = Doom(mesh)
        for place, node in enumerate(mesh.nodes):
            doom.watch(place, node.engine)
        routes = Twins(mesh.hops)
        digest, context = mesh.setup.recipe().model_digest, mesh.setup.context_length
        chains = RoutedChains(routes, mesh.channels, digest, context)
        vocabulary = tokenizer or ByteTokenizer()
        model = ChainModel("dying", vocabulary, chains, mesh.channels, policy=policy)
        yield Dying(mesh, doom, routes, model)
        doom.revive()
        mesh._wake.set()
        await mesh.idle()
    finally:
        await mesh.close()
        for node in mesh.nodes:
            if isinstance(node.engine, LlamaShardEngine):
                node.engine.close()
