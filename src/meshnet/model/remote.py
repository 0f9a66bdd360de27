"""A model whose weights lie elsewhere: its headers are here, the rest is fetched when wanted."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from meshnet.domain.errors import CancelledError, InputError
from meshnet.domain.ids import Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.description import describe
from meshnet.model.digest import stated_digest
from meshnet.model.fetching import FetchedWeights
from meshnet.model.gguf import GgufIndex
from meshnet.model.heads import fetched_heads
from meshnet.model.holders import (
    DiskHolder,
    Holder,
    Place,
    RangeHolder,
    places_in_model,
    places_in_slice,
)
from meshnet.model.manifest import Manifest
from meshnet.model.progress import Unwatched, Watch
from meshnet.model.slice_metadata import SLICE_FORMAT
from meshnet.model.slice_plan import plan_slice, plan_whole
from meshnet.model.sources import Patience, RemoteFile, Source
from meshnet.model.weights import Weights

_PEERS: Final = 1
"""The tier of peers: after what is here, and before all others."""
Held = tuple[LayerRange, Path]
"""A slice that is here already, and its file."""


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """A model that others hold. ``index`` is of files with holes in place of the weights."""

    index: GgufIndex
    digest: Digest
    """The model's own; without a manifest what its server says stands for it."""
    tensors: Mapping[str, str]
    """SHA-256 (hexadecimal) of the tensors by name; empty without a manifest."""
    sources: tuple[Source, ...]
    files: tuple[RemoteFile, ...]
    """The model's files, in order, as they were when their headers were read; empty with a
    manifest, by which any version of a file with the same contents will do."""
    patience: Patience = field(default_factory=Patience)
    stop: threading.Event = field(default_factory=threading.Event, compare=False)
    """Ends, when it is set, whatever is being fetched."""
    watch: Watch = field(default_factory=Unwatched, compare=False)
    more: Callable[[], Sequence[Source]] = field(default=tuple, compare=False)
    """Gives, while a fetch goes on, peers that were found meanwhile, known ones among them."""

    @property
    def identity(self) -> str:
        """Equal for models whose slices are byte for byte the same."""
        hashed = hashlib.sha256(f"{SLICE_FORMAT} {self.digest}\n".encode())
        for key, value in self.index.metadata.items():
            if not key.startswith("split."):
                hashed.update(f"{key!r} {hashlib.sha256(value.encode()).hexdigest()}\n".encode())
        return hashed.hexdigest()

    def wait(self, seconds: float) -> None:
        """Sleep; raises :class:`CancelledError` once the fetch is stopped."""
        if self.stop.wait(seconds):
            raise CancelledError("fetching was stopped")

    def weights(self, held: Sequence[Held] = ()) -> Weights:
        """The weights, from slices that are ``held`` here if they have them, else the sources.

        Of these, peers share what they have; all others are asked in the order they are given.
        """

        known: set[str] = set()

        def opened(stack: ExitStack) -> list[Holder]:
            here = [] if known else list(self._on_disk(held, stack))
            new = [it for it in (*self.sources, *self.more()) if it.name not in known]
            known.update(source.name for source in new)
            return [*here, *self._elsewhere(new, stack)]

        return FetchedWeights(opened, self.patience, self.stop, self.watch)

    def _on_disk(self, held: Sequence[Held], stack: ExitStack) -> Iterator[Holder]:
        for layers, path in held:
            places, _ = self._in_slice(layers)
            if path.exists():
                holder = DiskHolder(path, places, self.index.alignment)
                stack.callback(holder.close)
                yield holder

    def _elsewhere(self, sources: Sequence[Source], stack: ExitStack) -> Iterator[Holder]:
        for number, source in enumerate(sources):
            tier = _PEERS if source.peer else _PEERS + 1 + number
            try:
                yield self._holder(source, tier, stack)
            except InputError as error:
                if not source.peer:
                    raise
                # One that states layers which nobody can hold keeps no one from the others.
                self.watch.dropped(source.name, error)

    def _holder(self, source: Source, tier: int, stack: ExitStack) -> Holder:
        # Here, since loading an HTTP client takes a moment that no other command should wait for.
        from meshnet.model.ranges import RangeClient

        sizes = [part.size for part in self.index.parts]
        if source.layers is None:
            urls = source.part_urls(len(sizes))
            places, files = places_in_model(self.index), tuple(zip(urls, sizes, strict=True))
        else:
            places, size = self._in_slice(source.layers)
            files = ((source.urls[0], size),)
        known = {file.url: file for file in self.files}
        client = RangeClient(source, self.patience, self.stop, known, self.watch)
        stack.callback(client.close)
        read = client.reader(files)
        return RangeHolder(source.name, places, self.index.alignment, read, client.abort, tier)

    def _in_slice(self, layers: LayerRange) -> tuple[dict[str, Place], int]:
        if len(layers) == describe(self.index).total_layers:
            return places_in_slice(plan_whole(self.index))
        # Whoever holds it was allowed to cut it.
        return places_in_slice(plan_slice(self.index, layers, self.digest, allow_unverified=True))


def open_remote(
    sources: Sequence[Source],
    root: Path,
    manifest: Manifest | None = None,
    patience: Patience | None = None,
    stop: threading.Event | None = None,
    watch: Watch | None = None,
) -> RemoteModel:
    """Read the model's headers from the first source that gives them, unless they are under
    ``root`` already.

    With a manifest all that comes is checked. Without one, whether the server still has the same
    version of the files is.

    Raises what :class:`~meshnet.model.ranges.RangeClient` raises, and
    :class:`~meshnet.domain.errors.ModelFileError` for a header that lies or isn't the manifest's.
    """
    patience, stop, watch = patience or Patience(), stop or threading.Event(), watch or Unwatched()
    index, files = fetched_heads(sources, root, manifest, patience, stop, watch)
    given = tuple(sources)
    if manifest is not None:
        digest, tensors = manifest.digest, manifest.tensors
        return RemoteModel(index, digest, tensors, given, (), patience, stop, watch)
    digest = stated_digest(index, (file.version() for file in files))
    return RemoteModel(index, digest, {}, given, files, patience, stop, watch)
