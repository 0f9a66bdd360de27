"""Counts where the bytes of a machine's slices come from, and says so."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from urllib.parse import urlsplit

from meshnet.cli.output import human_size, print_note, print_step
from meshnet.domain.errors import MeshnetError, ModelFileError

FIRST = "the first machine"


class Fetched:
    """Bytes by source since the agent's start, and who gave wrong ones; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._refused: set[str] = set()

    def refuse(self, address: str) -> None:
        """Ask there no more: what came from there wasn't what it should be."""
        self._refused.add(address)

    def trusts(self, address: str) -> bool:
        """Whether nothing wrong came from an address yet."""
        return address not in self._refused

    def came(self, peer: str, count: int) -> None:
        """So many bytes came from a machine; an empty name is the first one's."""
        with self._lock:
            self._counts[peer] += count

    def totals(self) -> tuple[int, int]:
        """Bytes of the first machine, and of all others."""
        with self._lock:
            first = self._counts[""]
            return first, self._counts.total() - first


class FetchWatch:
    """Follows one fetch; fulfils the model's ``Watch``."""

    def __init__(self, fetched: Fetched, label: str) -> None:
        self._fetched = fetched
        self._label = label
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def came(self, peer: str, count: int) -> None:
        """Count bytes."""
        self._fetched.came(peer, count)
        with self._lock:
            self._counts[peer] += count

    def dropped(self, source: str, error: MeshnetError) -> None:
        """Say who isn't asked any more."""
        if isinstance(error, ModelFileError):
            self._fetched.refuse(urlsplit(source).netloc)
        problem = error.message if source in error.message else f"{source}: {error.message}"
        print_note(f"{self._label}: not asked any more: {problem}", kept=True)

    def end(self) -> None:
        """Say what came from whom."""
        with self._lock:
            told = shares(self._counts)
        if told:
            print_step(f"fetched {self._label}: {told}")


def shares(counts: Mapping[str, int]) -> str:
    """Bytes by machine for people, the most first."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(
        f"{human_size(count)} from {peer or FIRST}" for peer, count in ordered if count
    )
