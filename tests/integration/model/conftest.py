"""Tiny models on HTTP servers, and their slices as cut from the files themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshnet.model.cache import SliceCache
from meshnet.model.manifest import Manifest
from tests.support.fetching import WIDE
from tests.support.range_server import RangeServer, range_server
from tests.support.tiny_gguf import build


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("served")
    build(folder / "model.gguf", WIDE)
    build(folder / "split.gguf", WIDE, parts=3)
    return folder


@pytest.fixture
def server(folder: Path) -> Iterator[RangeServer]:
    with range_server(folder) as running:
        yield running


@pytest.fixture
def other(folder: Path) -> Iterator[RangeServer]:
    """A second server of the same files."""
    with range_server(folder) as running:
        yield running


@pytest.fixture(scope="module")
def local(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> SliceCache:
    """A cache of slices that were cut from the files themselves."""
    return SliceCache(tmp_path_factory.mktemp("local"))


@pytest.fixture(scope="module")
def manifest(folder: Path, local: SliceCache) -> Manifest:
    return local.manifest(folder / "model.gguf")
