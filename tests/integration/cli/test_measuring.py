"""What a machine measures of itself and of its links, over real connections and in real files."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from meshnet.cli import speed
from meshnet.cli.cluster import StateFolder
from meshnet.cli.clusterplan import cluster_of
from meshnet.cli.joining import identity_for
from meshnet.cli.measuring import Computing, Measuring
from meshnet.cli.options import NodeOptions
from meshnet.cli.settings import Settings
from meshnet.cli.slices import LocalSlices
from meshnet.cli.speed import Rehearsed, rehearse
from meshnet.domain.errors import (
    InvalidArgumentError,
    ModelUnsupportedError,
    NodeNotReadyError,
    ResourceExhaustedError,
)
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.model.cache import SliceCache
from meshnet.model.gguf import read_index
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.forecast import Link as PlannedLink
from meshnet.tracker.measurements import MAX_PROBE_BYTES, LinkReport, Neighbour, SpeedReport
from meshnet.tracker.messages import HeartbeatRequest
from meshnet.tracker.pace import BURST
from meshnet.tracker.speeds import Speed
from meshnet.transport.certificates import Role
from meshnet.transport.options import GrpcOptions
from meshnet.transport.relay import RelayLimits
from meshnet.transport.seam_server import GrpcNodeServer
from meshnet.transport.tls import Identity, client_context
from tests.support.live_tracker import Files, LiveTracker, live_tracker
from tests.support.networks import ANY_PORT
from tests.support.relays import relay_running
from tests.support.services import ScriptedService
from tests.support.tiny_gguf import TinyModel, build
from tests.support.trackers import DIGEST, MACHINE

OPTIONS = NodeOptions(1, threads=1, context_length=64, sessions=1)
SPEED = Speed(1e9, 2e9, 1e-4, 0.8, 1e8, 1e-3, 1e-3, 2e-3)
RELAY_RATE = 300_000.0
WITHIN_SECONDS = 30.0


@pytest.fixture
async def tracker(tmp_path) -> AsyncIterator[LiveTracker]:
    async with live_tracker(Files(tmp_path)) as made:
        yield made


@pytest.fixture
def settings(tmp_path) -> Settings:
    return Settings(tmp_path / "cache", None, tmp_path / "state")


@asynccontextmanager
async def node_running(identity: Identity) -> AsyncIterator[Address]:
    server = GrpcNodeServer(ScriptedService(), ANY_PORT, options=GrpcOptions(tls=identity))
    try:
        yield await server.start()
    finally:
        await server.stop()


async def links_of(measuring: Measuring, *nodes: NodeId) -> dict[str | None, LinkReport]:
    """What is told once all of these and the tracker have been measured."""
    running, found = asyncio.create_task(measuring.run()), dict[str | None, LinkReport]()
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            while not {None, *nodes} <= found.keys():
                found |= {each.node_id: each for each in measuring.news() or ()}
                await asyncio.sleep(0.02)
    finally:
        running.cancel()
        await asyncio.wait([running])
    return found


async def test_links_to_the_tracker_and_to_a_node_are_measured_and_the_relay_counts(
    tracker, settings
):
    own, direct, hidden = await tracker.join(), await tracker.join(), await tracker.join()
    slices = LocalSlices({}, SliceCache(settings.cache))
    measuring = Measuring(tracker.address, own, Computing(settings, OPTIONS, slices))
    limits = RelayLimits(bytes_per_second=RELAY_RATE, burst_bytes=50_000.0)
    relayed = relay_running(hidden.node_id, limits=limits, identity=tracker.identity(Role.TRACKER))
    async with (
        node_running(direct) as near,
        node_running(hidden) as behind,
        relayed as relay,
        relay.node(behind, hidden),
    ):
        measuring.follow(
            [
                Neighbour(node_id=direct.node_id, address=near),
                Neighbour(node_id=hidden.node_id, address=relay.address),
            ]
        )
        found = await links_of(measuring, direct.node_id, hidden.node_id)
    assert all(0 < each.round_trip_seconds < 1 for each in found.values())
    # The relay's bound is what the way over it gives, and nothing else is so slow.
    slow, quick = (found[each.node_id].bytes_per_second for each in (hidden, direct))
    assert 0 < slow < RELAY_RATE * 3
    assert quick > 2 * slow


async def test_probes_of_the_tracker_are_for_nodes_and_bounded(tracker):
    own = await tracker.join()
    async with httpx.AsyncClient(
        base_url=f"https://{tracker.address}", verify=client_context(own), trust_env=False
    ) as http:
        large = {"padding": "0" * (MAX_PROBE_BYTES + 200)}
        assert (await http.post("/probe", json=large)).status_code == 413
    async with TrackerClient(tracker.address, own) as client:
        with pytest.raises(NodeNotReadyError, match="wait"):
            for _ in range(2 * BURST):
                await client.probe(0)
        assert [it.model for it in (await client.models()).models] == [DIGEST]


async def test_a_models_layers_are_measured_once_unless_asked_anew(settings, tmp_path):
    index = read_index(build(tmp_path / "tiny.gguf", TinyModel(layers=5)))
    digest = Digest("sha256:" + "1" * 64)
    first = await rehearse(settings, index, digest, OPTIONS)
    assert 1e6 < first.speed.bytes_per_second < 1e13
    assert 1e6 < first.speed.output_bytes_per_second < 1e15
    assert first.speed.knows_prompts
    # Where something else had the processors it isn't remembered.
    if first.undisturbed:
        assert len(list(settings.notes.glob("*.rehearsal.json"))) == 1
        assert await rehearse(settings, index, digest, OPTIONS) == first
    assert not list(settings.cache.glob("rehearsal-*"))


async def test_a_machine_without_the_memory_for_it_isnt_measured(settings, tmp_path, monkeypatch):
    index = read_index(build(tmp_path / "tiny.gguf", TinyModel(layers=5)))
    monkeypatch.setattr(speed, "PROCESS_BYTES", 1 << 60)
    with pytest.raises(ResourceExhaustedError, match="are free"):
        await rehearse(settings, index, Digest("sha256:" + "1" * 64), OPTIONS)


async def test_a_model_without_layers_between_two_cuts_isnt_measured(settings, tmp_path):
    index = read_index(build(tmp_path / "tiny.gguf", TinyModel(layers=2)))
    with pytest.raises(ModelUnsupportedError, match="measure"):
        await rehearse(settings, index, Digest("sha256:" + "1" * 64), OPTIONS)


async def measured_by(
    tracker: LiveTracker, settings: Settings, folder: Path
) -> tuple[Identity, Measuring]:
    """A new machine that has the model that is offered, and what measures it."""
    model = build(folder / "tiny.gguf", TinyModel(layers=5))
    own = await tracker.join()
    slices = LocalSlices({DIGEST: model}, SliceCache(settings.cache))
    return own, Measuring(tracker.address, own, Computing(settings, OPTIONS, slices))


async def test_before_it_is_heard_of_a_machine_is_measured_with_the_models_that_are_offered(
    tracker, settings, tmp_path
):
    own, measuring = await measured_by(tracker, settings, tmp_path)
    async with TrackerClient(tracker.address, own) as client:
        await measuring.begin(client)
        (report,) = measuring.speeds
        assert (report.model, report.speed().knows_prompts) == (DIGEST, True)
        machine = MACHINE.model_copy(update={"speeds": measuring.speeds})
        await client.heartbeat(HeartbeatRequest(incarnation=1, machine=machine))
    (status,) = tracker.service.status().machines
    assert status.machine is not None
    assert status.machine.speeds == measuring.speeds
    assert tracker.service.observed.speeds(own.node_id) == ((DIGEST, report.speed()),)


async def end_between_questions(
    running: asyncio.Task[None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is cancelled while it is made is left to the garbage collector by httpx."""
    monkeypatch.setattr("meshnet.cli.measuring.AGAIN_SECONDS", 600.0)
    await asyncio.sleep(0.5)
    running.cancel()
    await asyncio.wait([running])


async def test_a_machine_that_starts_before_the_tracker_is_measured_once_it_is_there(
    tracker, settings, tmp_path, monkeypatch
):
    monkeypatch.setattr("meshnet.cli.measuring.AGAIN_SECONDS", 0.05)
    own, measuring = await measured_by(tracker, settings, tmp_path)
    async with TrackerClient(Address("127.0.0.1:1"), own) as nobody:
        await measuring.begin(nobody)
    known = measuring.speeds
    assert known == ()
    running = asyncio.create_task(measuring.run())
    try:
        async with asyncio.timeout(WITHIN_SECONDS):
            while not known:
                await asyncio.sleep(0.02)
                known = measuring.speeds
    finally:
        await end_between_questions(running, monkeypatch)
    assert [each.model for each in known] == [DIGEST]


async def test_a_cache_folder_that_cant_be_made_is_told_by_its_field(settings, tmp_path):
    index = read_index(build(tmp_path / "tiny.gguf", TinyModel(layers=5)))
    settings.cache.touch()
    with pytest.raises(InvalidArgumentError, match="can't be written"):
        await rehearse(settings, index, Digest("sha256:" + "1" * 64), OPTIONS)


async def test_a_machine_that_was_disturbed_is_measured_again_when_idle_until_it_wasnt(
    tracker, settings, tmp_path, monkeypatch
):
    made, good = list[bool](), asyncio.Event()

    async def third_is_good(*_: object) -> Rehearsed:
        made.append(len(made) == 2)
        if made[-1]:
            good.set()
        return Rehearsed(SPEED, undisturbed=made[-1])

    monkeypatch.setattr("meshnet.cli.measuring.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr("meshnet.cli.measuring.rehearse", third_is_good)
    own, measuring = await measured_by(tracker, settings, tmp_path)
    async with TrackerClient(tracker.address, own) as client:
        await measuring.begin(client)
    measuring.idle = False
    running = asyncio.create_task(measuring.run())
    try:
        await asyncio.sleep(0.3)
        assert made == [False]
        measuring.idle = True
        async with asyncio.timeout(WITHIN_SECONDS):
            await good.wait()
        await asyncio.sleep(0.3)
    finally:
        await end_between_questions(running, monkeypatch)
    assert made == [False, False, True]


async def test_a_plan_has_a_clusters_machines_as_fast_as_they_measured_themselves(
    tracker, settings, tmp_path
):
    model = build(tmp_path / "m.gguf", TinyModel(layers=5))
    state, token = StateFolder(settings.state), tracker.token().encode()
    address, _, own = await identity_for(state, token, "desk")
    machine = MACHINE.model_copy(update={"speeds": (SpeedReport.of(DIGEST, SPEED),)})
    async with TrackerClient(address, own) as client:
        await client.heartbeat(HeartbeatRequest(incarnation=1, machine=machine))
    held = await cluster_of(str(model), settings, PlannedLink())
    assert [(it.name, it.speed) for it in held.machines] == [("desk", SPEED)]
    assert held.status is not None
    assert held.status.digest == DIGEST
