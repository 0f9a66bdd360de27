"""What the environment says, and where things are kept."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from meshnet.domain.recipe import KERNEL_VARIABLES


@dataclass(frozen=True, slots=True)
class Settings:
    """Folders and secrets; ``MESHNET_CACHE`` and ``MESHNET_API_KEY`` override the defaults."""

    cache: Path
    api_key: str | None
    otlp: str | None = None
    """Where OpenTelemetry's own variable says that traces go."""
    variables: tuple[str, ...] = ()
    """Variables that may switch an engine's kernels, as ``NAME=value``, sorted. Workers inherit
    them, so they are part of what a node computes."""

    @property
    def notes(self) -> Path:
        """The folder that remembers which files nodes may load, and what is exact in them."""
        return self.cache / "notes"

    @staticmethod
    def from_environment() -> Settings:
        """Read the environment once, at the start of a command."""
        base = Path(os.environ.get("XDG_CACHE_HOME", "") or Path.home() / ".cache")
        cache = os.environ.get("MESHNET_CACHE")
        return Settings(
            Path(cache) if cache else base / "meshnet",
            os.environ.get("MESHNET_API_KEY") or None,
            os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or None,
            tuple(
                sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith(KERNEL_VARIABLES))
            ),
        )


def available_memory(report: Path = Path("/proc/meminfo")) -> int | None:
    """Bytes of memory that programs can still have; None where the system doesn't say."""
    if not report.exists():
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", report.read_text(), re.MULTILINE)
    return None if found is None else int(found[1]) << 10


def default_threads(nodes: int) -> int:
    """Threads a node: the machine's cores shared out, at least one each."""
    return max(1, (os.cpu_count() or 1) // nodes)
