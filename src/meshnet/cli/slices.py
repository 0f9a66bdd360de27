"""Where a machine gets the slices from that it is told to hold."""

from __future__ import annotations

import logging
import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from meshnet.cli.fetched import Fetched, FetchWatch
from meshnet.cli.giving import Giving
from meshnet.domain.errors import (
    FingerprintMismatchError,
    InvalidArgumentError,
    ModelNotFoundError,
)
from meshnet.domain.ids import Address, Digest, NodeId
from meshnet.domain.layers import LayerRange
from meshnet.model.cache import SliceCache, SliceFile
from meshnet.model.gguf import GgufIndex, read_index
from meshnet.model.manifest import Manifest
from meshnet.model.progress import Progress
from meshnet.model.remote import open_remote
from meshnet.model.sources import Patience, Source
from meshnet.tracker import messages as msg
from meshnet.tracker.client import fetch_manifest
from meshnet.tracker.messages import AssignmentReply
from meshnet.transport.tls import Identity, IdentitySource, client_context

LOGGER: Final = logging.getLogger(__name__)
PATIENCE_WITH_PEERS: Final = Patience(
    attempts=3, connect_seconds=3.0, stall_seconds=8.0, slowest_bytes=128 << 10
)
"""Less than with the first machine, since others have what they have."""


class Named:
    """Whom the tracker named last, and for which layers."""

    def __init__(self) -> None:
        self._last: tuple[object, tuple[msg.HolderReply, ...]] = (None, ())

    def note(self, assignment: AssignmentReply) -> None:
        """Remember it, if anybody is named."""
        if assignment.holders:
            self._last = (_layers_of(assignment), assignment.holders)

    def of(self, assignment: AssignmentReply) -> tuple[msg.HolderReply, ...]:
        """Those that were named for these layers."""
        about, holders = self._last
        return holders if about == _layers_of(assignment) else ()


def _layers_of(assignment: AssignmentReply) -> tuple[str, int, int]:
    return assignment.model, assignment.start, assignment.end


class Slices(Protocol):
    """Where a machine's slices come from, and are kept."""

    def __call__(
        self, assignment: AssignmentReply, progress: Progress, stop: threading.Event, /
    ) -> SliceFile:
        """Fetch and cut what an assignment needs, unless it is stopped; blocks."""

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed."""

    def follow(self, assignment: AssignmentReply, /) -> None:
        """What the tracker says of an assignment that may be fetched now."""

    def report(self) -> msg.WeightsReport:
        """Which there are for other machines, and where they came from; blocks."""

    def header(self, model: Digest, stop: threading.Event, /) -> GgufIndex:
        """A model's header, which is all that its shapes are told by; blocks."""


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

    def header(self, model: Digest, _stop: threading.Event) -> GgufIndex:
        """A model's header; raises :class:`ModelNotFoundError` for one that has no file here."""
        if model not in self.paths:
            raise ModelNotFoundError(f"{model} is none of this machine's models")
        return read_index(self.paths[model])

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed; never a model that is cut."""
        if path not in self.paths.values():
            self.cache.release(path)

    def follow(self, assignment: AssignmentReply) -> None:
        """Nothing: the files are here."""

    def report(self) -> msg.WeightsReport:
        """Nothing: others get what they need from the files themselves."""
        return msg.WeightsReport()


@dataclass(frozen=True, slots=True)
class TrackerSlices:
    """Fetches just the bytes of a range, and checks them: from machines that the tracker names, and
    else from the tracker's own."""

    address: Address
    identity: IdentitySource
    cache: SliceCache
    giving: Giving | None = None
    """What gives the slices to other machines in turn; None: nothing does."""
    fetched: Fetched = field(default_factory=Fetched)
    named: Named = field(default_factory=Named)

    def __call__(
        self, assignment: AssignmentReply, progress: Progress, stop: threading.Event
    ) -> SliceFile:
        """The slice of an assignment; blocks.

        Raises :class:`FingerprintMismatchError` if the tracker gives another model than it named,
        and what ``open_remote`` and ``SliceCache.ensure`` raise.
        """
        identity = self.identity.load()
        manifest, first = self._first(Digest(assignment.model), identity, stop)
        names = [quote(part.name) for part in manifest.parts]
        self.named.note(assignment)
        peers = _Peers(self.named, self.fetched, identity)
        layers = LayerRange(assignment.start, assignment.end)
        watch = FetchWatch(self.fetched, f"layers {layers} of {assignment.name}")
        headers = (peer.header(manifest.digest, names) for peer in peers.of(assignment))
        model = open_remote([first, *headers], self.cache.root, manifest, stop=stop, watch=watch)
        if self.giving is not None:
            self.giving.shelf.keep_headers(model)

        alike = model.identity

        def more() -> list[Source]:
            return [peer.slice(alike) for peer in peers.of(assignment)]

        made = self.cache.ensure(
            replace(model, sources=(first,), more=more),
            layers,
            progress,
            allow_unverified=assignment.serving.allow_unverified,
        )
        watch.end()
        return made

    def header(self, model: Digest, stop: threading.Event) -> GgufIndex:
        """A model's header, from the tracker's machine; blocks, and raises like a call."""
        manifest, first = self._first(model, self.identity.load(), stop)
        watch = FetchWatch(self.fetched, f"the header of {model}")
        return open_remote([first], self.cache.root, manifest, stop=stop, watch=watch).index

    def _first(
        self, model: Digest, identity: Identity, stop: threading.Event
    ) -> tuple[Manifest, Source]:
        """A model's manifest, and its files on the tracker's machine."""
        base, tls = f"https://{self.address}/models/{model}", client_context(identity)
        manifest = Manifest.from_json(fetch_manifest(f"{base}/manifest", tls, stop))
        if manifest.digest != model:
            raise FingerprintMismatchError(
                f"the tracker gave a manifest of {manifest.digest} for {model}",
                here=model,
                there=manifest.digest,
            )
        names = [quote(part.name) for part in manifest.parts]
        return manifest, Source(tuple(f"{base}/files/{name}" for name in names), tls=tls)

    def release(self, path: Path) -> None:
        """Let a slice's file be removed when room is needed."""
        self.cache.release(path)

    def follow(self, assignment: AssignmentReply) -> None:
        """Ask those too that the tracker names meanwhile."""
        self.named.note(assignment)

    def report(self) -> msg.WeightsReport:
        """What is given to other machines, and where it came from; blocks."""
        first, peers = self.fetched.totals()
        giving = self.giving
        if giving is None or giving.address is None:
            return msg.WeightsReport(first_bytes=first, peer_bytes=peers)
        try:
            slices = giving.shelf.look()
        except InvalidArgumentError as error:
            # What is served goes on; a fetch that needs the cache says what is wrong with it.
            LOGGER.warning("no slices are given to others: %s", error.message)
            slices = ()
        return msg.WeightsReport(
            address=giving.address,
            slices=slices,
            first_bytes=first,
            peer_bytes=peers,
            given_bytes=giving.given_bytes,
        )


class _Peers:
    """The machines that were named for one fetch, but for those that gave wrong bytes."""

    def __init__(self, named: Named, fetched: Fetched, identity: Identity) -> None:
        self._named, self._fetched, self._identity = named, fetched, identity
        self._known: dict[msg.HolderReply, _Peer] = {}

    def of(self, assignment: AssignmentReply) -> list[_Peer]:
        """Those of now."""
        named = [it for it in self._named.of(assignment) if self._fetched.trusts(it.address)]
        for each in named:
            if each not in self._known:
                self._known[each] = _Peer.of(each, self._identity)
        return [self._known[each] for each in named]


@dataclass(frozen=True, slots=True)
class _Peer:
    """A machine that gives a slice."""

    holder: msg.HolderReply
    tls: ssl.SSLContext

    @staticmethod
    def of(holder: msg.HolderReply, identity: Identity) -> _Peer:
        return _Peer(holder, client_context(identity, node_id=NodeId(holder.node_id)))

    def slice(self, model: str) -> Source:
        """Where it gives its slice; ``model`` tells models apart whose slices aren't the same."""
        held = self.holder
        layers = LayerRange(held.start, held.end)
        return self._source(f"slices/{model}/{held.start}-{held.end}", layers=layers)

    def header(self, digest: Digest, names: Sequence[str]) -> Source:
        """Where it gives the header of the model's files, and no more of them."""
        return self._source(*(f"models/{digest}/files/{name}" for name in names))

    def _source(self, *paths: str, layers: LayerRange | None = None) -> Source:
        urls = tuple(f"https://{self.holder.address}/{path}" for path in paths)
        return Source(urls, layers, self.tls, peer=self.holder.name, patience=PATIENCE_WITH_PEERS)
