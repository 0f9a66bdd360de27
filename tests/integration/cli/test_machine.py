"""A machine's agent with a real worker, beside a tracker in the same process."""

import asyncio
import fcntl
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.cli import machine
from meshnet.cli.local import slice_cache
from meshnet.cli.machine import Lent, MachineAgent
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.cli.slices import LocalSlices
from meshnet.cli.speed import Speed
from meshnet.domain.errors import InvalidArgumentError, NodeUnreachableError, UnauthenticatedError
from meshnet.domain.ids import Address
from meshnet.domain.nodes import FlowControl
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.tracker import messages as msg
from meshnet.tracker.agent import Start, Stop
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.events import ModelOffered
from meshnet.tracker.forecast import shape_of
from meshnet.tracker.placement import Demand
from meshnet.transport.certificates import Role
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from tests.support.live_tracker import Files, LiveTracker, live_tracker
from tests.support.tiny_gguf import TinyModel, build
from tests.support.trackers import OFFER

OPTIONS = NodeOptions(1, threads=1, context_length=1, sessions=1)
WITHIN_SECONDS = 60.0


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(tmp_path / "cache", None, tmp_path / "state")


@pytest.fixture
async def tracker(tmp_path):
    async with live_tracker(Files(tmp_path)) as made:
        yield made


class Burning(LocalSlices):
    """Has no slices."""

    def __call__(self, assignment, progress, stop):
        raise InvalidArgumentError("cache", "the disk is on fire")


def offer(path, settings) -> ModelOffered:
    digest = slice_cache(settings).manifest(path).digest
    serving = msg.Serving(context_length=64, sessions=2)
    return ModelOffered(digest, "tiny", shape_of(describe(read_index(path))), Demand(64), serving)


async def until_state(tracker: LiveTracker, wanted: msg.MachineState) -> msg.MachineStatus:
    """Plan and look until the machine is as wanted."""
    async with asyncio.timeout(WITHIN_SECONDS):
        while True:
            tracker.service.tick()
            machines = tracker.service.status().machines
            if machines and machines[0].state is wanted:
                return machines[0]
            await asyncio.sleep(0.05)


@pytest.mark.slow
async def test_it_holds_what_it_is_told_and_ends_when_it_is_removed(tracker, settings, tmp_path):
    model = build(tmp_path / "tiny.gguf", TinyModel(layers=2, seed=1))
    offered = offer(model, settings)
    tracker.service.offer(offered)
    folder = IdentityFolder(settings.state / "node")
    node_id, certificate = tracker.service.admit(folder.public_key(), "desk", Role.NODE)
    identity = folder.keep(certificate, tracker.authority.certificate_pem)
    lent = Lent("127.0.0.1", OPTIONS)
    slices = LocalSlices({offered.digest: model}, slice_cache(settings))
    async with TrackerClient(tracker.address, identity) as client:
        agent = MachineAgent(client, folder, settings, lent, Speed(1e10, ()), slices)
        running = asyncio.create_task(agent.run())
        ready = await until_state(tracker, msg.MachineState.READY)
        (work,) = ready.work
        assert (work.start, work.end, work.model) == (0, 2, offered.digest)
        assert ready.load is not None
        address = Address(work.address or "")
        assert ready.load.max_sessions == 2

        # Its worker answers machines of the cluster, and nobody else.
        own = GrpcTransport(FlowControl(), GrpcOptions(tls=identity)).peer(address)
        assert (await own.capability(10.0)).node_id == node_id
        await own.close()
        stranger = GrpcTransport().peer(address)
        with pytest.raises(NodeUnreachableError):
            await stranger.capability(10.0)
        await stranger.close()

        tracker.service.remove(node_id)
        async with asyncio.timeout(WITHIN_SECONDS):
            with pytest.raises(UnauthenticatedError, match="removed"):
                await running


class Teller(TrackerClient):
    """Stands for the tracker: tells what it is set to, and remembers what it was told."""

    def __init__(self) -> None:
        self.assignment: msg.AssignmentReply | None = None
        self.removed: tuple[str, ...] = ()
        self.beats: list[msg.HeartbeatRequest] = []
        self.work: tuple[msg.WorkReport, ...] = ()

    async def heartbeat(self, beat: msg.HeartbeatRequest) -> msg.HeartbeatReply:
        self.work = beat.work
        self.beats.append(beat)
        return msg.HeartbeatReply(
            assignment=self.assignment,
            drain=False,
            lease_seconds=8.0,
            heartbeat_seconds=0.2,
            removed=self.removed,
        )

    async def until_ready(self, assignment: msg.AssignmentReply) -> None:
        self.assignment = assignment
        async with asyncio.timeout(WITHIN_SECONDS):
            while [(it.phase, it.start) for it in self.work] != [  # noqa: ASYNC110
                (msg.Phase.READY, assignment.start)
            ]:
                await asyncio.sleep(0.05)


async def test_it_says_its_name_and_keeps_who_was_removed(tracker, settings):
    folder = IdentityFolder(settings.state / "node")
    _, certificate = tracker.service.admit(folder.public_key(), "desk", Role.NODE)
    folder.keep(certificate, tracker.authority.certificate_pem)
    teller, lent = Teller(), Lent("127.0.0.1", OPTIONS, name="lamp")
    slices = LocalSlices({}, slice_cache(settings))
    agent = MachineAgent(teller, folder, settings, lent, Speed(1e10, ()), slices)
    running = asyncio.create_task(agent.run())
    try:
        for removed in (("0123456789abcdef",), ()):
            teller.removed = removed
            said = len(teller.beats)
            async with asyncio.timeout(WITHIN_SECONDS):
                # What the one before last was answered has been done.
                while len(teller.beats) < said + 2:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)
            assert tuple(folder.files.removed.read_text().split()) == removed
        assert {beat.name for beat in teller.beats} == {"lamp"}
    finally:
        running.cancel()
        await asyncio.wait([running])


def pinned(path: Path) -> bool:
    """Whether somebody keeps a file from being removed."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


@pytest.mark.slow
async def test_the_slice_of_a_shard_that_is_not_held_any_more_may_be_removed(
    tracker, settings, tmp_path
):
    model = build(tmp_path / "tiny.gguf", TinyModel(layers=2, seed=1))
    offered = offer(model, settings)
    folder = IdentityFolder(settings.state / "node")
    _, certificate = tracker.service.admit(folder.public_key(), "desk", Role.NODE)
    folder.keep(certificate, tracker.authority.certificate_pem)
    slices = LocalSlices({offered.digest: model}, slice_cache(settings))
    head, tail = (
        msg.AssignmentReply(
            model=offered.digest,
            name="tiny",
            start=start,
            end=start + 1,
            total_layers=2,
            epoch=1,
            serving=offered.serving,
        )
        for start in (0, 1)
    )
    teller, lent = Teller(), Lent("127.0.0.1", OPTIONS)
    agent = MachineAgent(teller, folder, settings, lent, Speed(1e10, ()), slices)
    running = asyncio.create_task(agent.run())
    try:
        await teller.until_ready(head)
        (before,) = (settings.cache / "blobs").glob("sha256-*")
        assert pinned(before)
        await teller.until_ready(tail)
        (after,) = set((settings.cache / "blobs").glob("sha256-*")) - {before}
        assert (pinned(before), pinned(after)) == (False, True)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_slice_that_cannot_be_had_is_told_with_its_reason(tracker, settings, tmp_path):
    model = build(tmp_path / "tiny.gguf", TinyModel(layers=2, seed=1))
    tracker.service.offer(offer(model, settings))
    folder = IdentityFolder(settings.state / "node")
    _, certificate = tracker.service.admit(folder.public_key(), "desk", Role.NODE)
    identity = folder.keep(certificate, tracker.authority.certificate_pem)

    async with TrackerClient(tracker.address, identity) as client:
        lent = Lent("127.0.0.1", OPTIONS)
        agent = MachineAgent(
            client, folder, settings, lent, Speed(1e10, ()), Burning({}, slice_cache(settings))
        )
        running = asyncio.create_task(agent.run())
        failed = await until_state(tracker, msg.MachineState.FAILED)
        assert [work.problem for work in failed.work] == ["cache: the disk is on fire"]
        running.cancel()
        await asyncio.wait([running])


def assigned(offered: ModelOffered, start: int, end: int) -> msg.AssignmentReply:
    return msg.AssignmentReply(
        model=offered.digest,
        name="tiny",
        start=start,
        end=end,
        total_layers=2,
        epoch=1,
        serving=offered.serving,
    )


def agent_of(folder, settings, teller, slices) -> MachineAgent:
    return MachineAgent(
        teller, folder, settings, Lent("127.0.0.1", OPTIONS), Speed(1e10, ()), slices
    )


async def test_a_worker_that_was_started_again_is_asked_for_its_recipe_again(
    tracker, settings, tmp_path
):
    model = build(tmp_path / "tiny.gguf", TinyModel(layers=2, seed=1))
    offered = offer(model, settings)
    folder = IdentityFolder(settings.state / "node")
    _, certificate = tracker.service.admit(folder.public_key(), "desk", Role.NODE)
    folder.keep(certificate, tracker.authority.certificate_pem)
    slices = LocalSlices({offered.digest: model}, slice_cache(settings))
    teller = Teller()
    agent = agent_of(folder, settings, teller, slices)
    running = asyncio.create_task(agent.run())
    try:
        await teller.until_ready(assigned(offered, 0, 2))
        recipe = teller.work[0].recipe
        # As if the worker that is killed had another library.
        assert agent._state.held is not None
        held = replace(agent._state.held, recipe="sha256:before")
        agent._state = replace(agent._state, held=held)
        assert agent._keeper is not None
        pid = agent._keeper.process.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        async with asyncio.timeout(WITHIN_SECONDS):
            while {(it.phase, it.recipe) for it in teller.work} != {  # noqa: ASYNC110
                (msg.Phase.READY, recipe)
            }:
                await asyncio.sleep(0.05)
    finally:
        running.cancel()
        await asyncio.wait([running])


async def test_a_machine_whose_certificate_has_expired_ends_and_says_what_to_do(tracker, settings):
    folder = IdentityFolder(settings.state / "node")
    public, past = folder.public_key(), time.time() - 10 * 86_400
    certificate = tracker.authority.issue(
        public, folder.node_id(), role=Role.NODE, days=1, now=past
    )
    folder.keep(certificate, tracker.authority.certificate_pem)
    agent = agent_of(folder, settings, Teller(), LocalSlices({}, slice_cache(settings)))
    async with asyncio.timeout(WITHIN_SECONDS):
        with pytest.raises(InvalidArgumentError, match=r"certificate: it expired on .*join anew"):
            await agent.run()


async def test_a_worker_is_started_only_when_all_that_were_before_have_ended(settings, monkeypatch):
    ended, made = asyncio.Event(), []

    class Keeper:
        deaths = 0

        def __init__(self, *_about):
            made.append(self)

        async def start(self):
            return Address("127.0.0.1:1")

        async def gone(self):
            await asyncio.Event().wait()

        async def stop(self):
            await ended.wait()

    async def recognise(*_about):
        pass

    monkeypatch.setattr(machine, "NodeKeeper", Keeper)
    folder = IdentityFolder(settings.state / "node")
    agent = agent_of(folder, settings, Teller(), LocalSlices({}, slice_cache(settings)))
    monkeypatch.setattr(agent, "_config", lambda _assignment: None)
    monkeypatch.setattr(agent, "_recognise", recognise)
    begin = Start(assigned(OFFER, 0, 2))
    for actions in ((begin,), (Stop(), begin), (Stop(), begin)):
        agent._take((agent._state, actions))
        await asyncio.sleep(0.01)
    assert len(made) == 1
    ended.set()
    await asyncio.sleep(0.01)
    assert len(made) == 2
    await agent._end()


def test_hours_that_are_none_are_refused_at_once():
    with pytest.raises(InvalidArgumentError, match="hours"):
        Lent("127.0.0.1", OPTIONS, hours="at night")
