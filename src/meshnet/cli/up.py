"""``meshnet up``: a cluster's first machine, with its tracker and the API over all machines."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import Annotated

import typer

from meshnet.cli import access
from meshnet.cli import options as opt
from meshnet.cli.announcing import findable
from meshnet.cli.cluster import Membership, StateFolder, machine_name, own_address
from meshnet.cli.local import (
    LocalModel,
    context_within,
    find_model,
    slice_cache,
    whole_model,
)
from meshnet.cli.logfiles import log_to_files
from meshnet.cli.machine import Lent, MachineAgent
from meshnet.cli.measuring import Computing, Measuring
from meshnet.cli.output import print_error, print_line, print_note, progress_bars
from meshnet.cli.receiptbox import ReceiptOutbox, receipts_told
from meshnet.cli.relaying import relay_address, relay_listener, relay_running
from meshnet.cli.runtime import alongside, interruptible, known_error, run_async
from meshnet.cli.serve import serve_until_cancelled
from meshnet.cli.settings import Settings, default_threads
from meshnet.cli.slices import LocalSlices
from meshnet.cli.speed import calibrate
from meshnet.cli.tracker_keeper import tracker_kept
from meshnet.cli.tracker_link import TrackerLink, tracker_linked
from meshnet.cli.tracker_process import TrackerConfig
from meshnet.cli.tracking import OfferedModel
from meshnet.domain.errors import InvalidArgumentError, MeshnetError
from meshnet.domain.ids import Address, Digest
from meshnet.domain.nodes import FlowControl
from meshnet.engine.llamacpp.grammars import LlamaGrammars
from meshnet.engine.llamacpp.vocabulary import Vocabulary
from meshnet.gateway.access import Access
from meshnet.gateway.app import create_app
from meshnet.gateway.clustermachines import ClusterMachines
from meshnet.gateway.config import GatewayConfig, is_loopback
from meshnet.gateway.metrics import GatewayFigures
from meshnet.gateway.openai import own_names
from meshnet.gateway.server import open_listener
from meshnet.model.check import check_index
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.session.generate import ChainModel
from meshnet.session.recovery import RECOVERY_SECONDS, RecoveryPolicy
from meshnet.session.routed import RoutedChains
from meshnet.tracker import messages as msg
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.events import ModelOffered
from meshnet.tracker.forecast import shape_of
from meshnet.tracker.placement import Demand, Objective
from meshnet.transport.address import format_address, parse_address
from meshnet.transport.certificates import Role
from meshnet.transport.channel import ChannelPool
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.options import GrpcOptions
from meshnet.transport.receipts import ReceiptBook, Signer
from meshnet.transport.seam_client import GrpcTransport

DEFAULT_LISTEN = "0.0.0.0:7700"
ANYWHERE = ("0.0.0.0", "::")
SOMEWHERE_ELSE = "192.0.2.1:9"
"""An address that is nobody's (RFC 5737); asked only which way a packet would go."""


@dataclass(frozen=True, slots=True)
class _Up:
    """What the command was asked for."""

    offered: tuple[OfferedModel, ...]
    store: str | None
    """Where the tracker writes down what it must not forget; None: in the state folder."""
    membership: Membership
    tracker: Address
    """Where this machine's own agent reaches the tracker."""
    lent: Lent | None
    """None: this machine holds no layers itself."""
    gateway: GatewayConfig
    access: Access
    accounts: str | None
    """The database in which usage is kept; None: none is."""
    recovery: RecoveryPolicy
    announce: bool
    """Whether machines of the local network may hear of the tracker."""


def up(
    models: opt.Models,
    host: Annotated[str, typer.Option(help="Address of the API.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535)] = 8000,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT at which other machines reach the tracker.")
    ] = DEFAULT_LISTEN,
    address: Annotated[
        str | None,
        typer.Option(help="HOST:PORT that the join line names, where --listen isn't it."),
    ] = None,
    relay: Annotated[
        str | None,
        typer.Option(
            help="HOST:PORT for machines that others can't reach; default: the port after "
            "--listen's."
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|URL",
            help="Database of the cluster's events, a SQLite file or a postgresql:// URL; default: "
            "in the state folder.",
        ),
    ] = None,
    name: opt.MachineName = None,
    cluster: Annotated[str, typer.Option(help="What to call the cluster.")] = "meshnet",
    memory: opt.Memory = None,
    hours: opt.LentHours = "",
    no_node: Annotated[
        bool, typer.Option("--no-node", help="Hold no layers here: only tracker and API.")
    ] = False,
    no_announce: Annotated[
        bool,
        typer.Option("--no-announce", help="Don't tell the local network where the tracker is."),
    ] = False,
    api_key: access.ApiKeyOption = None,
    keys: access.Keys = None,
    open_access: access.OpenAccess = False,
    allow_host: access.AllowHost = None,
    queue: access.Queue = access.DEFAULT_QUEUE,
    alias: access.Alias = None,
    optimise: opt.OptimiseOption = opt.Optimise.LATENCY,
    threads: opt.Threads = None,
    ctx: opt.Context = 4096,
    sessions: opt.Sessions = 8,
    gpu_layers: opt.GpuLayers = 0,
    flash_attn: opt.FlashAttention = False,
    cache_type_k: opt.CacheTypeK = "f16",
    cache_type_v: opt.CacheTypeV = "f16",
    mlock: opt.Mlock = False,
    no_mmap: opt.NoMmap = False,
    allow_unverified: opt.AllowUnverified = False,
    recovery: opt.Recovery = RECOVERY_SECONDS,
    cache_size: opt.CacheSize = None,
) -> None:
    """Begin a cluster that serves MODEL..., and print the line with which others join it.

    Started again, it goes on with the machines that it had, and serves the models that it is given
    then.

    Example:

      meshnet up model.gguf

    then, on every other machine, the line that it prints, meshnet join mesh1_..., or in the same
    network meshnet join alone, which asks for the code that stands beside the line.
    """
    settings = Settings.from_environment(cache_size)
    log_to_files(settings.state, "agent")
    options = opt.NodeOptions(
        1,
        threads or default_threads(1),
        ctx,
        sessions,
        gpu_layers,
        flash_attn,
        allow_unverified,
        optimise,
        cache_type_k=cache_type_k,
        cache_type_v=cache_type_v,
        mlock=mlock,
        mmap=not no_mmap,
    )
    allowed = access.AccessOptions(
        host, api_key, open_access, allow_host or (), keys, queue, alias or ()
    )
    limit = None if memory is None else opt.parse_size("memory", memory)
    with (
        interruptible(),
        access.gateway_access(allowed, settings) as (config, callers),
        open_listener(host, port) as api,
        _tracker_listener(listen) as tracker,
        relay_listener(relay, tracker) as relaying,
    ):
        places = _Places.of(listen, tracker.getsockname()[1], address)
        asked = _Up(
            _offers(models, settings, options),
            store,
            Membership(tracker=places.reached, cluster=cluster, name=machine_name(name)),
            places.near,
            None if no_node else Lent(places.host, options, limit, hours),
            config,
            callers,
            (keys or str(settings.accounts)) if callers.journals else None,
            RecoveryPolicy(recovery),
            not no_announce,
        )
        own_names([it.event.name for it in asked.offered], config.aliases)
        run_async(_run(asked, settings, _Sockets(api, tracker, relaying)))


@contextmanager
def _tracker_listener(listen: str) -> Iterator[socket.socket]:
    host, port = parse_address(listen, "listen")
    try:
        listener = open_listener(host, port)
    except InvalidArgumentError as error:
        raise InvalidArgumentError("listen", error.message) from error
    with listener:
        yield listener


@dataclass(frozen=True, slots=True)
class _Sockets:
    """What the command listens on."""

    api: socket.socket
    tracker: socket.socket
    relay: socket.socket


@dataclass(frozen=True, slots=True)
class _Places:
    """Where this machine is, for whom."""

    reached: Address
    """The tracker, for other machines."""
    near: Address
    """The tracker, for this machine's own agent."""
    host: str
    """This machine's worker."""

    @staticmethod
    def of(listen: str, port: int, stated: str | None) -> _Places:
        host, _ = parse_address(listen, "listen")
        if host in ANYWHERE:
            reachable, near = _way_out(), "::1" if host == "::" else "127.0.0.1"
        else:
            reachable = near = host
        reached = opt.parse_address("address", stated or format_address(reachable, port))
        return _Places(reached, Address(format_address(near, port)), reachable)


def _offers(
    models: Sequence[str], settings: Settings, options: opt.NodeOptions
) -> tuple[OfferedModel, ...]:
    offered: dict[Digest, OfferedModel] = {}
    for model in models:
        offer = _offer(whole_model(find_model(model, settings), settings), settings, options)
        if offer.event.digest in offered:
            raise InvalidArgumentError("model", f"{model} was given already; give each model once")
        offered[offer.event.digest] = offer
    return tuple(offered.values())


def _offer(model: LocalModel, settings: Settings, options: opt.NodeOptions) -> OfferedModel:
    """Read the model's header, and hash the file unless it was hashed before."""
    index = read_index(model.path)
    info = describe(index)
    check_index(index, allow_unverified=options.allow_unverified)
    with progress_bars() as progress:
        manifest = slice_cache(settings).manifest(model.path, progress)
    context = context_within(info, options.context_length)
    serving = msg.Serving(
        context_length=context,
        sessions=options.sessions,
        cache_type_k=options.cache_type_k,
        cache_type_v=options.cache_type_v,
        flash_attention=options.flash_attention,
        allow_unverified=options.allow_unverified,
    )
    event = ModelOffered(
        manifest.digest,
        model.name,
        shape_of(info, allow_unverified=options.allow_unverified),
        Demand(context, options.sessions, Objective(options.optimise.value)),
        serving,
    )
    parts = tuple(part.path for part in index.parts)
    return OfferedModel(event, manifest.to_json(), parts)


async def _run(asked: _Up, settings: Settings, sockets: _Sockets) -> None:
    state = StateFolder(settings.state)
    reached = Address(asked.membership.tracker)
    config = TrackerConfig(
        state.root,
        asked.membership,
        asked.offered,
        asked.store,
        relay_address(reached, sockets.relay),
        accounts=asked.accounts,
        node=asked.lent is not None,
        log_level=logging.getLogger().getEffectiveLevel(),
    )
    async with AsyncExitStack() as stack:
        keeper, began = await stack.enter_async_context(tracker_kept(config, sockets.tracker))
        tracker = await stack.enter_async_context(tracker_linked(keeper, asked.tracker, state))
        files = state.role(Role.TRACKER.value).files
        await stack.enter_async_context(relay_running(tracker, files, sockets.relay))
        print_line(f"other machines join with: {await tracker.join_line()}")
        if is_loopback(parse_address(reached, "address")[0]):
            print_note("no other machine can reach this address; give one with --listen")
        cluster = asked.membership.cluster
        listening = Address(format_address(*sockets.tracker.getsockname()[:2]))
        pairing = findable(tracker, listening, cluster, announce=asked.announce)
        await stack.enter_async_context(pairing)
        own = state.role(Role.GATEWAY.value).files
        book = ReceiptBook(Signer(own.load()))
        telling = receipts_told(book, ReceiptOutbox(tracker))
        await stack.enter_async_context(alongside(telling, "receipts"))

        def channels() -> ChannelPool:
            return ChannelPool(GrpcTransport(FlowControl(), GrpcOptions(tls=own)), book)

        served = [
            _over_chains(it, tracker, channels(), asked.recovery, stack) for it in asked.offered
        ]
        if began.node_problem:
            print_error(f"this machine holds no layers: {began.node_problem}")
        elif asked.lent is not None:
            holding = _hold_layers(asked, asked.lent, state.node(), settings)
            await stack.enter_async_context(alongside(holding, "this machine's agent"))
        machines = ClusterMachines(tracker, asked.offered[0].event)
        figures = GatewayFigures(receipts=book)
        app = create_app(served, asked.gateway, figures, machines=machines, access=asked.access)
        await serve_until_cancelled(app, sockets.api)


def _over_chains(
    model: OfferedModel,
    tracker: TrackerLink,
    channels: ChannelPool,
    policy: RecoveryPolicy,
    stack: AsyncExitStack,
) -> ChainModel:
    """A model, over whatever chain the tracker names at each request."""
    path, offered = model.parts[0], model.event
    # Freed last: until the channels are closed, tokens may still arrive.
    vocabulary = stack.enter_context(Vocabulary.load(path))
    grammars = stack.enter_context(closing(LlamaGrammars(path)))
    stack.push_async_callback(channels.close)
    routes = tracker.routes.of(offered.digest)
    chains = RoutedChains(
        routes,
        channels,
        offered.digest,
        offered.serving.context_length,
    )
    made = ChainModel(offered.name, vocabulary, chains, channels, grammars=grammars, policy=policy)
    made.timed = routes.timed
    return made


async def _hold_layers(asked: _Up, lent: Lent, folder: IdentityFolder, settings: Settings) -> None:
    """Be a machine of the cluster as well; without it, tracker and API go on."""
    try:
        speed = await calibrate(settings, lent.options.threads)
        paths = {it.event.digest: it.parts[0] for it in asked.offered}
        slices = LocalSlices(paths, slice_cache(settings))
        async with TrackerClient(asked.tracker, folder.files.load()) as client:
            computing = Computing(settings, lent.options, slices)
            measuring = Measuring(asked.tracker, folder.files, computing)
            await measuring.begin(client)
            agent = MachineAgent(client, folder, settings, lent, speed, slices, measuring)
            async with alongside(measuring.run(), "measuring"):
                await agent.run()
    except (MeshnetError, ExceptionGroup) as error:
        known = known_error(error)
        if known is None:
            raise
        print_error(f"this machine holds no layers: {known.message}")


def _way_out() -> str:
    """An address of this machine that others can use."""
    try:
        return own_address(SOMEWHERE_ELSE)
    except InvalidArgumentError:
        # Without a way out there may still be a local network, but no telling which.
        return "127.0.0.1"
