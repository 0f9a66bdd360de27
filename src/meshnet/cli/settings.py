"""What the environment says, and where things are kept."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from meshnet.cli.options import parse_size
from meshnet.domain.recipe import KERNEL_VARIABLES
from meshnet.model.sources import HUB


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders and secrets; ``MESHNET_CACHE``, ``MESHNET_STATE`` and ``MESHNET_API_KEY`` override
    the defaults."""

    cache: Path
    api_key: str | None
    state: Path
    """Where a machine keeps who it is, and a tracker its cluster."""
    otlp: str | None = None
    """Where OpenTelemetry's own variable says that traces go."""
    variables: tuple[str, ...] = ()
    """Variables that may switch an engine's kernels, as ``NAME=value``, sorted. Workers inherit
    them, so they are part of what a node computes."""
    cache_limit: int | None = None
    """Bytes of slices that are kept; None for as many as the disk holds."""
    hub: str = HUB
    """Where ``hf://`` addresses lead."""
    hub_token: str | None = field(default=None, repr=False)
    """Shown to the hub, for models that it doesn't give to everybody."""

    @property
    def accounts(self) -> Path:
        """The database of API keys and usage."""
        return self.state / "accounts.db"

    @property
    def notes(self) -> Path:
        """The folder that remembers which files nodes may load, and what is exact in them."""
        return self.cache / "notes"

    @staticmethod
    def from_environment(cache_size: str | None = None) -> Settings:
        """Read the environment once, at the start of a command.

        ``cache_size`` is what the command line says of it, which wins over ``MESHNET_CACHE_SIZE``.
        """
        size = cache_size or os.environ.get("MESHNET_CACHE_SIZE")
        base = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
        cache, state = os.environ.get("MESHNET_CACHE"), os.environ.get("MESHNET_STATE")
        kept = Path(os.environ.get("XDG_STATE_HOME", "") or Path.home() / ".local" / "state")
        return Settings(
            Path(cache) if cache else base / "meshnet",
            os.environ.get("MESHNET_API_KEY") or None,
            Path(state) if state else kept / "meshnet",
            os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None,
            tuple(
                sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(KERNEL_VARIABLES))
            ),
            parse_size("cache-size", size) if size else None,
            os.environ.get("HF_ENDPOINT") or HUB,
            os.environ.get("HF_TOKEN") or None,
        )


def default_threads(nodes: int) -> int:
    """Threads a node: the machine's cores shared out, at least one each."""
    return max(1, (os.cpu_count() or 1) // nodes)
