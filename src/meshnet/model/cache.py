"""Slices kept on disk, so that a node that starts again finds its own.

Under the root: ``blobs/sha256-<digest>.gguf`` are the slices, named by their contents;
``slices/<key>.json`` say which blob holds a range of a model's files as they were then (path, size,
time of change); ``digests/<key>.json`` keep models' digests. Files appear whole (:mod:`files`), so
processes that want the same slice at once both write it, and either's is good.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.check import check_index
from meshnet.model.description import describe, require_legal
from meshnet.model.digest import DIGEST_FORMAT, model_digest
from meshnet.model.files import new_file
from meshnet.model.gguf import GgufIndex, read_index
from meshnet.model.progress import Progress, silent
from meshnet.model.slice_file import copied_bytes, fill_slice
from meshnet.model.slice_metadata import SLICE_FORMAT
from meshnet.model.slice_plan import SlicePlan, plan_slice

_BLOBS: Final = "blobs"
_SLICES: Final = "slices"
_DIGESTS: Final = "digests"
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


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


@dataclass(frozen=True, slots=True)
class _Written:
    """What is remembered of a slice or a model: the digest and number of its bytes."""

    digest: Digest
    size: int


class SliceCache:
    """Cuts models into slices and keeps them under ``root``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def ensure(
        self,
        model_path: Path,
        layers: LayerRange,
        progress: Progress = silent,
        *,
        allow_unverified: bool = False,
    ) -> SliceFile:
        """The file for ``layers`` of a model, written now unless it is there.

        Raises :class:`~meshnet.domain.errors.InputError` (its kinds for a file, a model, a range)
        and what :func:`~meshnet.model.files.new_file` raises.
        """
        index = read_index(model_path)
        info = describe(index)
        require_legal(info, layers, allow_unverified=allow_unverified)
        check_index(index, allow_unverified=allow_unverified)
        digest = self._digest(index, progress)
        if len(layers) == info.total_layers:
            return _whole(index, layers, digest)
        plan = plan_slice(index, layers, digest, allow_unverified=allow_unverified)
        entry = self._entry(_SLICES, index, SLICE_FORMAT, layers.start, layers.end)
        written = _read_entry(entry)
        path = None if written is None else self._blob(written)
        if written is not None and path is not None:
            return _of_plan(plan, digest, written, path, reused=True)
        written, path = self._write(plan, progress)
        _write_entry(entry, written)
        return _of_plan(plan, digest, written, path, reused=False)

    def digest(self, model_path: Path, progress: Progress = silent) -> Digest:
        """The whole model's digest, computed now unless it is known."""
        return self._digest(read_index(model_path), progress)

    def _digest(self, index: GgufIndex, progress: Progress) -> Digest:
        entry = self._entry(_DIGESTS, index, DIGEST_FORMAT)
        known = _read_entry(entry)
        if known is not None:
            return known.digest
        digest = model_digest(index, progress)
        size = sum(part.size for part in index.parts)
        _write_entry(entry, _Written(digest, size))
        return digest

    def _write(self, plan: SlicePlan, progress: Progress) -> tuple[_Written, Path]:
        with new_file(self._root / _BLOBS, copied_bytes(plan)) as new:
            digest, size = fill_slice(plan, new, progress)
            return _Written(digest, size), new.publish(_blob_name(digest))

    def _blob(self, written: _Written) -> Path | None:
        """The slice's file, if it still looks like the one that was written."""
        path = self._root / _BLOBS / _blob_name(written.digest)
        try:
            return path if path.stat().st_size == written.size else None
        except FileNotFoundError:
            return None

    def _entry(self, kind: str, index: GgufIndex, *about: str | int) -> Path:
        """Where it is kept what was made of the model's files as they are now."""
        parts = [(str(part.path.resolve()), part.size, part.mtime_ns) for part in index.parts]
        key = hashlib.sha256(json.dumps([parts, about]).encode()).hexdigest()
        return self._root / kind / f"{key}.json"


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


def _of_plan(
    plan: SlicePlan, model: Digest, written: _Written, path: Path, *, reused: bool
) -> SliceFile:
    return SliceFile(
        path=path,
        digest=written.digest,
        model_digest=model,
        layers=plan.layers,
        total_layers=plan.total_layers,
        architecture=plan.architecture,
        tap=plan.tap,
        all_rows=plan.all_rows,
        size=written.size,
        reused=reused,
    )


def _blob_name(digest: Digest) -> str:
    return f"{digest.replace(':', '-')}.gguf"


def _write_entry(path: Path, written: _Written) -> None:
    with new_file(path.parent) as new:
        new.file.write(json.dumps({"digest": written.digest, "size": written.size}).encode())
        new.publish(path.name)


def _read_entry(path: Path) -> _Written | None:
    """The entry, or None where there is none, or one that is no entry: it is then made anew."""
    try:
        entry = json.loads(path.read_bytes())
        digest, size = entry["digest"], entry["size"]
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
    except OSError as error:
        raise InvalidArgumentError("cache", f"{path} can't be read: {error.strerror}") from error
    if not (isinstance(digest, str) and _DIGEST.fullmatch(digest) and isinstance(size, int)):
        return None
    return _Written(Digest(digest), size)
