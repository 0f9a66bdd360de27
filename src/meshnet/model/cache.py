"""Slices kept on disk, so that a node that starts again finds its own.

Under the root: ``blobs/sha256-<digest>.gguf`` are the slices, named by their contents;
``slices/<key>.json`` say which blob holds a range of a model; ``manifests/<key>.json`` keep what
was learnt of a model's files as they were (path, size, time of change) when they were hashed.
Processes that want the same slice at once take turns: one writes it, the others find it.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import CancelledError, InternalError, InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.check import check_index
from meshnet.model.description import describe, require_legal
from meshnet.model.digest import DIGEST_FORMAT
from meshnet.model.files import new_file
from meshnet.model.gguf import GgufIndex, read_index
from meshnet.model.heads import require_weights
from meshnet.model.manifest import Manifest, make_manifest
from meshnet.model.partial import partial_file
from meshnet.model.progress import Progress, silent
from meshnet.model.remote import RemoteModel
from meshnet.model.slice_file import Contents, disk_bytes, fill_slice
from meshnet.model.slice_metadata import SLICE_FORMAT
from meshnet.model.slice_plan import SlicePlan, plan_slice, plan_whole
from meshnet.model.store import SliceStore, Stored, blob_name
from meshnet.model.weights import WeightFiles

_MANIFESTS: Final = "manifests"


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A file that libllama can load and that holds ``layers`` of a model."""

    path: Path
    digest: Digest
    """Of the file's bytes; for a whole model, which is served uncut, the model's."""
    model_digest: Digest
    layers: LayerRange
    total_layers: int
    architecture: str
    tap: str | None
    """The tensor that crosses to the next shard; None on the tail."""
    all_rows: bool
    """Whether a batch must flag every row as an output for the tap to see it."""
    size: int
    """Bytes on disk; of a model in several parts, of all."""
    reused: bool
    """Whether it was there already."""


class SliceCache:
    """Cuts models into slices and keeps them under ``root``.

    At most ``limit`` bytes of slices stay there; None means no limit. What :meth:`ensure` returned
    is pinned, which keeps it from being removed, until it is released or the cache is closed or
    collected.
    """

    def __init__(self, root: Path, limit: int | None = None) -> None:
        self.root = root
        self.store = SliceStore(root, limit)

    def ensure(
        self,
        model: Path | RemoteModel,
        layers: LayerRange,
        progress: Progress = silent,
        *,
        allow_unverified: bool = False,
        stop: threading.Event | None = None,
    ) -> SliceFile:
        """The file for ``layers`` of a model, written now, or fetched, unless it is there.

        ``stop`` ends waiting for another process that writes the same; a remote model has its own.

        Raises :class:`~meshnet.domain.errors.InputError` (its kinds for a file, a model, a range),
        :class:`~meshnet.domain.errors.CancelledError` once it is stopped,
        :class:`~meshnet.domain.errors.ResourceExhaustedError` when disk or limit are too small,
        and what :meth:`RemoteModel.weights` raises.
        """
        index = model.index if isinstance(model, RemoteModel) else read_index(model)
        info = describe(index)
        require_legal(info, layers, allow_unverified=allow_unverified)
        check_index(index, allow_unverified=allow_unverified)
        whole = len(layers) == info.total_layers
        if isinstance(model, RemoteModel):
            plan = (
                plan_whole(index)
                if whole
                else plan_slice(index, layers, model.digest, allow_unverified=allow_unverified)
            )
            identity = model.identity
            wanted = _Wanted(plan, model.digest, identity, _slice_key(identity, layers))

            def fetched() -> Contents:
                held = tuple(self.store.slices_of(identity))
                return Contents(plan, model.weights(held), model.tensors)

            return self._obtained(wanted, fetched, progress, model.wait)
        digest = self._manifest(index, progress).digest
        if whole:
            return _whole(index, layers, digest)
        plan = plan_slice(index, layers, digest, allow_unverified=allow_unverified)
        wanted = _Wanted(plan, digest, "", _slice_key(_identity(index), layers))
        return self._obtained(
            wanted, lambda: Contents(plan, WeightFiles(plan.parts), {}), progress, _wait(stop)
        )

    def manifest(self, model_path: Path, progress: Progress = silent) -> Manifest:
        """What others need to check pieces of the model; read off all of it unless it is known."""
        return self._manifest(read_index(model_path), progress)

    def digest(self, model: Path | RemoteModel, progress: Progress = silent) -> Digest:
        """The whole model's digest, computed now unless it is known."""
        if isinstance(model, RemoteModel):
            return model.digest
        return self.manifest(model, progress).digest

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed; for files of others do nothing."""
        self.store.release(path)

    def close(self) -> None:
        """Release all."""
        self.store.close()

    def _manifest(self, index: GgufIndex, progress: Progress) -> Manifest:
        path = self.root / _MANIFESTS / f"{_key(_identity(index), DIGEST_FORMAT)}.json"
        require_weights(index.path)
        known = _read_manifest(path)
        if known is not None:
            return known
        manifest = make_manifest(index, progress)
        with new_file(path.parent) as new:
            new.file.write(manifest.to_json())
            new.publish(path.name)
        return manifest

    def _obtained(
        self,
        wanted: _Wanted,
        contents: Callable[[], Contents],
        progress: Progress,
        wait: Callable[[float], object],
    ) -> SliceFile:
        """The slice from the store, or else written there, by this process or another one."""
        found = self.store.find(wanted.key)
        if found is not None:
            return wanted.file(*found, reused=True)
        size = disk_bytes(wanted.plan)
        self.store.make_room(size, wanted.key)
        with partial_file(self.store.folder, wanted.key, size, wait) as new:
            found = self.store.find(wanted.key)
            if found is not None:
                return wanted.file(*found, reused=True)
            written = fill_slice(contents(), new.file, new, progress)
            self.store.record(wanted.key, wanted.stored(*written))
            new.publish(blob_name(written[0]))
            found = self.store.find(wanted.key)
        if found is None:
            raise InternalError(f"{self.store.folder}: a slice that was just written is gone")
        return wanted.file(*found, reused=False)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A slice, as it is asked for."""

    plan: SlicePlan
    digest: Digest
    """Of the whole model."""
    model: str
    """What tells this model's slices apart from others'; empty for files of this machine."""
    key: str

    @property
    def whole(self) -> bool:
        return len(self.plan.layers) == self.plan.total_layers

    def stored(self, digest: Digest, size: int) -> Stored:
        layers = self.plan.layers
        whole = self.digest if self.model else ""
        return Stored(digest, size, self.model, layers.start, layers.end, whole)

    def file(self, stored: Stored, path: Path, *, reused: bool) -> SliceFile:
        return SliceFile(
            path=path,
            digest=self.digest if self.whole else stored.digest,
            model_digest=self.digest,
            layers=self.plan.layers,
            total_layers=self.plan.total_layers,
            architecture=self.plan.architecture,
            tap=self.plan.tap,
            all_rows=self.plan.all_rows,
            size=stored.size,
            reused=reused,
        )


def _wait(stop: threading.Event | None) -> Callable[[float], None]:
    stopped = stop or threading.Event()

    def wait(seconds: float) -> None:
        if stopped.wait(seconds):
            raise CancelledError("cutting was stopped")

    return wait


def _whole(index: GgufIndex, layers: LayerRange, digest: Digest) -> SliceFile:
    return SliceFile(
        path=index.path,
        digest=digest,
        model_digest=digest,
        layers=layers,
        total_layers=len(layers),
        architecture=index.architecture,
        tap=None,
        all_rows=False,
        size=sum(part.size for part in index.parts),
        reused=True,
    )


def _identity(index: GgufIndex) -> list[tuple[str, int, int]]:
    """What tells the model's files as they are now from all others."""
    return [(str(part.path.resolve()), part.size, part.mtime_ns) for part in index.parts]


def _slice_key(identity: object, layers: LayerRange) -> str:
    return _key(identity, SLICE_FORMAT, layers.start, layers.end)


def _key(identity: object, *about: str | int) -> str:
    return hashlib.sha256(json.dumps([identity, about]).encode()).hexdigest()


def _read_manifest(path: Path) -> Manifest | None:
    """The manifest, or None where there is none, or a file that is none: it is then made anew."""
    try:
        return Manifest.from_json(path.read_bytes())
    except (FileNotFoundError, InvalidArgumentError):
        return None
    except OSError as error:
        raise InvalidArgumentError("cache", f"{path} can't be read: {error.strerror}") from error
