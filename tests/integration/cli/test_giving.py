"""Machines of a cluster get layers from each other, over mutual TLS."""

import asyncio
import ssl
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from meshnet.cli.giving import SLOWEST_LIMIT, Giving, giving
from meshnet.cli.slices import TrackerSlices
from meshnet.domain.errors import InvalidArgumentError, ModelNotFoundError
from meshnet.domain.ids import Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.model.manifest import Manifest
from meshnet.model.progress import silent
from meshnet.tracker import face_slices
from meshnet.tracker import messages as msg
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.events import ModelOffered
from meshnet.tracker.forecast import shape_of
from meshnet.tracker.placement import Demand
from meshnet.transport.certificates import Authority, Role
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.tls import Identity, client_context
from tests.support.fetching import needed
from tests.support.live_tracker import Files, LiveTracker, live_tracker
from tests.support.tiny_gguf import TinyModel, build
from tests.support.trackers import MACHINE

SERVING = msg.Serving(context_length=64, sessions=1)
UPLOAD = 64 << 20


class Offered(Files):
    """A model that the first machine offers, as ``up`` does."""

    def __init__(self, path: Path, made: Manifest) -> None:
        super().__init__(path)
        self._made = made

    def manifest(self, digest: Digest) -> bytes:
        return self._made.to_json()

    def path(self, digest: Digest, name: str) -> Path:
        if not self._path.exists():
            raise ModelNotFoundError(f"{name} is gone")
        return self._path


@dataclass
class Machine:
    """A machine that joined: what it does beside running a worker."""

    identity: Identity
    slices: TrackerSlices
    client: TrackerClient
    work: tuple[msg.WorkReport, ...] = ()
    beats: int = 0

    @property
    def node_id(self) -> NodeId:
        return self.identity.node_id

    async def beat(self) -> msg.AssignmentReply | None:
        weights = await asyncio.to_thread(self.slices.report)
        reply = await self.client.heartbeat(
            msg.HeartbeatRequest(incarnation=1, machine=MACHINE, work=self.work, weights=weights)
        )
        return reply.assignment

    async def fetch(self, told: msg.AssignmentReply) -> SliceFile:
        made = await asyncio.to_thread(self.slices, told, silent, threading.Event())
        self.work = (
            msg.WorkReport(
                model=told.model,
                start=told.start,
                end=told.end,
                epoch=told.epoch,
                phase=msg.Phase.READY,
                address="127.0.0.1:1",
                recipe="sha256:" + "c" * 64,
            ),
        )
        return made

    @property
    def given(self) -> Giving:
        assert self.slices.giving is not None
        return self.slices.giving


@dataclass
class Mesh:
    """A tracker whose machine has a model, and machines with folders of their own."""

    tracker: LiveTracker
    model: Path
    manifest: Manifest
    root: Path
    names: list[str] = field(default_factory=list)

    @asynccontextmanager
    async def machine(self, name: str) -> AsyncIterator[Machine]:
        folder = IdentityFolder(self.root / name)
        _, certificate = self.tracker.service.admit(folder.public_key(), name, Role.NODE)
        identity = folder.keep(certificate, self.tracker.authority.certificate_pem)
        cache = SliceCache(self.root / name / "cache")
        address = self.tracker.address
        async with (
            giving(cache.store, folder.files, "127.0.0.1", UPLOAD) as given,
            TrackerClient(address, identity) as client,
        ):
            slices = TrackerSlices(address, folder.files, cache, given)
            yield Machine(identity, slices, client)

    async def told(self, machine: Machine) -> msg.AssignmentReply:
        """Beat and plan until the machine is to hold layers."""
        async with asyncio.timeout(20.0):
            while (told := await machine.beat()) is None:
                self.tracker.service.tick()
                await asyncio.sleep(0.05)
        return told

    def assigned(self, layers: LayerRange, *holders: msg.HolderReply) -> msg.AssignmentReply:
        return msg.AssignmentReply(
            model=self.manifest.digest,
            name="m",
            start=layers.start,
            end=layers.end,
            total_layers=4,
            epoch=1,
            serving=SERVING,
            holders=holders,
        )


@pytest.fixture
def local(tmp_path: Path) -> SliceCache:
    """The first machine's."""
    return SliceCache(tmp_path / "first")


@pytest.fixture
async def mesh(tmp_path: Path, local: SliceCache) -> AsyncIterator[Mesh]:
    model = build(tmp_path / "m.gguf", TinyModel(embedding=256))
    manifest = local.manifest(model)
    async with live_tracker(Offered(model, manifest)) as tracker:
        shape = shape_of(describe(read_index(model)))
        tracker.service.offer(ModelOffered(manifest.digest, "m", shape, Demand(64), SERVING))
        yield Mesh(tracker, model, manifest, tmp_path)


def header_bytes(mesh: Mesh) -> int:
    return sum(part.header_bytes for part in mesh.manifest.parts)


async def test_a_machine_gets_its_layers_from_another_and_no_tensor_from_the_first(mesh: Mesh):
    async with mesh.machine("b") as b, mesh.machine("c") as c:
        first = await mesh.told(b)
        assert first.holders == ()
        held = await b.fetch(first)
        assert b.slices.report().first_bytes > 0

        # What b has, c is to hold too: b tells of it, and the tracker tells c of b.
        await b.beat()
        mesh.tracker.service.drain(b.node_id)
        told = await mesh.told(c)
        assert (told.start, told.end) == (first.start, first.end)
        assert [it.node_id for it in told.holders] == [b.node_id]
        made = await c.fetch(told)
        assert made.path.read_bytes() == held.path.read_bytes()

        report, wanted = (
            c.slices.report(),
            sum(tensor.size for tensor in read_index(mesh.model).tensors.values()),
        )
        assert report.first_bytes == header_bytes(mesh)
        assert wanted <= report.peer_bytes <= 1.02 * wanted
        assert b.given.given_bytes == report.peer_bytes
        await c.beat()
        said = {it.node_id: it.weights for it in mesh.tracker.service.status().machines}
        assert said[c.node_id] == report
        # Once it has begun, it needs nobody any more.
        again = await c.beat()
        assert again is not None
        assert again.holders == ()


def holder(machine: Machine, layers: LayerRange, name: str = "b") -> msg.HolderReply:
    address = machine.given.address
    assert address is not None
    return msg.HolderReply(
        node_id=machine.node_id, name=name, address=address, start=layers.start, end=layers.end
    )


async def test_layers_go_on_from_machine_to_machine_when_the_models_file_is_gone(mesh: Mesh):
    held, wanted = LayerRange(0, 3), LayerRange(1, 3)
    async with mesh.machine("b") as b, mesh.machine("c") as c:
        await b.fetch(mesh.assigned(held))
        await b.beat()
        index = read_index(mesh.model)
        mesh.model.unlink()
        made = await c.fetch(mesh.assigned(wanted, holder(b, held)))
        assert made.layers == wanted
        report = c.slices.report()
        assert report.first_bytes == 0
        assert report.peer_bytes <= 1.02 * needed(index, wanted)


async def test_one_whose_slices_are_damaged_is_told_of_and_not_asked_again(
    mesh: Mesh, local: SliceCache, capsys: pytest.CaptureFixture[str]
):
    held = LayerRange(0, 3)
    async with mesh.machine("b") as b, mesh.machine("c") as c, mesh.machine("d") as d:
        there = await b.fetch(mesh.assigned(held))
        await c.fetch(mesh.assigned(held))
        for machine in (b, c):
            await machine.beat()
        content = there.path.read_bytes()
        begin = len(content) // 8
        there.path.write_bytes(content[:begin] + bytes(len(content) - begin))
        holders = holder(b, held), holder(c, held, "c")
        given = []
        for layers in (LayerRange(1, 2), LayerRange(2, 3)):
            made = await d.fetch(mesh.assigned(layers, *holders))
            assert made.path.read_bytes() == local.ensure(mesh.model, layers).path.read_bytes()
            given.append(b.given.given_bytes)
        # Of the second range nothing came from the one that was wrong before.
        assert 0 < given[0] == given[1]
        said = capsys.readouterr()
        assert said.err.count("not asked any more") == 1
        assert "layers [1, 2) of m: not asked any more" in said.err
        assert "isn't what the model's manifest says" in said.err
        assert "from c" in said.out
        assert d.slices.report().first_bytes == header_bytes(mesh)


async def test_machines_that_are_named_while_it_fetches_are_asked_too(mesh: Mesh):
    layers = LayerRange(1, 3)
    async with mesh.machine("b") as b, mesh.machine("c") as c:
        await b.fetch(mesh.assigned(layers))
        await b.beat()
        c.slices.follow(mesh.assigned(LayerRange(0, 1), holder(b, layers, "other")))
        c.slices.follow(mesh.assigned(layers, holder(b, layers)))
        # Later answers name nobody, which takes nothing back.
        c.slices.follow(mesh.assigned(layers))
        await c.fetch(mesh.assigned(layers))
        assert c.slices.report().first_bytes == header_bytes(mesh)


@asynccontextmanager
async def asking(given: Giving, context: ssl.SSLContext) -> AsyncIterator[httpx.AsyncClient]:
    base = f"https://{given.address}"
    async with httpx.AsyncClient(base_url=base, verify=context, trust_env=False) as client:
        yield client


async def test_slices_are_given_to_machines_of_the_cluster_alone(mesh: Mesh):
    tracker = mesh.tracker
    async with mesh.machine("b") as b:
        made = await b.fetch(mesh.assigned(LayerRange(1, 3)))
        await b.beat()
        ((model, _),) = b.given.shelf._slices
        path, some = f"/slices/{model}/1-3", {"range": "bytes=100-299"}
        one = tracker.identity()
        context = client_context(one, node_id=b.node_id)
        async with asking(b.given, context) as client:
            answer = await client.get(path, headers=some)
            assert answer.status_code == 206
            assert answer.content == made.path.read_bytes()[100:300]
            assert answer.headers["content-range"] == f"bytes 100-299/{made.size}"
            IdentityFolder(mesh.root / "b").refuse([one.node_id])
            refused = await client.get(path, headers=some)
            assert (refused.status_code, refused.json()["field"]) == (403, "node")
        for role in (Role.GATEWAY, Role.ADMIN, Role.TRACKER):
            context = client_context(tracker.identity(role), node_id=b.node_id)
            async with asking(b.given, context) as client:
                assert (await client.get(path, headers=some)).status_code == 403
        bare = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        bare.check_hostname = False
        bare.verify_mode = ssl.CERT_NONE
        stranger = client_context(tracker.identity(authority=Authority.create("other")))
        for context in (bare, stranger):
            async with asking(b.given, context) as client:
                with pytest.raises(httpx.TransportError):
                    await client.get(path, headers=some)
        # Nor does a machine take another for the one that it was told of.
        context = client_context(tracker.identity(), node_id=NodeId("0" * 16))
        async with asking(b.given, context) as client:
            with pytest.raises(httpx.ConnectError):
                await client.get(path, headers=some)


async def test_what_is_given_is_bounded(mesh: Mesh, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(face_slices, "MOST_BYTES", 10_000)
    monkeypatch.setattr(face_slices, "WAIT_SECONDS", 0.05)
    async with mesh.machine("b") as b:
        made = await b.fetch(mesh.assigned(LayerRange(1, 3)))
        await b.beat()
        ((model, _),) = b.given.shelf._slices
        path, header = f"/slices/{model}/1-3", f"/models/{mesh.manifest.digest}/files/m.gguf"
        end = header_bytes(mesh)
        context = client_context(mesh.tracker.identity(), node_id=b.node_id)
        async with asking(b.given, context) as client:

            async def status(target: str, span: str | None, **more: str) -> int:
                asked = {} if span is None else {"range": f"bytes={span}"}
                return (await client.get(target, headers=asked | more)).status_code

            assert await status(path, None) == 400
            assert await status(path, "0-9999") == 206
            assert await status(path, "0-10000") == 400
            assert await status(path, "5-4") == 400
            assert await status(path, "-5") == 400
            assert await status(path, f"{made.size - 1}-{made.size + 5}") == 206
            assert await status(path, f"{made.size}-{made.size + 5}") == 400
            assert await status(path, "0-9", **{"if-range": '"another"'}) == 404
            assert await status(header, f"0-{end - 1}") == 206
            # The model's weights are the first machine's to give, or a slice's.
            assert await status(header, f"0-{end}") == 400
            for other in (
                f"/slices/{model}/0-3",
                f"/slices/{model}/3-1",
                f"/slices/{'0' * 64}/1-3",
            ):
                assert await status(other, "0-9") in {400, 404}
            for other in (
                "/",
                "/slices/../m.gguf",
                f"/models/{mesh.manifest.digest}/files/..%2fkey",
            ):
                assert await status(other, "0-9") == 404
            assert (await client.post(path)).status_code == 400
            monkeypatch.setattr(face_slices, "AT_ONCE_FOR_ONE", 0)
            busy = await client.get(path, headers={"range": "bytes=0-9"})
            assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")


async def test_no_more_is_given_a_second_than_the_limit(mesh: Mesh):
    layers = LayerRange(1, 3)
    async with mesh.machine("b") as b:
        made = await b.fetch(mesh.assigned(layers))
        folder = IdentityFolder(mesh.root / "b")
        limit = 16 << 20
        async with giving(b.slices.cache.store, folder.files, "127.0.0.1", limit) as slow:
            slow.shelf.look()
            ((model, _),) = slow.shelf._slices
            context = client_context(mesh.tracker.identity(), node_id=b.node_id)
            async with asking(slow, context) as client:
                span = {"range": f"bytes=0-{made.size - 1}"}
                began = time.monotonic()
                answer = await client.get(f"/slices/{model}/1-3", headers=span)
                took = time.monotonic() - began
        assert len(answer.content) == made.size == slow.given_bytes
        # The first chunk goes at once.
        assert took >= (made.size - face_slices.CHUNK) / limit
        assert slow.address is None
        with pytest.raises(InvalidArgumentError, match="upload-limit"):
            async with giving(b.slices.cache.store, folder.files, "127.0.0.1", SLOWEST_LIMIT - 1):
                pass


async def test_answers_to_all_machines_together_are_few_and_one_that_leaves_makes_room(
    mesh: Mesh, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(face_slices, "AT_ONCE", 1)
    monkeypatch.setattr(face_slices, "WAIT_SECONDS", 0.05)
    async with mesh.machine("b") as b:
        made = await b.fetch(mesh.assigned(LayerRange(1, 3)))
        await b.beat()
        ((model, _),) = b.given.shelf._slices
        path, files = f"/slices/{model}/1-3", IdentityFolder(mesh.root / "b").files
        some = {"range": "bytes=0-9"}
        contexts = [client_context(mesh.tracker.identity(), node_id=b.node_id) for _ in range(2)]
        async with giving(b.slices.cache.store, files, "127.0.0.1", SLOWEST_LIMIT) as slow:
            slow.shelf.look()
            async with asking(slow, contexts[0]) as one, asking(slow, contexts[1]) as other:
                whole = {"range": f"bytes=0-{made.size - 1}"}
                async with one.stream("GET", path, headers=whole) as answer:
                    assert answer.status_code == 206
                    busy = await other.get(path, headers=some)
                    assert (busy.status_code, busy.headers["retry-after"]) == (429, "1")
                async with asyncio.timeout(10.0):
                    while (await other.get(path, headers=some)).status_code != 206:  # noqa: ASYNC110
                        await asyncio.sleep(0.1)
        assert slow.given_bytes < made.size
