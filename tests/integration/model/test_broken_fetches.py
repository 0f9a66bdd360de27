"""Fetches that break off, are damaged, change or stop: what is kept is right, or nothing is."""

import threading
import time
from pathlib import Path

import pytest

from meshnet.domain.errors import (
    CancelledError,
    ModelFileError,
    ModelNotFoundError,
    NodeUnreachableError,
)
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache
from meshnet.model.gguf import read_index
from meshnet.model.manifest import Manifest
from meshnet.model.progress import Progress
from meshnet.model.remote import open_remote
from meshnet.model.sources import Patience, Source
from tests.support.fetching import BRISK, MIDDLE, fetched, needed, remote
from tests.support.range_server import RangeServer
from tests.support.tiny_gguf import TinyModel, build


def test_a_broken_answer_is_gone_on_with_where_it_broke(
    server: RangeServer, manifest: Manifest, folder: Path, tmp_path: Path
) -> None:
    model = remote(tmp_path, manifest, server)
    server.behaviour.breaks = [10_000, 50_000, 0, 100]
    made = SliceCache(tmp_path).ensure(model, MIDDLE)
    assert made.digest == made.path.stem.replace("-", ":")
    assert server.sent <= 1.02 * needed(read_index(folder / "model.gguf"), MIDDLE)


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_is_busy_is_asked_again(
    status: int, server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    server.behaviour.refusals = [status, status]
    fetched(tmp_path, manifest, server)


class PowerCutError(Exception):
    """Ends a fetch in the middle."""


def cut_at(share: float) -> Progress:
    def progress(label: str, done: int, total: int, /) -> None:
        if done > share * total:
            raise PowerCutError

    return progress


@pytest.mark.parametrize("proven", [True, False], ids=["manifest", "no manifest"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
def test_the_next_attempt_fetches_only_the_rest(
    share: float, proven: bool, server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    model = remote(tmp_path / "a", manifest if proven else None, server)
    whole = SliceCache(tmp_path / "a").ensure(model, MIDDLE)
    sent = server.sent
    cut_model = remote(tmp_path / "b", manifest if proven else None, server)
    with pytest.raises(PowerCutError):
        SliceCache(tmp_path / "b").ensure(cut_model, MIDDLE, cut_at(share))
    server.sent = 0
    again = remote(tmp_path / "b", manifest if proven else None, server)
    made = SliceCache(tmp_path / "b").ensure(again, MIDDLE)
    assert made.path.read_bytes() == whole.path.read_bytes()
    assert server.sent <= (1 - share) * sent + BRISK.piece_bytes


def test_what_a_crash_left_damaged_is_fetched_anew(
    server: RangeServer, manifest: Manifest, local: SliceCache, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(PowerCutError):
        SliceCache(tmp_path).ensure(remote(tmp_path, manifest, server), MIDDLE, cut_at(0.6))
    (partial,) = (tmp_path / "blobs").glob("*.partial")
    with partial.open("r+b") as file:
        file.seek(-100_000, 2)
        file.write(bytes(1000))
    made = fetched(tmp_path, manifest, server)
    same = local.ensure(folder / "model.gguf", MIDDLE)
    assert made.path.read_bytes() == same.path.read_bytes()


def flip(start: int, content: bytes) -> bytes:
    """Damage far behind the header."""
    return content[:-1] + bytes([content[-1] ^ 1]) if start > 1 << 20 else content


def test_damaged_bytes_are_refused_and_fetched_from_somebody_else(
    server: RangeServer,
    other: RangeServer,
    manifest: Manifest,
    local: SliceCache,
    folder: Path,
    tmp_path: Path,
) -> None:
    server.behaviour.damage = flip
    made = fetched(tmp_path, manifest, server, other)
    same = local.ensure(folder / "model.gguf", MIDDLE)
    assert made.path.read_bytes() == same.path.read_bytes()
    assert other.sent > 0


def test_nobody_is_blamed_for_what_an_earlier_attempt_got_damaged(
    server: RangeServer, manifest: Manifest, local: SliceCache, folder: Path, tmp_path: Path
) -> None:
    server.behaviour.damage = flip
    with pytest.raises(PowerCutError):
        SliceCache(tmp_path).ensure(remote(tmp_path, manifest, server), MIDDLE, cut_at(0.04))
    server.behaviour.damage = lambda start, content: content
    made = fetched(tmp_path, manifest, server)
    same = local.ensure(folder / "model.gguf", MIDDLE)
    assert made.path.read_bytes() == same.path.read_bytes()


def test_damaged_bytes_that_nobody_else_has_are_refused_by_the_tensors_name(
    server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    server.behaviour.damage = flip
    with pytest.raises(ModelFileError, match="isn't what the model's manifest says") as caught:
        fetched(tmp_path, manifest, server)
    assert caught.value.details["field"].startswith("blk.1.")
    assert list((tmp_path / "blobs").glob("sha256-*")) == []


def test_where_one_source_breaks_the_next_goes_on(
    server: RangeServer, other: RangeServer, manifest: Manifest, folder: Path, tmp_path: Path
) -> None:
    model = remote(tmp_path, manifest, server, other)
    server.behaviour.breaks = [1000] * 3 + [0] * 1000
    made = SliceCache(tmp_path).ensure(model, MIDDLE)
    assert not made.reused
    assert other.sent > 0
    assert server.sent + other.sent <= 1.02 * needed(read_index(folder / "model.gguf"), MIDDLE)


def test_a_file_that_changes_midway_is_refused(server: RangeServer, tmp_path: Path) -> None:
    model = remote(tmp_path, None, server)
    server.behaviour.version = 2
    with pytest.raises(ModelFileError, match="changed on the server"):
        SliceCache(tmp_path).ensure(model, MIDDLE)


def test_a_file_that_changed_since_is_another_model(server: RangeServer, tmp_path: Path) -> None:
    before = remote(tmp_path, None, server)
    server.behaviour.version = 2
    after = remote(tmp_path, None, server)
    assert before.digest != after.digest
    assert not SliceCache(tmp_path).ensure(after, MIDDLE).reused


def test_a_server_without_ranges_is_refused_before_the_file_is_sent(
    server: RangeServer, tmp_path: Path
) -> None:
    server.behaviour.ranges = False
    with pytest.raises(ModelFileError, match="whole files only"):
        fetched(tmp_path, None, server)


def test_a_server_that_stalls_is_given_up_and_another_asked(
    server: RangeServer, other: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    server.behaviour.stalls = threading.Event()
    patience = Patience(attempts=1, stall_seconds=0.2, piece_bytes=1 << 20)
    sources = [Source((each.url("model.gguf"),)) for each in (server, other)]
    made = SliceCache(tmp_path).ensure(open_remote(sources, tmp_path, manifest, patience), MIDDLE)
    server.behaviour.stalls.set()
    assert not made.reused


def test_a_file_that_is_not_there_is_named(server: RangeServer, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"none\.gguf: HTTP 404"):
        remote(tmp_path, None, server, name="none.gguf")


def test_a_server_that_is_gone_is_named(tmp_path: Path) -> None:
    with pytest.raises(NodeUnreachableError, match=r"127\.0\.0\.1:1/model\.gguf"):
        open_remote([Source(("http://127.0.0.1:1/model.gguf",))], tmp_path, None, BRISK)


def test_what_a_store_is_redirected_to_keeps_its_secrets_and_its_version(
    server: RangeServer, tmp_path: Path
) -> None:
    server.behaviour.redirect = "/store"
    model = remote(tmp_path, None, server)
    assert model.files[0].tag == '"linked-1"'
    SliceCache(tmp_path).ensure(model, MIDDLE)
    server.behaviour.breaks = [0] * 100
    with pytest.raises(NodeUnreachableError) as caught:
        SliceCache(tmp_path).ensure(model, LayerRange(3, 4))
    assert "secret" not in caught.value.message


def test_another_file_than_the_manifests_is_refused(
    server: RangeServer, local: SliceCache, tmp_path: Path
) -> None:
    same_size = build(tmp_path / "model.gguf", TinyModel(embedding=256, seed=1))
    other_keys = TinyModel(embedding=256, keys={"rope.freq_base": 5000.0})
    for path in (same_size, build(tmp_path / "keys.gguf", other_keys)):
        with pytest.raises(ModelFileError):
            fetched(tmp_path / path.stem, local.manifest(path), server)


def test_a_damaged_header_is_not_kept_and_comes_from_somebody_else(
    server: RangeServer, other: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    # A byte of a key's value, so that the header still can be read.
    server.behaviour.damage = lambda start, content: content.replace(b"gpt-2", b"gpt-3")
    with pytest.raises(ModelFileError, match="hashes don't give"):
        remote(tmp_path, manifest, server)
    assert remote(tmp_path, manifest, server, other).digest == manifest.digest
    assert remote(tmp_path, manifest).digest == manifest.digest


def test_a_fetch_that_is_stopped_ends_and_keeps_what_came(
    server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    model = remote(tmp_path, manifest, server)

    def progress(label: str, done: int, total: int, /) -> None:
        if done > total // 2:
            model.stop.set()

    with pytest.raises(CancelledError):
        SliceCache(tmp_path).ensure(model, MIDDLE, progress)
    sent, server.sent = server.sent, 0
    fetched(tmp_path, manifest, server)
    assert server.sent < sent


def test_a_fetch_that_is_stopped_does_not_wait_for_a_silent_server(
    server: RangeServer, manifest: Manifest, tmp_path: Path
) -> None:
    patience = Patience(stall_seconds=60.0)
    model = open_remote([Source((server.url("model.gguf"),))], tmp_path, manifest, patience)
    server.behaviour.stalls = threading.Event()
    stopper = threading.Timer(0.3, model.stop.set)
    stopper.start()
    started = time.monotonic()
    with pytest.raises(CancelledError):
        SliceCache(tmp_path).ensure(model, MIDDLE)
    assert time.monotonic() - started < 3
    server.behaviour.stalls.set()
    stopper.join()
