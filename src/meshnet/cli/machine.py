"""Keeps one machine at what the tracker tells it: heartbeats, fetches, and a worker process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshnet.cli.fetched import FIRST
from meshnet.cli.loads import LoadMeter
from meshnet.cli.local import WORKER_COMMAND, node_config
from meshnet.cli.logfiles import chunk
from meshnet.cli.measuring import Measuring
from meshnet.cli.options import NodeOptions
from meshnet.cli.output import print_error, print_note, print_step
from meshnet.cli.receiptbox import ReceiptOutbox
from meshnet.cli.relaying import RelayedWorker
from meshnet.cli.settings import Settings
from meshnet.cli.slices import Slices
from meshnet.cli.speed import Speed
from meshnet.cli.tasks import cancel, going_on, over, raise_faults
from meshnet.domain.errors import (
    CancelledError,
    InvalidArgumentError,
    MeshnetError,
    NodeNotReadyError,
    NodeUnreachableError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.domain.nodes import FlowControl
from meshnet.model.cache import SliceFile
from meshnet.node.config import NodeConfig
from meshnet.node.keeper import NodeKeeper
from meshnet.node.resources import resources
from meshnet.node.snapshot import NodeSnapshot
from meshnet.tracker import agent
from meshnet.tracker import messages as msg
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.leases import parse_hours
from meshnet.tracker.logmessages import LogChunk
from meshnet.transport.address import format_address
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport

FIGURES_SECONDS: Final = 1.0
"""How long a worker may take to tell its figures."""
MISSED_AT_MOST: Final = 3
"""Heartbeats in a row without figures after which a worker isn't told to be ready."""
CAPABILITY_SECONDS: Final = 10.0
FIRST_HEARTBEAT_SECONDS: Final = 0.2
"""Until the tracker says how often it wants to hear of the machine; and never more often."""

RENEWAL_CHECK_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class Lent:
    """What this machine lends, and how its worker runs."""

    host: str
    """Where its worker listens, and others reach it."""
    options: NodeOptions
    """Threads, GPU layers and memory; what the model needs comes with the assignment."""
    memory_bytes: int | None = None
    """At most; None: all that is free."""
    hours: str = ""
    """``HH:MM-HH:MM`` in UTC; empty: always. Raises ``InvalidArgumentError`` for anything else."""
    name: str | None = None
    """What people are to call the machine; None: what the tracker calls it."""

    def __post_init__(self) -> None:
        if self.hours:
            parse_hours(self.hours)


class MachineAgent:
    """One machine's agent. :meth:`run` goes on until it is cancelled or the cluster drops it."""

    def __init__(
        self,
        tracker: TrackerClient,
        folder: IdentityFolder,
        settings: Settings,
        lent: Lent,
        speed: Speed,
        slices: Slices,
        measuring: Measuring | None = None,
    ) -> None:
        """``measuring`` tells of links and of the speed with each model; None: nothing does."""
        self._measuring = measuring
        self._receipts = ReceiptOutbox(tracker)
        self._tracker = tracker
        self._folder = folder
        self._node_id = folder.node_id()
        self._renewal_due_at = 0.0
        self._settings = settings
        self._lent = lent
        self._speed = speed
        self._slices = slices
        self._incarnation = folder.next_incarnation()
        self._state = agent.AgentState()
        self._cut: dict[agent.Shard, SliceFile] = {}
        self._keeper: NodeKeeper | None = None
        self._fetches: list[asyncio.Task[None]] = []
        self._abandoned = threading.Event()
        self._workers: list[asyncio.Task[None]] = []
        """The last one is that of now; those before it are ending."""
        self._changed = asyncio.Event()
        self._round_trip = 0.0
        self._loads = LoadMeter()
        self._missed = 0
        self._lives: int | None = None
        """The worker's deaths when it answered last; None before its first answer."""
        self._recognised = 0
        """Its deaths when it was asked for its recipe."""
        self._unreachable = False
        self._relayed = RelayedWorker(folder.files)

    async def run(self) -> None:
        """Hear from the tracker and do what it says.

        Raises :class:`UnauthenticatedError` if the machine was removed, and ``StaleEpochError`` if
        another agent was started with its identity.
        """
        pause = FIRST_HEARTBEAT_SECONDS
        try:
            while True:
                self._changed.clear()
                pause = await self._beat(pause)
                raise_faults([*self._fetches, *self._workers])
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
        finally:
            await self._end()

    async def _beat(self, pause: float) -> float:
        """One heartbeat, and what follows from it; gives the seconds until the next."""
        figures = await self._figures()
        now = time.monotonic()
        # A worker too busy to tell is one with sessions.
        sessions = int(self._answers) if figures is None else figures.open_sessions
        self._take(agent.looked(self._state, sessions, now))
        beat = await self._report(figures)
        try:
            await self._renew(now)
            asked = time.perf_counter()
            reply = await self._tracker.heartbeat(beat)
        except (NodeUnreachableError, NodeNotReadyError) as error:
            # What is served goes on; only the tracker can't be heard.
            if not self._unreachable:
                print_note(f"{error.message}; trying again", kept=True)
            self._unreachable = True
            if self._measuring is not None:
                self._measuring.untold()
            return pause
        self._round_trip = time.perf_counter() - asked
        if self._unreachable:
            print_note("the tracker is back", kept=True)
        self._unreachable = False
        if self._measuring is not None:
            self._measuring.idle = not sessions
            self._measuring.follow(reply.neighbours)
        await self._refuse(reply)
        await self._receipts.send()
        if reply.logs_after is not None:
            await self._send_logs(reply.logs_after)
        if reply.assignment is not None:
            self._slices.follow(reply.assignment)
        self._take(agent.told(self._state, reply.assignment, time.monotonic()))
        if all(fetch.done() for fetch in self._fetches):
            # A fetch may be about to find one of these again.
            self._let_go()
        held = self._state.held
        worker = None if held is None or held.address is None else Address(held.address)
        await self._relayed.follow(None if reply.relay is None else Address(reply.relay), worker)
        return max(reply.heartbeat_seconds, FIRST_HEARTBEAT_SECONDS)

    async def _refuse(self, reply: msg.HeartbeatReply) -> None:
        """Write down who was removed, for the worker, which answers them no more."""
        try:
            await asyncio.to_thread(self._folder.refuse, map(NodeId, reply.removed))
        except InvalidArgumentError as error:
            # A disk that is full now may not be at the next heartbeat, and layers are served.
            print_error(f"who was removed from the cluster can't be kept: {error.message}")

    async def _send_logs(self, after: int) -> None:
        """Somebody wants to see them; if they don't get there, they are asked for again."""
        lines = await asyncio.to_thread(chunk, self._settings.state, after)
        with contextlib.suppress(NodeUnreachableError, NodeNotReadyError):
            await self._tracker.send_logs(LogChunk(lines=lines))

    async def _renew(self, now: float) -> None:
        """Get another certificate well before the one of now ends; the worker takes it up."""
        identity = self._folder.files.load()
        # The tracker ends connections with one that isn't, without saying why.
        identity.require_valid(time.time())
        if now < self._renewal_due_at:
            return
        if identity.due_for_renewal(time.time()):
            public_key = self._folder.public_key().decode()
            reply = await self._tracker.renew(msg.RenewRequest(public_key=public_key))
            kept = self._folder.keep(reply.certificate.encode(), identity.authority_pem)
            await self._tracker.show(kept)
        self._renewal_due_at = now + RENEWAL_CHECK_SECONDS

    async def _report(self, figures: NodeSnapshot | None) -> msg.HeartbeatRequest:
        pid = None if self._keeper is None else self._keeper.process.pid
        own = () if pid is None else (pid,)
        free = await asyncio.to_thread(resources, self._settings.cache, own)
        limit = self._lent.memory_bytes
        return msg.HeartbeatRequest(
            incarnation=self._incarnation,
            name=self._lent.name,
            machine=msg.MachineReport(
                memory_bytes=free.memory_bytes if limit is None else min(limit, free.memory_bytes),
                bytes_per_second=self._speed.bytes_per_second,
                cores=free.cores,
                disk_bytes=free.disk_bytes,
                devices=self._speed.devices,
                hours=self._lent.hours,
                speeds=() if self._measuring is None else self._measuring.speeds,
            ),
            work=self._state.reports(answers=self._answers),
            load=self._load(figures),
            round_trip_seconds=self._round_trip,
            weights=await asyncio.to_thread(self._slices.report),
            links=None if self._measuring is None else self._measuring.news(),
        )

    def _load(self, figures: NodeSnapshot | None) -> msg.LoadReport:
        if figures is None:
            return self._loads.told if self._answers else msg.LoadReport()
        return self._loads.read(figures)

    async def _figures(self) -> NodeSnapshot | None:
        """The worker's figures; None without a worker that serves and answers."""
        held, keeper = self._state.held, self._keeper
        if keeper is None or held is None or held.address is None:
            self._lives = None
            return None
        deaths = keeper.deaths
        try:
            figures = await keeper.process.figures(FIGURES_SECONDS)
            self._receipts.add(figures.receipts)
            if deaths != self._recognised:
                # Another life may have been started with another library.
                await self._recognise(agent.Shard.of(held.assignment), Address(held.address))
        except MeshnetError:
            # The heartbeat tells of it.
            self._missed += 1
            return None
        self._missed, self._lives = 0, deaths
        return figures

    @property
    def _answers(self) -> bool:
        """Whether the worker serves: a busy one may miss a question or two, a dead one none."""
        alive = self._keeper is not None and self._lives == self._keeper.deaths
        return alive and self._missed < MISSED_AT_MOST

    def _take(self, outcome: agent.Outcome) -> None:
        self._state, actions = outcome
        for action in actions:
            match action:
                case agent.Fetch():
                    getting = self._get(action.assignment, self._fetches)
                    self._fetches = going_on(self._fetches, getting)
                case agent.Abandon():
                    self._abandoned.set()
                case agent.Stop():
                    for worker in self._workers:
                        cancel(worker)
                case agent.Start():
                    serving = self._serve(action.assignment, self._workers)
                    self._workers = going_on(self._workers, serving)

    async def _get(
        self, assignment: msg.AssignmentReply, before: Sequence[asyncio.Task[None]]
    ) -> None:
        """Fetch and cut, after the fetch before has ended; the outcome goes into the state."""
        shard, loop = agent.Shard.of(assignment), asyncio.get_running_loop()
        stop = self._abandoned = threading.Event()

        def progress(_label: str, done: int, total: int, /) -> None:
            # On the fetching thread.
            if stop.is_set():
                raise CancelledError("fetching was stopped")
            loop.call_soon_threadsafe(self._note_progress, shard, done, total)

        await over(before)
        self._let_go()
        layers = f"layers {assignment.start}:{assignment.end} of {assignment.name}"
        others = "".join(f"{name}, " for name in sorted({it.name for it in assignment.holders}))
        print_step(f"fetching {layers} from {others}{FIRST}" if others else f"fetching {layers}")
        try:
            self._cut[shard] = await asyncio.to_thread(self._slices, assignment, progress, stop)
        except MeshnetError as error:
            if stop.is_set():
                return
            print_error(f"{layers}: {error.message}")
            self._state = agent.failed(self._state, shard, error.message, time.monotonic())
        else:
            self._take(agent.fetched(self._state, shard, time.monotonic()))
        self._changed.set()

    def _let_go(self) -> None:
        """Release the slices of shards that are neither served nor prepared.

        A worker that is just ending keeps its file open, so removing it takes nothing from it.
        """
        wanted = self._state.shards
        for shard in self._cut.keys() - wanted:
            path = self._cut.pop(shard).path
            if all(kept.path != path for kept in self._cut.values()):
                self._slices.release(path)

    def _note_progress(self, shard: agent.Shard, done: int, total: int) -> None:
        self._state = agent.progressed(self._state, shard, done, total)

    async def _serve(
        self, assignment: msg.AssignmentReply, before: Sequence[asyncio.Task[None]]
    ) -> None:
        """Run a worker until it is stopped, or dies again and again."""
        shard = agent.Shard.of(assignment)
        # All of them: the last one may have been stopped while it waited for another.
        await over(before)
        keeper = self._keeper = NodeKeeper(
            WORKER_COMMAND, self._config(assignment), lambda death: print_error(death.describe())
        )
        problem = "the worker died again and again"
        try:
            address = await keeper.start()
            await self._recognise(shard, address)
            self._changed.set()
            layers = LayerRange(assignment.start, assignment.end)
            print_step(f"serving layers {layers} of {assignment.name} at {address}")
            await keeper.gone()
        except MeshnetError as error:
            problem = error.message
        finally:
            if self._keeper is keeper:
                self._keeper = None
            self._loads.restart()
            await keeper.stop()
        print_error(problem)
        self._state = agent.failed(self._state, shard, problem, time.monotonic())
        self._changed.set()

    def _config(self, assignment: msg.AssignmentReply) -> NodeConfig:
        serving = assignment.serving
        options = replace(
            self._lent.options,
            context_length=serving.context_length,
            sessions=serving.sessions,
            cache_type_k=serving.cache_type_k,
            cache_type_v=serving.cache_type_v,
            flash_attention=serving.flash_attention,
            allow_unverified=serving.allow_unverified,
        )
        config = node_config(
            1,
            self._cut[agent.Shard.of(assignment)],
            options,
            format_address(self._lent.host, 0),
            None,
            self._node_id,
            self._settings.variables,
            self._settings.notes,
        )
        return replace(config, identity=self._folder.files)

    async def _recognise(self, shard: agent.Shard, address: Address) -> None:
        """Ask the worker what its numbers depend on, and take it for started with that."""
        deaths = 0 if self._keeper is None else self._keeper.deaths
        peer = GrpcTransport(FlowControl(), GrpcOptions(tls=self._folder.files)).peer(address)
        try:
            capability = await peer.capability(CAPABILITY_SECONDS)
        finally:
            await peer.close()
        recipe = capability.fingerprint.runtime_recipe_digest
        self._state = agent.started(self._state, shard, address, recipe)
        self._recognised = deaths

    async def _end(self) -> None:
        self._abandoned.set()
        for worker in self._workers:
            cancel(worker)
        await over([*self._workers, *self._fetches])
        await self._relayed.close()
