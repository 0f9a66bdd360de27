"""Brings up what a command talks to: nodes on this machine, or nodes that already run."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from meshnet.cli.options import NodeOptions
from meshnet.cli.output import print_error, print_note, progress_bars
from meshnet.cli.settings import Settings
from meshnet.domain.errors import FingerprintMismatchError, ModelNotFoundError
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange, even_ranges
from meshnet.domain.nodes import FlowControl
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.demo import demo_model
from meshnet.model.description import describe, require_legal
from meshnet.model.gguf import read_index
from meshnet.node.config import LlamaEngineConfig, NodeConfig
from meshnet.node.keeper import NodeKeeper
from meshnet.node.supervisor import NodeProcess, WorkerDeath
from meshnet.session.chain import find_chain
from meshnet.session.generate import ChainModel
from meshnet.transport.channel import ChannelPool
from meshnet.transport.seam_client import GrpcTransport

WORKER_COMMAND = (sys.executable, "-m", "meshnet.cli.worker")


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A model file and the name that users call it by."""

    path: Path
    name: str


def find_model(argument: str, settings: Settings) -> LocalModel:
    """The file that MODEL means; raises ``ModelNotFoundError`` with what to do."""
    if argument == "demo":
        with progress_bars() as progress:
            return LocalModel(demo_model(settings.cache, progress), "smollm2-135m-instruct")
    path = Path(argument).expanduser()
    if not path.exists():
        raise ModelNotFoundError(
            f"no model at {argument}; give the path of a GGUF file, or `demo` for a small one"
        )
    return LocalModel(path, path.stem)


def cut_model(
    model: LocalModel, ranges: Sequence[LayerRange], settings: Settings, options: NodeOptions
) -> list[SliceFile]:
    """The slices of ``model``, from the cache or written now with progress bars."""
    cache = SliceCache(settings.cache)
    with progress_bars() as progress:
        return [
            cache.ensure(model.path, layers, progress, allow_unverified=options.allow_unverified)
            for layers in ranges
        ]


def model_digest(model: LocalModel, settings: Settings) -> Digest:
    """The model's digest, computed with a progress bar unless it is known."""
    with progress_bars() as progress:
        return SliceCache(settings.cache).digest(model.path, progress)


def within_context(model: LocalModel, options: NodeOptions) -> NodeOptions:
    """The options, with no longer a context than the model was made for."""
    limit = describe(read_index(model.path)).context_length
    if options.context_length <= limit:
        return options
    print_note(
        f"the model's context is {limit} tokens; --ctx {options.context_length} is cut to it"
    )
    return replace(options, context_length=limit)


def split_evenly(model: LocalModel, options: NodeOptions) -> tuple[LayerRange, ...]:
    """Ranges of equal size; raises if one isn't a legal slice of this model."""
    info = describe(read_index(model.path))
    ranges = even_ranges(info.total_layers, options.nodes)
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
) -> NodeConfig:
    """The configuration of one node over its slice."""
    return NodeConfig(
        NodeId(name or f"node-{number}"),
        cut.layers.start,
        cut.layers.end,
        cut.total_layers,
        LlamaEngineConfig(
            cut.path,
            cut.model_digest,
            cut.digest,
            cut.architecture,
            flash_attention=options.flash_attention,
        ),
        listen,
        next_address,
        options.limits(),
        options.flow(),
    )


def local_configs(model: LocalModel, settings: Settings, options: NodeOptions) -> list[NodeConfig]:
    """Nodes on this machine that hold the whole model between them, cut evenly.

    Called outside the event loop: writing slices takes as long as the disk does, and Ctrl-C must
    end it at once.
    """
    fitting = within_context(model, options)
    cuts = cut_model(model, split_evenly(model, fitting), settings, fitting)
    return [
        node_config(number, cut, fitting, "127.0.0.1:0", None)
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
) -> AsyncIterator[list[Address]]:
    """Node processes that are started again when they die; ended on the way out."""
    keepers = [NodeKeeper(WORKER_COMMAND, config, on_death) for config in configs]
    try:
        yield list(await asyncio.gather(*(keeper.start() for keeper in keepers)))
    finally:
        await asyncio.gather(*(keeper.stop() for keeper in keepers))


@asynccontextmanager
async def served_model(
    model: LocalModel, addresses: Sequence[Address], digest: Digest, name: str | None = None
) -> AsyncIterator[ChainModel]:
    """The model over the chain of nodes at ``addresses``.

    ``digest`` is the local file's, whose vocabulary is used: raises ``FingerprintMismatchError`` if
    the nodes hold another model.
    """
    async with AsyncExitStack() as stack:
        # Freed last: until the channels are closed, tokens may still arrive.
        vocabulary = stack.enter_context(Vocabulary.load(model.path))
        channels = ChannelPool(GrpcTransport(FlowControl()))
        stack.push_async_callback(channels.close)
        chain = await find_chain(channels, addresses)
        theirs = chain.fingerprint.model_artifact_digest
        if theirs != digest:
            raise FingerprintMismatchError(
                f"the nodes hold another model than {model.path}: {theirs} there, {digest} here",
                here=digest,
                there=theirs,
            )
        yield ChainModel(name or model.name, vocabulary, chain, channels)


def report_death(death: WorkerDeath) -> None:
    """Say on standard error that a node died."""
    print_error(death.describe())
