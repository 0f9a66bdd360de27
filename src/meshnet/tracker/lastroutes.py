"""What a gateway keeps between questions to the tracker, and for when it isn't there. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from meshnet.domain.ids import Digest
from meshnet.domain.nodes import Hop
from meshnet.tracker.asking import MAX_TOLD, RouteRequest
from meshnet.tracker.measurements import MAX_RUNS, RunReport

KEPT: Final = 8
"""Chains of one model that are remembered."""

Hops = tuple[Hop, ...]


class LastRoutes:
    """The chains that the tracker named last, without those that proved to be of no use."""

    def __init__(self) -> None:
        self._named: dict[Digest, list[Hops]] = {}

    def named(self, digest: Digest, hops: Hops) -> None:
        """The tracker has just named a chain."""
        others = [each for each in self._named.get(digest, ()) if each != hops]
        self._named[digest] = [hops, *others][:KEPT]

    def none(self, digest: Digest) -> None:
        """The tracker has just said that there is none."""
        self._named.pop(digest, None)

    def erred(self, node_id: str) -> None:
        """A generation failed by a node: no chain with it is used until the tracker names it."""
        self._named = {
            digest: [each for each in kept if all(hop.node_id != node_id for hop in each)]
            for digest, kept in self._named.items()
        }

    def of(self, digest: Digest) -> Hops | None:
        """The newest; None without one."""
        kept = self._named.get(digest)
        return kept[0] if kept else None


class Outcomes:
    """What the tracker is yet to be told of chains. Of too much, the oldest is dropped."""

    def __init__(self) -> None:
        self._kinds: Mapping[str, list[str]] = {"took": [], "worked": [], "erred": []}
        self._runs: list[RunReport] = []

    def __bool__(self) -> bool:
        return any(self._kinds.values()) or bool(self._runs)

    def ran(self, run: RunReport) -> None:
        """How long a generation took."""
        self._runs.append(run)
        del self._runs[:-MAX_RUNS]

    def note(self, kind: str, node_ids: Iterable[str]) -> None:
        """One more of a kind: ``took``, ``worked`` or ``erred``."""
        kept = self._kinds[kind]
        kept += node_ids
        del kept[:-MAX_TOLD]

    def told(self, model: Digest | None) -> RouteRequest:
        """All of them, in a question for a chain, or None for none; nothing is kept."""
        took, worked, erred = (tuple(self._kinds[kind]) for kind in ("took", "worked", "erred"))
        runs = tuple(self._runs)
        for kept in self._kinds.values():
            kept.clear()
        self._runs.clear()
        return RouteRequest(model=model, took=took, worked=worked, erred=erred, runs=runs)

    def untold(self, request: RouteRequest) -> None:
        """The question didn't get there: what it told is to be told again."""
        for kind, kept in self._kinds.items():
            kept[:0] = getattr(request, kind)
            del kept[:-MAX_TOLD]
        self._runs[:0] = request.runs
        del self._runs[:-MAX_RUNS]
