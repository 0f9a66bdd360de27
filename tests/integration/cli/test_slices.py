"""A machine of a cluster gets its layers from the tracker, over mutual TLS."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from meshnet.cli.slices import LocalSlices, TrackerSlices
from meshnet.domain.errors import (
    CancelledError,
    FingerprintMismatchError,
    MeshnetError,
    NodeUnreachableError,
)
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache
from meshnet.model.manifest import Manifest
from meshnet.model.progress import silent
from meshnet.model.remote import open_remote
from meshnet.model.sources import Source
from meshnet.tracker import client
from meshnet.tracker import messages as msg
from meshnet.transport.certificates import Authority
from tests.support.live_tracker import Files, LiveTracker, live_tracker
from tests.support.range_server import range_server
from tests.support.tiny_gguf import TinyModel, build


class Parts(Files):
    """The weights of a model of several files, as ``up`` offers them."""

    def __init__(self, first: Path, made: Manifest) -> None:
        super().__init__(first)
        self._made = made

    def manifest(self, digest: Digest) -> bytes:
        return self._made.to_json()

    def path(self, digest: Digest, name: str) -> Path:
        return self._path.with_name(name)


@pytest.fixture
def local(tmp_path: Path) -> SliceCache:
    return SliceCache(tmp_path / "local")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return build(tmp_path / "a model.gguf", TinyModel(embedding=128), parts=3)


@pytest.fixture
async def tracker(model: Path, local: SliceCache) -> AsyncIterator[LiveTracker]:
    async with live_tracker(Parts(model, local.manifest(model))) as made:
        yield made


def assignment(model: Digest) -> msg.AssignmentReply:
    return msg.AssignmentReply(
        model=model, name="m", start=1, end=3, total_layers=4, epoch=1, serving=msg.Serving()
    )


async def test_a_machine_gets_the_very_slice_that_the_file_gives(
    tracker: LiveTracker, local: SliceCache, model: Path, tmp_path: Path
) -> None:
    slices = TrackerSlices(tracker.address, await tracker.join(), SliceCache(tmp_path / "joined"))
    asked = assignment(local.digest(model)), silent, threading.Event()
    made = await asyncio.to_thread(slices, *asked)
    same = local.ensure(model, LayerRange(1, 3))
    assert (made.digest, made.model_digest) == (same.digest, same.model_digest)
    assert made.path.read_bytes() == same.path.read_bytes()
    assert (await asyncio.to_thread(slices, *asked)).reused


async def test_a_manifest_of_another_model_is_refused(tracker: LiveTracker, tmp_path: Path) -> None:
    slices = TrackerSlices(tracker.address, await tracker.join(), SliceCache(tmp_path / "joined"))
    other = assignment(Digest("sha256:" + "1" * 64))
    with pytest.raises(FingerprintMismatchError):
        await asyncio.to_thread(slices, other, silent, threading.Event())


async def test_a_machine_of_another_cluster_gets_nothing(
    tracker: LiveTracker, local: SliceCache, model: Path, tmp_path: Path
) -> None:
    stranger = tracker.identity(authority=Authority.create("other"))
    slices = TrackerSlices(tracker.address, stranger, SliceCache(tmp_path / "joined"))
    asked = assignment(local.digest(model)), silent, threading.Event()
    with pytest.raises(MeshnetError):
        await asyncio.to_thread(slices, *asked)
    assert not (tmp_path / "joined").exists()


async def test_a_fetch_that_is_stopped_gets_no_manifest(
    tracker: LiveTracker, local: SliceCache, model: Path, tmp_path: Path
) -> None:
    slices = TrackerSlices(tracker.address, await tracker.join(), SliceCache(tmp_path / "joined"))
    stopped = threading.Event()
    stopped.set()
    with pytest.raises(CancelledError):
        await asyncio.to_thread(slices, assignment(local.digest(model)), silent, stopped)
    assert not (tmp_path / "joined").exists()


async def test_a_manifest_that_comes_too_slowly_is_given_up(
    tracker: LiveTracker,
    local: SliceCache,
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "MANIFEST_SECONDS", -1.0)
    slices = TrackerSlices(tracker.address, await tracker.join(), SliceCache(tmp_path / "joined"))
    asked = assignment(local.digest(model)), silent, threading.Event()
    with pytest.raises(NodeUnreachableError, match="didn't answer within"):
        await asyncio.to_thread(slices, *asked)


async def test_waiting_for_another_that_cuts_the_same_can_be_stopped(
    local: SliceCache, model: Path
) -> None:
    asked = assignment(local.digest(model))
    begun, go_on, stopped = threading.Event(), threading.Event(), threading.Event()

    def hold(_label: str, _done: int, _total: int, /) -> None:
        begun.set()
        assert go_on.wait(20.0)

    paths = {Digest(asked.model): model}
    first = asyncio.create_task(
        asyncio.to_thread(LocalSlices(paths, local), asked, hold, threading.Event())
    )
    assert await asyncio.to_thread(begun.wait, 20.0)
    second = asyncio.create_task(
        asyncio.to_thread(LocalSlices(paths, SliceCache(local.root)), asked, silent, stopped)
    )
    await asyncio.sleep(0.1)
    assert not second.done()
    stopped.set()
    done, _ = await asyncio.wait([second], timeout=5.0)
    go_on.set()
    await first
    assert done == {second}
    with pytest.raises(CancelledError):
        await second


def test_a_model_that_slices_are_cut_from_stays_though_it_was_served_whole(tmp_path: Path) -> None:
    cache = SliceCache(tmp_path / "cache")
    with range_server(build(tmp_path / "m.gguf", TinyModel()).parent) as server:
        source = Source((server.url("m.gguf"),))
        kept = cache.ensure(open_remote([source], cache.root), LayerRange(0, 4))
    slices = LocalSlices({kept.model_digest: kept.path}, cache)
    whole = msg.AssignmentReply(
        model=kept.model_digest,
        name="m",
        start=0,
        end=4,
        total_layers=4,
        epoch=1,
        serving=msg.Serving(),
    )
    made = slices(whole, silent, threading.Event())
    part = slices(whole.model_copy(update={"end": 2}), silent, threading.Event())
    assert made.path == kept.path
    for path in (made.path, part.path):
        slices.release(path)
    # What nobody pins goes as soon as there is no room for it.
    limit = made.path.stat().st_blocks * 512 + 1
    SliceCache(cache.root, limit).store.make_room(1, "another")
    assert (made.path.exists(), part.path.exists()) == (True, False)
