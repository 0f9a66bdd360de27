"""The relay beside a tracker: who is told to use it, and when no more."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from meshnet.cli import relaying, renewing
from meshnet.cli.cluster import StateFolder
from meshnet.cli.reaching import addresses_tried
from meshnet.cli.relaying import RelayedWorker, relay_address, relay_listener, relay_running
from meshnet.cli.tracking import RunningTracker
from meshnet.domain.errors import InvalidArgumentError, NodeUnreachableError
from meshnet.domain.ids import Address, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.asking import RelayReply, RelayRequest
from meshnet.tracker.desk import answer_relay
from meshnet.tracker.reach import Reach
from meshnet.tracker.service import TrackerService
from meshnet.transport.certificates import Role
from meshnet.transport.identity_folder import load_or_make_authority
from meshnet.transport.options import GrpcOptions
from meshnet.transport.seam_client import GrpcTransport
from meshnet.transport.seam_server import GrpcNodeServer
from meshnet.transport.tls import Identity
from tests.support.frames import CAPABILITY
from tests.support.networks import ANY_PORT, nowhere
from tests.support.relays import until
from tests.support.services import ScriptedService
from tests.support.trackers import DIGEST, MACHINE, OFFER, MemoryStore


@dataclass
class Desk:
    """The tracker as the relay asks it; away as long as a test wants."""

    tracker: RunningTracker
    away: bool = False

    async def relay(self, request: RelayRequest) -> RelayReply:
        if self.away:
            raise NodeUnreachableError("the tracker is away")
        return answer_relay(self.tracker.service, request)


@dataclass
class Cluster:
    """A tracker with a relay, and one machine's identity."""

    tracker: RunningTracker
    node: Identity
    gateway: Identity
    desk: Desk
    relay: Address

    @property
    def node_id(self) -> NodeId:
        return self.node.node_id

    def beat(self, address: Address) -> Address | None:
        """The machine says where its worker is; gives the relay that it is to use."""
        work = msg.WorkReport(
            model=DIGEST,
            start=0,
            end=6,
            epoch=1,
            phase=msg.Phase.READY,
            address=address,
            recipe="sha256:recipe",
        )
        beat = msg.HeartbeatRequest(incarnation=1, machine=MACHINE, work=(work,))
        relay = self.tracker.service.heartbeat(self.node_id, beat).relay
        return None if relay is None else Address(relay)

    def is_way(self, way: msg.Way) -> bool:
        return self.tracker.service.reach.way(self.node_id) is way


@asynccontextmanager
async def running_cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    """A tracker without a port, and its relay."""
    state = StateFolder(tmp_path)
    authority = load_or_make_authority(state.tracker, "test")
    service = TrackerService(MemoryStore(), authority)
    service.offer(OFFER)
    tracker = RunningTracker(service, Address("127.0.0.1:1"), authority.fingerprint, state)
    tracker.identity(Role.TRACKER, "first")
    node, gateway = (tracker.identity(role, "first") for role in (Role.NODE, Role.GATEWAY))
    listener, desk = socket.create_server(("127.0.0.1", 0)), Desk(tracker)
    relay = relay_address(tracker.address, listener)
    service.reach = Reach(relay)
    files = tracker.folder(Role.TRACKER).files
    async with relay_running(desk, files, listener), addresses_tried(service, files):
        yield Cluster(tracker, node, gateway, desk, relay)


@pytest.fixture(autouse=True)
def looking_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relaying, "LOOK_SECONDS", 0.05)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with running_cluster(tmp_path) as made:
        yield made


async def test_the_relay_is_used_while_the_address_does_not_work_and_no_longer(
    cluster: Cluster,
) -> None:
    server = GrpcNodeServer(ScriptedService(), ANY_PORT, options=GrpcOptions(tls=cluster.node))
    own, stated = await server.start(), nowhere()
    worker = RelayedWorker(cluster.tracker.folder(Role.NODE).files)
    transport = GrpcTransport(options=GrpcOptions(tls=cluster.gateway))
    try:
        assert cluster.beat(stated) is None
        await until(lambda: cluster.is_way(msg.Way.NONE))
        relay = cluster.beat(stated)
        assert relay is not None
        await worker.follow(relay, own)
        await until(lambda: cluster.is_way(msg.Way.RELAYED))
        peer = transport.peer(relay, cluster.node_id)
        assert await peer.capability(5.0) == CAPABILITY

        cluster.beat(own)
        await until(lambda: cluster.is_way(msg.Way.DIRECT))
        await worker.follow(cluster.beat(own), own)
        assert cluster.beat(own) is None
        assert await peer.capability(5.0) == CAPABILITY  # what was there before goes on
        await peer.close()
        await asyncio.sleep(0.5)
        late = transport.peer(relay, cluster.node_id)
        with pytest.raises(NodeUnreachableError):
            await late.capability(2.0)
        await late.close()
    finally:
        await worker.close()
        await server.stop()


async def test_a_tracker_that_goes_and_comes_back_leaves_who_waits_where_they_are(
    cluster: Cluster,
) -> None:
    server = GrpcNodeServer(ScriptedService(), ANY_PORT, options=GrpcOptions(tls=cluster.node))
    own, stated = await server.start(), nowhere()
    worker = RelayedWorker(cluster.tracker.folder(Role.NODE).files)
    transport = GrpcTransport(options=GrpcOptions(tls=cluster.gateway))
    try:
        cluster.beat(stated)
        await until(lambda: cluster.is_way(msg.Way.NONE))
        await worker.follow(cluster.beat(stated), own)
        await until(lambda: cluster.is_way(msg.Way.RELAYED))
        cluster.desk.away = True
        await asyncio.sleep(2 * relaying.LOOK_SECONDS)
        now = cluster.tracker.service.now
        cluster.tracker.service.reach = Reach(cluster.relay, [cluster.node_id], now)
        cluster.desk.away = False
        await asyncio.sleep(2 * relaying.LOOK_SECONDS)
        assert cluster.beat(stated) == cluster.relay
        peer = transport.peer(cluster.relay, cluster.node_id)
        assert await peer.capability(5.0) == CAPABILITY
        await peer.close()
    finally:
        await worker.close()
        await server.stop()


async def test_an_address_at_which_another_answers_does_not_work(cluster: Cluster) -> None:
    other = cluster.tracker.identity(Role.GATEWAY, "other")
    server = GrpcNodeServer(ScriptedService(), ANY_PORT, options=GrpcOptions(tls=other))
    try:
        cluster.beat(await server.start())
        await until(lambda: cluster.is_way(msg.Way.NONE))
    finally:
        await server.stop()


async def test_it_goes_on_looking_while_its_certificate_cannot_be_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made, refused = tempfile.TemporaryDirectory, list[str]()

    def full_at_first() -> tempfile.TemporaryDirectory[str]:
        if len(refused) < 3:
            refused.append("no room")
            raise OSError(28, "No space left on device")
        return made()

    async with running_cluster(tmp_path) as cluster:
        cluster.beat(nowhere())
        await until(lambda: cluster.is_way(msg.Way.NONE))
    monkeypatch.setattr(renewing, "RENEWAL_CHECK_SECONDS", 0.0)
    async with running_cluster(tmp_path) as cluster:
        monkeypatch.setattr(tempfile, "TemporaryDirectory", full_at_first)
        await until(lambda: len(refused) == 3)
        cluster.beat(nowhere())
        await until(lambda: cluster.is_way(msg.Way.NONE))
    assert "No space left" in caplog.text


def test_the_relay_listens_beside_the_tracker_or_where_it_is_told_to() -> None:
    with socket.create_server(("127.0.0.1", 0)) as tracker:
        host, port = tracker.getsockname()
        with relay_listener(None, tracker) as beside:
            assert beside.getsockname()[0] == host
            with relay_listener(None, tracker) as elsewhere:
                assert elsewhere.getsockname() != beside.getsockname()
        with relay_listener("127.0.0.1:0", tracker) as told:
            assert told.getsockname()[0] == "127.0.0.1"
        for wrong in (f"{host}:{port}", "nothing"):
            with pytest.raises(InvalidArgumentError, match="relay"):
                relay_listener(wrong, tracker)
