"""How long work reports that it goes on."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called often while bytes are copied or hashed; returns quickly and raises nothing."""

    def __call__(self, label: str, done: int, total: int, /) -> None:
        """``done`` of ``total`` bytes of the work that ``label`` names."""


def silent(label: str, done: int, total: int, /) -> None:
    """A :class:`Progress` that shows nothing."""
