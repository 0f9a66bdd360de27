"""What the environment says, and where things are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders and secrets; ``MESHNET_CACHE`` and ``MESHNET_API_KEY`` override the defaults."""

    cache: Path
    api_key: str | None

    @staticmethod
    def from_environment() -> Settings:
        """Read the environment once, at the start of a command."""
        base = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
        cache = os.environ.get("MESHNET_CACHE")
        return Settings(
            Path(cache) if cache else base / "meshnet",
            os.environ.get("MESHNET_API_KEY") or None,
        )


def default_threads(nodes: int) -> int:
    """Threads a node: the machine's cores shared out, at least one each."""
    return max(1, (os.cpu_count() or 1) // nodes)
