"""How much memory this process has."""

from __future__ import annotations

import mmap
from pathlib import Path


def resident_bytes(report: Path = Path("/proc/self/statm")) -> int | None:
    """Pages in memory now, shared and mapped ones included; None where the system doesn't say.

    The second number of ``/proc/self/statm``, see proc(5).
    """
    if not report.exists():
        return None
    return int(report.read_text().split()[1]) * mmap.PAGESIZE
