"""The headers of models that lie elsewhere, kept on disk.

Under the cache's root ``heads/<key>/`` holds files that are named and as long as the model's own,
but with holes where the weights would be. They serve whatever reads headers alone: descriptions,
plans, checks, libllama's vocabulary. ``meshnet-headers.json`` beside them says which version they
are of; it is written last, so it is there only if all of them are.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from meshnet.domain.errors import CancelledError, InvalidArgumentError, MeshnetError
from meshnet.model.bytesource import ByteSource
from meshnet.model.fetching import joined
from meshnet.model.files import new_file
from meshnet.model.gguf import GgufIndex, GgufPart, part_count, read_head, read_index
from meshnet.model.manifest import Manifest, ManifestPart
from meshnet.model.progress import Watch
from meshnet.model.sources import Patience, RemoteFile, Source, file_name, shown

if TYPE_CHECKING:
    from meshnet.model.ranges import RangeClient

_HEADS: Final = "heads"
_FILES: Final = "meshnet-headers.json"
_STEP: Final = 64 << 10
"""Bytes asked for at once, and so at most read in vain behind a header of unknown length."""


def require_weights(path: Path) -> None:
    """Raise :class:`InvalidArgumentError` for a file that has nothing but a header."""
    if (path.parent / _FILES).exists():
        raise InvalidArgumentError("model", f"{path} has no weights; give the model's address")


def fetched_heads(
    sources: Sequence[Source],
    root: Path,
    manifest: Manifest | None,
    patience: Patience,
    stop: threading.Event,
    watch: Watch,
) -> tuple[GgufIndex, tuple[RemoteFile, ...]]:
    """The index of the model's headers, and the versions of its files that they are of.

    For errors see :func:`~meshnet.model.remote.open_remote`.
    """
    # Here, since loading an HTTP client takes a moment that no other command should wait for.
    from meshnet.model.ranges import RangeClient

    folder = _folder(root, manifest.to_json()) if manifest is not None else None
    kept = _kept(folder) if folder is not None else None
    if folder is not None and kept is not None:
        return _index_in(folder, kept, manifest), kept
    whole = [source for source in sources if source.layers is None]
    if not whole:
        raise InvalidArgumentError(
            "sources", "one of them must hold the whole model, for its header to be read"
        )
    errors: list[MeshnetError] = []
    for source in whole:
        own = folder or _folder(root, "\n".join(source.urls).encode())
        try:
            with closing(RangeClient(source, patience, stop, watch=watch)) as client:
                files = _fetched(client, source, own, manifest.parts if manifest else ())
            return _index_in(own, files, manifest), files
        except CancelledError:
            raise
        except MeshnetError as error:
            errors.append(error)
    raise joined(errors, "nobody gives the model's header")


def _fetched(
    client: RangeClient, source: Source, folder: Path, parts: Sequence[ManifestPart]
) -> tuple[RemoteFile, ...]:
    """The files in ``folder``, fetched unless they are of the version that the server has."""
    kept = _kept(folder)
    if kept is not None and kept[0].tag:
        there, _ = client.look(kept[0].url, 1)
        if there.version() == kept[0].version():
            return kept
    if parts:
        urls = source.part_urls(len(parts))
        heads = [_Head(client, url, part) for url, part in zip(urls, parts, strict=True)]
    else:
        given = _Head(client, source.urls[0], None)
        urls = source.part_urls(given.parts)
        heads = [given if url == given.file.url else _Head(client, url, None) for url in urls]
    for head in heads:
        with new_file(folder) as new:
            new.file.write(head.content)
            new.file.truncate(head.size)
            new.publish(head.file.own_name)
    with new_file(folder) as new:
        new.file.write(json.dumps([asdict(head.file) for head in heads]).encode())
        new.publish(_FILES)
    return tuple(head.file for head in heads)


class _Head(ByteSource):
    """The start of a file on a server, read as far as the header reaches."""

    step = _STEP

    def __init__(self, client: RangeClient, url: str, part: ManifestPart | None) -> None:
        self.name = shown(url)
        self._client = client
        first = part.header_bytes if part is not None else _STEP
        there, self._content = client.look(url, first, part.size if part is not None else None)
        self.file = replace(there, own_name=part.name if part is not None else file_name(url))
        self.size = there.size
        self._head = read_head(self)

    @property
    def content(self) -> bytes:
        """All bytes of the header."""
        return self._content[: self._head.size]

    @property
    def parts(self) -> int:
        """How many files the model has."""
        part = GgufPart(Path(self.name), self.size, 0)
        index = GgufIndex((part,), self._head.metadata)
        return part_count(index.integer("split.count", 0), self.name)

    def read(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes: what is here already, or else what the server has."""
        if offset >= len(self._content):
            wanted = min(length, self.size - len(self._content))
            if wanted > 0:
                at = len(self._content)
                self._content += self._client.read(self.file.url, at, wanted, self.size)
        return self._content[offset : offset + length]


def _folder(root: Path, identity: bytes) -> Path:
    return root / _HEADS / hashlib.sha256(identity).hexdigest()


def _kept(folder: Path) -> tuple[RemoteFile, ...] | None:
    """Which versions' headers are in the folder; None unless all are."""
    try:
        entries = json.loads((folder / _FILES).read_bytes())
        kept = tuple(RemoteFile(**entry) for entry in entries)
        sizes = [(folder / file.own_name).stat().st_size for file in kept]
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None
    except OSError as error:
        raise InvalidArgumentError("cache", f"{folder} can't be read: {error.strerror}") from error
    return kept if kept and sizes == [file.size for file in kept] else None


def _index_in(folder: Path, files: Sequence[RemoteFile], manifest: Manifest | None) -> GgufIndex:
    """The index of the headers in the folder, which aren't kept unless they are the manifest's."""
    try:
        index = read_index(folder / files[0].own_name)
        if manifest is not None:
            manifest.require_of(index)
    except MeshnetError:
        (folder / _FILES).unlink(missing_ok=True)
        raise
    return index
