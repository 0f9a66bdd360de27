"""Slices of a model that lies on an HTTP server: the right bytes, and few others."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache
from meshnet.model.description import describe, legal_cuts
from meshnet.model.gguf import read_index
from meshnet.model.manifest import Manifest
from meshnet.model.remote import open_remote
from meshnet.model.sources import Source
from tests.support.fetching import BRISK, MIDDLE, fetched, needed, remote
from tests.support.range_server import RangeServer, range_server


def ranges(total: int) -> list[LayerRange]:
    return [
        LayerRange(start, end)
        for start in range(total)
        for end in range(start + 1, total + 1)
        if end - start < total
    ]


@pytest.mark.parametrize("name", ["model.gguf", "split-00002-of-00003.gguf"])
@pytest.mark.parametrize("layers", ranges(4), ids=str)
def test_only_the_header_and_the_ranges_bytes_are_fetched(
    layers: LayerRange,
    name: str,
    server: RangeServer,
    local: SliceCache,
    tmp_path: Path,
    folder: Path,
) -> None:
    path = folder / name
    model = remote(tmp_path, local.manifest(path), server, name=name)
    made = SliceCache(tmp_path).ensure(model, layers)
    assert made.path.read_bytes() == local.ensure(path, layers).path.read_bytes()
    assert made.model_digest == local.digest(path)
    assert server.sent <= 1.02 * needed(read_index(path), layers)


def test_without_a_manifest_little_is_read_behind_a_header_of_unknown_length(
    server: RangeServer, local: SliceCache, folder: Path, tmp_path: Path
) -> None:
    made = fetched(tmp_path, None, server)
    same = local.ensure(folder / "model.gguf", MIDDLE)
    ours, theirs = read_index(made.path), read_index(same.path)
    assert ours.tensors == theirs.tensors
    start = min(tensor.offset for tensor in ours.tensors.values())
    assert made.path.read_bytes()[start:] == same.path.read_bytes()[start:]
    assert server.sent <= needed(read_index(folder / "model.gguf"), MIDDLE) + (64 << 10)


def test_all_layers_give_one_file_with_all_tensors(
    server: RangeServer, local: SliceCache, folder: Path, tmp_path: Path
) -> None:
    path = folder / "split-00001-of-00003.gguf"
    model = remote(tmp_path, local.manifest(path), server, name=path.name)
    made = SliceCache(tmp_path).ensure(model, LayerRange(0, 4))
    assert made.digest == made.model_digest == local.digest(path)
    assert SliceCache(tmp_path / "again").digest(made.path) == made.model_digest
    assert server.sent <= 1.02 * sum(part.size for part in read_index(path).parts)


def test_nothing_is_fetched_twice(server: RangeServer, manifest: Manifest, tmp_path: Path) -> None:
    fetched(tmp_path, manifest, server)
    sent = server.sent
    assert fetched(tmp_path, manifest, server).reused
    assert server.sent == sent


def test_without_a_manifest_a_byte_tells_that_the_file_is_still_the_same(
    server: RangeServer, tmp_path: Path
) -> None:
    fetched(tmp_path, None, server)
    sent = server.sent
    assert fetched(tmp_path, None, server).reused
    assert server.sent == sent + 1


def test_layers_that_an_older_slice_holds_are_taken_from_it(
    server: RangeServer, manifest: Manifest, local: SliceCache, folder: Path, tmp_path: Path
) -> None:
    fetched(tmp_path, manifest, server, layers=LayerRange(0, 2))
    server.sent = 0
    made = fetched(tmp_path, manifest, server, layers=MIDDLE)
    same = local.ensure(folder / "model.gguf", MIDDLE)
    assert made.path.read_bytes() == same.path.read_bytes()
    layer = describe(read_index(folder / "model.gguf")).layer_bytes[2]
    assert server.sent <= 1.02 * layer


def test_a_node_that_holds_a_slice_gives_it_to_others(
    server: RangeServer,
    manifest: Manifest,
    local: SliceCache,
    folder: Path,
    tmp_path: Path,
) -> None:
    theirs = local.ensure(folder / "model.gguf", LayerRange(0, 3))
    with range_server(theirs.path.parent) as peer:
        sources = [
            Source((peer.url(theirs.path.name),), LayerRange(0, 3)),
            Source((server.url("model.gguf"),)),
        ]
        model = open_remote(sources, tmp_path, manifest, BRISK)
        header = server.sent
        made = SliceCache(tmp_path).ensure(model, MIDDLE)
        assert server.sent == header
        wanted = needed(read_index(folder / "model.gguf"), MIDDLE) - header
        assert peer.sent <= 1.02 * wanted
    same = local.ensure(folder / "model.gguf", MIDDLE)
    assert made.path.read_bytes() == same.path.read_bytes()


def test_those_who_want_the_same_slice_at_once_fetch_it_once(
    server: RangeServer, manifest: Manifest, folder: Path, tmp_path: Path
) -> None:
    models = [remote(tmp_path, manifest, server) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(SliceCache(tmp_path).ensure, model, MIDDLE) for model in models]
        made = [each.result(60) for each in asked]
    assert len({each.path for each in made}) == 1
    assert sorted(each.reused for each in made) == [False, True, True]
    assert server.sent <= 1.02 * needed(read_index(folder / "model.gguf"), MIDDLE)


@pytest.mark.model
@pytest.mark.timeout(600)
@pytest.mark.parametrize("proven", [True, False], ids=["manifest", "no manifest"])
@pytest.mark.parametrize("which", ["smollm2_path", "gemma3_path"])
def test_every_cut_of_a_real_model_fetches_little_more_than_its_bytes(
    which: str, proven: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    path: Path = request.getfixturevalue(which)
    index = read_index(path)
    info, cache = describe(index), SliceCache(tmp_path / "local")
    ends = (0, *legal_cuts(info), info.total_layers)
    with range_server(path.parent) as server:
        for start, end in itertools.pairwise(ends):
            root, layers = tmp_path / str(start), LayerRange(start, end)
            server.sent = 0
            sources = [Source((server.url(path.name),))]
            model = open_remote(sources, root, cache.manifest(path) if proven else None)
            made = SliceCache(root).ensure(model, layers)
            assert server.sent <= 1.02 * needed(index, layers)
            if proven:
                assert made.digest == cache.ensure(path, layers).digest
