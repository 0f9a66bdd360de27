"""Brings up what a command talks to: nodes on this machine, or nodes that already run."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from pathlib import Path

from meshnet.cli.options import Boundary, NodeOptions, Optimise
from meshnet.cli.output import print_error, print_note, progress_bars
from meshnet.cli.settings import Settings
from meshnet.domain.errors import FingerprintMismatchError, ModelNotFoundError
from meshnet.domain.generation import Speculation
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange, balanced_ranges
from meshnet.domain.nodes import FlowControl
from meshnet.domain.tracing import NO_TRACER, Tracer
from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.check import check_index
from meshnet.model.demo import demo_model
from meshnet.model.description import (
    ModelInfo,
    describe,
    free_cuts,
    legal_cuts,
    require_legal,
)
from meshnet.model.gguf import read_index
from meshnet.model.remote import RemoteModel, open_remote
from meshnet.model.rotary import uses_long_factors
from meshnet.model.sources import is_address, source_of
from meshnet.node.config import LlamaEngineConfig, NodeConfig
from meshnet.node.keeper import NodeKeeper
from meshnet.node.supervisor import NodeProcess, WorkerDeath
from meshnet.session.chain import Chain, find_chain
from meshnet.session.generate import ChainModel
from meshnet.session.links import choose_boundary, measure_links
from meshnet.session.recovery import NO_RECOVERY, RecoveryPolicy
from meshnet.transport.channel import ChannelPool
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.tls import IdentitySource

WORKER_COMMAND = (sys.executable, "-m", "meshnet.cli.worker")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file and the name that users call it by."""

    path: Path
    name: str
    remote: RemoteModel | None = None
    """Where the weights are, if the file has nothing but headers."""

    @property
    def origin(self) -> Path | RemoteModel:
        """What slices are made of."""
        return self.remote or self.path

    @property
    def address(self) -> str:
        """Where the model is, for people."""
        return self.remote.sources[0].name if self.remote is not None else str(self.path)


def find_model(argument: str, settings: Settings) -> LocalModel:
    """The file that MODEL means; of an address only its header is read.

    Raises ``ModelNotFoundError`` with what to do, and what ``open_remote`` does.
    """
    if is_address(argument):
        source = source_of(argument, settings.hub, settings.hub_token)
        remote = open_remote([source], settings.cache)
        return LocalModel(remote.index.path, remote.index.path.stem, remote)
    if argument == "demo":
        with progress_bars() as progress:
            return LocalModel(demo_model(settings.cache, progress), "smollm2-135m-instruct")
    advice = "give the path or the address of a GGUF file, or `demo` for a small one"
    try:
        path = Path(argument).expanduser()
        there = path.exists()
    except (OSError, RuntimeError) as error:
        # A folder that mustn't be read, a name too long, or `~` of somebody who isn't known.
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ModelNotFoundError(f"can't look for a model at {argument}: {reason}; {advice}") from (
            error
        )
    if not there:
        raise ModelNotFoundError(f"no model at {argument}; {advice}")
    return LocalModel(path, path.stem)


def cut_model(
    model: LocalModel, ranges: Sequence[LayerRange], settings: Settings, options: NodeOptions
) -> list[SliceFile]:
    """The slices of ``model``, from the cache, or written or fetched now with progress bars."""
    cache = slice_cache(settings)
    with progress_bars() as progress:
        return [
            cache.ensure(model.origin, layers, progress, allow_unverified=options.allow_unverified)
            for layers in ranges
        ]


@functools.cache
def slice_cache(settings: Settings) -> SliceCache:
    """This process's cache: the slices that it asked for stay until the process ends."""
    return SliceCache(settings.cache, settings.cache_limit)


def whole_model(model: LocalModel, settings: Settings) -> LocalModel:
    """The model with its weights on this machine: all of it is fetched unless it is here."""
    if model.remote is None:
        return model
    layers = LayerRange(0, describe(model.remote.index).total_layers)
    with progress_bars() as progress:
        # Whether its architecture is proven is asked where it is cut.
        held = slice_cache(settings).ensure(model.remote, layers, progress, allow_unverified=True)
    return LocalModel(held.path, model.name)


def model_digest(model: LocalModel, settings: Settings) -> Digest:
    """The model's digest, computed with a progress bar unless it is known."""
    with progress_bars() as progress:
        return slice_cache(settings).digest(model.origin, progress)


def within_context(model: LocalModel, options: NodeOptions) -> NodeOptions:
    """The options, with no longer a context than the model was made for."""
    info = describe(read_index(model.path))
    return replace(options, context_length=context_within(info, options.context_length))


def context_within(info: ModelInfo, asked: int) -> int:
    """The context to use, in tokens: what was asked for, or else the model's, which is noted."""
    limit = info.context_length
    if asked > limit:
        print_note(f"the model's context is {limit} tokens; --ctx {asked} is cut to it")
    return min(asked, limit)


def split(model: LocalModel, options: NodeOptions) -> tuple[LayerRange, ...]:
    """A range for each node, cut where the slowest node has as little to do as can be.

    A lone reader's work is counted in bytes, that of many at once in numbers, which are multiplied
    by many rows once they are read. A prompt's tokens need the tail's output matrix only once, a
    generated token needs it every time; on small models it weighs as much as several layers.
    Cuts that make a node compute layers of zeros are taken only where there are too few others.
    Raises if the model mustn't be cut.
    """
    info = describe(read_index(model.path))
    cuts = legal_cuts(info, allow_unverified=options.allow_unverified)
    free = free_cuts(info, cuts)
    if len(free) >= options.nodes - 1:
        cuts = free
    many = options.optimise is Optimise.THROUGHPUT
    work, output = (info.layer_weights, info.output_weights) if many else (info.layer_bytes, 0)
    # Where no cut is legal, any will do to be told why.
    ranges = balanced_ranges(work, output, options.nodes, cuts or range(1, info.total_layers))
    for layers in ranges:
        require_legal(info, layers, allow_unverified=options.allow_unverified)
    return ranges


def node_config(
    number: int,
    cut: SliceFile,
    options: NodeOptions,
    listen: str,
    next_address: Address | None,
    name: str | None = None,
    variables: tuple[str, ...] = (),
    notes: Path | None = None,
) -> NodeConfig:
    """The configuration of one node over its slice; ``notes`` as in the engine's."""
    engine = engine_config(
        cut.path, cut.model_digest, cut.digest, cut.architecture, options, variables
    )
    return NodeConfig(
        NodeId(name or f"node-{number}"),
        cut.layers.start,
        cut.layers.end,
        cut.total_layers,
        replace(engine, notes=notes),
        listen,
        next_address,
        options.limits(),
        options.flow(),
        pace=options.pace(),
        prefix_cache=options.prefix_cache,
    )


def engine_config(
    path: Path,
    digest: Digest,
    slice_digest: Digest,
    architecture: str,
    options: NodeOptions,
    variables: tuple[str, ...],
) -> LlamaEngineConfig:
    """How libllama computes the file at ``path``; ``digest`` is the whole model's."""
    return LlamaEngineConfig(
        path,
        digest,
        slice_digest,
        architecture,
        options.cache_type_k,
        options.cache_type_v,
        options.flash_attention,
        uses_long_factors(read_index(path), options.context_length, options.sessions),
        variables,
    )


def local_configs(model: LocalModel, settings: Settings, options: NodeOptions) -> list[NodeConfig]:
    """Nodes on this machine that hold the whole model between them.

    Called outside the event loop: writing slices takes as long as the disk does, and Ctrl-C must
    end it at once.
    """
    fitting = within_context(model, options)
    cuts = cut_model(model, split(model, fitting), settings, fitting)
    return [
        node_config(
            number,
            cut,
            fitting,
            "127.0.0.1:0",
            None,
            variables=settings.variables,
            notes=settings.notes,
        )
        for number, cut in enumerate(cuts, start=1)
    ]


@asynccontextmanager
async def local_nodes(
    configs: Sequence[NodeConfig],
) -> AsyncIterator[tuple[list[Address], list[NodeProcess]]]:
    """Node processes that all serve, each started once, and where; ended on the way out."""
    processes = [NodeProcess(WORKER_COMMAND, config) for config in configs]
    try:
        yield list(await asyncio.gather(*(process.start() for process in processes))), processes
    finally:
        await asyncio.gather(*(process.stop() for process in processes))


@asynccontextmanager
async def kept_nodes(
    configs: Sequence[NodeConfig], on_death: Callable[[WorkerDeath], None]
) -> AsyncIterator[tuple[list[Address], list[NodeKeeper]]]:
    """Node processes that are started again when they die, and where; ended on the way out."""
    keepers = [NodeKeeper(WORKER_COMMAND, config, on_death) for config in configs]
    try:
        yield list(await asyncio.gather(*(keeper.start() for keeper in keepers))), keepers
    finally:
        await asyncio.gather(*(keeper.stop() for keeper in keepers))


@asynccontextmanager
async def served_model(
    model: LocalModel,
    addresses: Sequence[Address],
    digest: Digest,
    name: str | None = None,
    tracer: Tracer = NO_TRACER,
    boundary: Boundary = Boundary.FLOAT32,
    speculation: Speculation = Speculation.AUTO,
    identity: IdentitySource | None = None,
    policy: RecoveryPolicy = NO_RECOVERY,
) -> AsyncIterator[ChainModel]:
    """The model over the chain of nodes at ``addresses``, whose seams carry ``boundary``.

    With ``identity``, that of a gateway, they are reached by mutual TLS, else without any TLS.
    ``digest`` is the local file's, whose vocabulary is used: raises ``FingerprintMismatchError`` if
    the nodes hold another model, and what ``check_index`` does if libllama can't load the file.
    """
    # Before libllama sees the file; in a thread, for a large vocabulary takes a second.
    await asyncio.to_thread(_check_file, model.path)
    async with AsyncExitStack() as stack:
        # Freed last: until the channels are closed, tokens may still arrive.
        freed_last = stack.enter_context(ExitStack())
        channels = ChannelPool(GrpcTransport(FlowControl(), GrpcOptions(tls=identity)))
        stack.push_async_callback(channels.close)
        chain = await find_chain(channels, addresses)
        theirs = chain.fingerprint.model_artifact_digest
        if theirs != digest:
            raise FingerprintMismatchError(
                f"the nodes hold another model than {model.address}: {theirs} there, {digest} here",
                here=digest,
                there=theirs,
            )
        vocabulary = freed_last.enter_context(Vocabulary.load(model.path))
        grammars = freed_last.enter_context(closing(LlamaGrammars(model.path)))
        agreed = await _with_boundary(chain, boundary, channels, model)
        yield ChainModel(
            name or model.name,
            vocabulary,
            agreed,
            channels,
            tracer,
            speculation,
            grammars,
            policy,
        )


def _check_file(path: Path) -> None:
    # Whether its architecture is proven is the nodes' business: here it is a vocabulary.
    check_index(read_index(path), allow_unverified=True)


async def _with_boundary(
    chain: Chain, boundary: Boundary, channels: ChannelPool, model: LocalModel
) -> Chain:
    dtype = boundary.dtype()
    if dtype is None:
        n_embd = describe(read_index(model.path)).n_embd
        links = await measure_links(channels, chain)
        dtype = choose_boundary(links, n_embd, chain.dtypes)
        print_note(f"the seams carry {dtype.value}, by the slowest of {len(links)} links")
    return chain.with_boundary(dtype)


def report_death(death: WorkerDeath) -> None:
    """Say on standard error that a node died."""
    print_error(death.describe())
