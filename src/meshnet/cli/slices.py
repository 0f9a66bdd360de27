"""Where a machine gets the slices from that it is told to hold."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol
from urllib.parse import quote

from meshnet.domain.errors import FingerprintMismatchError, ModelNotFoundError
from meshnet.domain.ids import Address, Digest
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.manifest import Manifest
from meshnet.model.progress import Progress
from meshnet.model.remote import open_remote
from meshnet.model.sources import Source
from meshnet.tracker.client import fetch_manifest
from meshnet.tracker.messages import AssignmentReply
from meshnet.transport.tls import IdentitySource, client_context


class Slices(Protocol):
    """Where a machine's slices come from, and are kept."""

    def __call__(
        self, assignment: AssignmentReply, progress: Progress, stop: threading.Event, /
    ) -> SliceFile:
        """Fetch and cut what an assignment needs, unless it is stopped; blocks."""

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed."""


@dataclass(frozen=True, slots=True)
class LocalSlices:
    """Cuts slices from files of this machine."""

    paths: Mapping[Digest, Path]
    """Each model's file."""
    cache: SliceCache

    def __call__(
        self, assignment: AssignmentReply, progress: Progress, stop: threading.Event
    ) -> SliceFile:
        """The slice of an assignment; blocks. ``progress`` ends it once ``stop`` is set.

        Raises :class:`ModelNotFoundError` for a model that has no file here, and what
        ``SliceCache.ensure`` raises.
        """
        path = self.paths.get(Digest(assignment.model))
        if path is None:
            raise ModelNotFoundError(f"{assignment.name} is none of this machine's models")
        layers = LayerRange(assignment.start, assignment.end)
        unverified = assignment.serving.allow_unverified
        return self.cache.ensure(path, layers, progress, allow_unverified=unverified, stop=stop)

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed; never a model that is cut."""
        if path not in self.paths.values():
            self.cache.release(path)


@dataclass(frozen=True, slots=True)
class TrackerSlices:
    """Fetches just the bytes of a range from the tracker's machine, and checks them."""

    address: Address
    identity: IdentitySource
    cache: SliceCache

    def __call__(
        self, assignment: AssignmentReply, progress: Progress, stop: threading.Event
    ) -> SliceFile:
        """The slice of an assignment; blocks.

        Raises :class:`FingerprintMismatchError` if the tracker gives another model than it named,
        and what ``open_remote`` and ``SliceCache.ensure`` raise.
        """
        base = f"https://{self.address}/models/{assignment.model}"
        tls = client_context(self.identity.load())
        manifest = Manifest.from_json(fetch_manifest(f"{base}/manifest", tls, stop))
        if manifest.digest != assignment.model:
            raise FingerprintMismatchError(
                f"the tracker gave a manifest of {manifest.digest} for {assignment.model}",
                here=assignment.model,
                there=manifest.digest,
            )
        urls = tuple(f"{base}/files/{quote(part.name)}" for part in manifest.parts)
        source = Source(urls, tls=tls)
        model = open_remote([source], self.cache.root, manifest, stop=stop)
        layers = LayerRange(assignment.start, assignment.end)
        return self.cache.ensure(
            model, layers, progress, allow_unverified=assignment.serving.allow_unverified
        )

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed."""
        self.cache.release(path)
