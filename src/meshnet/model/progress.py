"""How long work reports that it goes on."""

from __future__ import annotations

from typing import Protocol

from meshnet.domain.errors import MeshnetError


class Progress(Protocol):
    """Called often while bytes are copied or hashed; returns quickly and raises nothing."""

    def __call__(self, label: str, done: int, total: int, /) -> None:
        """``done`` of ``total`` bytes of the work that ``label`` names."""


class Watch(Protocol):
    """Learns where a model's bytes come from; asked by several threads at once."""

    def came(self, peer: str, count: int) -> None:
        """So many bytes came from a machine of the cluster; ``peer`` is empty for other sources."""

    def dropped(self, source: str, error: MeshnetError) -> None:
        """A source isn't asked any more by this fetch, and why."""


class Unwatched:
    """A :class:`Watch` that keeps nothing."""

    def came(self, peer: str, count: int) -> None:
        """Keep nothing."""

    def dropped(self, source: str, error: MeshnetError) -> None:
        """Keep nothing."""


def silent(label: str, done: int, total: int, /) -> None:
    """A :class:`Progress` that shows nothing."""
