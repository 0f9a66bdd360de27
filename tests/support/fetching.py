"""Fetches slices of a tiny model from HTTP servers, and knows how many bytes that takes."""

from __future__ import annotations

from pathlib import Path

from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.gguf import GgufIndex
from meshnet.model.manifest import Manifest
from meshnet.model.remote import RemoteModel, open_remote
from meshnet.model.slice_plan import plan_slice
from meshnet.model.sources import Patience, Source
from tests.support.range_server import RangeServer
from tests.support.tiny_gguf import TinyModel

BRISK = Patience(attempts=3, first_wait_seconds=0.001, stall_seconds=1.0, piece_bytes=256 << 10)
MIDDLE = LayerRange(1, 3)
WIDE = TinyModel(embedding=256)
"""Layers of some 2 MiB."""


def remote(
    root: Path, manifest: Manifest | None, *servers: RangeServer, name: str = "model.gguf"
) -> RemoteModel:
    sources = [Source((server.url(name),)) for server in servers]
    return open_remote(sources, root, manifest, BRISK)


def fetched(
    root: Path, manifest: Manifest | None, *servers: RangeServer, layers: LayerRange = MIDDLE
) -> SliceFile:
    return SliceCache(root).ensure(remote(root, manifest, *servers), layers)


def needed(index: GgufIndex, layers: LayerRange) -> int:
    """Bytes of the header and of the tensors of a range."""
    header = sum(part.header_bytes for part in index.parts)
    plan = plan_slice(index, layers, Digest("sha256:" + "0" * 64))
    return header + sum(each.source.size for each in plan.tensors if each.source is not None)
