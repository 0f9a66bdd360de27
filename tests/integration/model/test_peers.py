"""Layers from machines that hold slices of them: shared out, checked, and gone on with."""

import itertools
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from meshnet.domain.errors import MeshnetError
from meshnet.domain.layers import LayerRange
from meshnet.model import fetching
from meshnet.model.cache import SliceCache
from meshnet.model.description import describe
from meshnet.model.gguf import read_index
from meshnet.model.manifest import Manifest
from meshnet.model.remote import open_remote
from meshnet.model.sources import Source
from tests.support.fetching import BRISK, MIDDLE, needed
from tests.support.range_server import RangeServer, range_server

HELD = LayerRange(0, 3)


class Watched:
    """Remembers what came from whom, and who was dropped."""

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.gone: list[tuple[str, str]] = []

    def came(self, peer: str, count: int) -> None:
        self.bytes[peer] += count

    def dropped(self, source: str, error: MeshnetError) -> None:
        self.gone.append((source, error.message))


class Peers:
    """Servers of one slice, and what a fetch from them gives."""

    def __init__(self, servers: list[RangeServer], slice_path: Path) -> None:
        self.servers = servers
        self.path = slice_path

    def sources(self, layers: LayerRange = HELD) -> list[Source]:
        return [
            Source((server.url(self.path.name),), layers, peer=f"peer{number}")
            for number, server in enumerate(self.servers)
        ]


@pytest.fixture
def peers(local: SliceCache, folder: Path) -> Iterator[Peers]:
    held = local.ensure(folder / "model.gguf", HELD)
    with ExitStack() as stack:
        servers = [stack.enter_context(range_server(held.path.parent)) for _ in range(4)]
        yield Peers(servers, held.path)


def fetch(root: Path, manifest: Manifest, sources: list[Source], watch: Watched) -> Path:
    model = open_remote(sources, root, manifest, BRISK, watch=watch)
    return SliceCache(root).ensure(model, MIDDLE).path


@pytest.fixture
def first(server: RangeServer) -> Source:
    return Source((server.url("model.gguf"),))


@pytest.fixture
def expected(local: SliceCache, folder: Path) -> bytes:
    return local.ensure(folder / "model.gguf", MIDDLE).path.read_bytes()


def test_peers_share_the_work_and_the_first_machine_gives_nothing_but_the_header(
    peers: Peers, first: Source, manifest: Manifest, folder: Path, tmp_path: Path, expected: bytes
) -> None:
    watch, index = Watched(), read_index(folder / "model.gguf")
    # They come before the first machine, wherever they are named.
    made = fetch(tmp_path, manifest, [first, *peers.sources()], watch)
    assert made.read_bytes() == expected
    assert watch.bytes[""] == sum(part.header_bytes for part in index.parts)
    for number, server in enumerate(peers.servers):
        assert watch.bytes[f"peer{number}"] == server.sent
        assert server.sent >= 0.1 * len(expected)
    assert watch.bytes.total() <= 1.02 * needed(index, MIDDLE)
    assert watch.gone == []


def test_one_that_gives_wrong_bytes_and_one_that_stops_are_left_and_little_comes_twice(
    peers: Peers, first: Source, manifest: Manifest, folder: Path, tmp_path: Path, expected: bytes
) -> None:
    corrupt, stops = peers.servers[1], peers.servers[2]
    wrong: list[int] = []

    def damage(_start: int, content: bytes) -> bytes:
        # The first answer alone is wrong, and what it is about comes again.
        if not wrong:
            wrong.append(len(content))
            return bytes([content[0] ^ 1]) + content[1:]
        return content

    corrupt.behaviour.damage = damage
    stops.behaviour.breaks = [100_000, *[0] * 100]
    watch, index = Watched(), read_index(folder / "model.gguf")
    made = fetch(tmp_path, manifest, [*peers.sources(), first], watch)
    assert made.read_bytes() == expected
    assert [source for source, _ in sorted(watch.gone)] == sorted(
        server.url(peers.path.name) for server in (corrupt, stops)
    )
    said = dict(watch.gone)
    assert "isn't what the model's manifest says" in said[corrupt.url(peers.path.name)]
    assert "closed connection" in said[stops.url(peers.path.name)]
    assert stops.sent <= 100_000
    # What was wrong is one tensor, and it is all that came twice.
    largest = max(tensor.size for tensor in index.tensors.values() if "blk" in tensor.name)
    assert watch.bytes.total() <= 1.02 * needed(index, MIDDLE) + largest
    assert watch.bytes[""] == sum(part.header_bytes for part in index.parts)


def test_where_all_peers_break_the_first_machine_gives_the_rest(
    peers: Peers, first: Source, manifest: Manifest, folder: Path, tmp_path: Path, expected: bytes
) -> None:
    for server in peers.servers:
        server.behaviour.breaks = [50_000, *[0] * 100]
    watch, index = Watched(), read_index(folder / "model.gguf")
    made = fetch(tmp_path, manifest, [*peers.sources(), first], watch)
    assert made.read_bytes() == expected
    assert len(watch.gone) == len(peers.servers)
    # Nothing that came before a break is asked for again.
    assert watch.bytes.total() <= 1.02 * needed(index, MIDDLE)


def test_layers_that_peers_lack_come_from_the_first_machine(
    peers: Peers, first: Source, manifest: Manifest, folder: Path, tmp_path: Path, local: SliceCache
) -> None:
    index, watch = read_index(folder / "model.gguf"), Watched()
    wanted = LayerRange(2, 4)
    model = open_remote([*peers.sources(), first], tmp_path, manifest, BRISK, watch=watch)
    made = SliceCache(tmp_path).ensure(model, wanted)
    same = local.ensure(folder / "model.gguf", wanted)
    assert made.path.read_bytes() == same.path.read_bytes()
    layer = describe(index).layer_bytes[2]
    assert layer <= sum(server.sent for server in peers.servers) <= 1.02 * layer + 4096
    assert watch.bytes.total() <= 1.02 * needed(index, wanted)


def test_a_peer_that_states_layers_which_nobody_can_hold_is_left_out(
    peers: Peers, first: Source, manifest: Manifest, tmp_path: Path, expected: bytes
) -> None:
    lying, honest = peers.sources()[:2]
    watch = Watched()
    sources = [replace(lying, layers=LayerRange(0, 99)), honest, first]
    assert fetch(tmp_path, manifest, sources, watch).read_bytes() == expected
    assert [source for source, _ in watch.gone] == [lying.name]
    assert peers.servers[0].sent == 0


def test_a_peer_whose_file_is_of_another_length_gives_nothing(
    peers: Peers, first: Source, manifest: Manifest, tmp_path: Path, expected: bytes
) -> None:
    peers.path.with_name("longer.gguf").write_bytes(peers.path.read_bytes() + bytes(32))
    watch = Watched()
    other = Source((peers.servers[0].url("longer.gguf"),), HELD, peer="other")
    try:
        assert fetch(tmp_path, manifest, [other, first], watch).read_bytes() == expected
    finally:
        peers.path.with_name("longer.gguf").unlink()
    assert "another file" in dict(watch.gone)[other.name]
    assert watch.bytes["other"] == 0


def test_a_peer_sends_nobody_elsewhere(
    peers: Peers, first: Source, manifest: Manifest, tmp_path: Path, expected: bytes
) -> None:
    sends, other = peers.servers[:2]
    sends.behaviour.redirect = f"http://127.0.0.1:{other.port}/store"
    watch = Watched()
    source = peers.sources()[0]
    assert fetch(tmp_path, manifest, [source, first], watch).read_bytes() == expected
    assert "HTTP 302" in dict(watch.gone)[source.name]
    assert (other.sent, other.requests) == (0, [])


def test_peers_that_are_found_meanwhile_are_asked_from_then_on(
    peers: Peers,
    first: Source,
    manifest: Manifest,
    folder: Path,
    tmp_path: Path,
    expected: bytes,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetching, "_FIND_SECONDS", 0.0)
    watch, index, looks = Watched(), read_index(folder / "model.gguf"), itertools.count()

    def more() -> list[Source]:
        return peers.sources()[:2] if next(looks) > 3 else []

    model = replace(open_remote([first], tmp_path, manifest, BRISK, watch=watch), more=more)
    assert SliceCache(tmp_path).ensure(model, MIDDLE).path.read_bytes() == expected
    header = sum(part.header_bytes for part in index.parts)
    assert watch.bytes[""] > header
    assert watch.bytes["peer0"] + watch.bytes["peer1"] > 0.4 * len(expected)
    assert watch.bytes.total() <= 1.02 * needed(index, MIDDLE)
    assert watch.gone == []
