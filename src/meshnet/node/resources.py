"""What this machine has free: memory as the kernel and control groups allow it, and disk."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from meshnet.domain.errors import InvalidArgumentError


@dataclass(frozen=True, slots=True)
class Resources:
    """Free now, in bytes; and processors that this process may use."""

    memory_bytes: int
    disk_bytes: int
    cores: int


def resources(cache: Path, own_pids: tuple[int, ...] = (), root: Path = Path("/")) -> Resources:
    """What models may have here; ``own_pids`` hold a shard, whose memory counts as free.

    ``root`` is where ``proc`` and ``sys`` are. Raises ``InvalidArgumentError`` if the system
    doesn't tell its free memory.
    """
    free = available_memory(root)
    if free is None:
        raise InvalidArgumentError(
            "memory", "this system doesn't say how much is free; state it with --memory"
        )
    own = sum(_unshareable(root, pid) for pid in own_pids)
    limit = group_room(root)
    within = free if limit is None else min(free, limit)
    return Resources(within + own, _disk(cache), len(os.sched_getaffinity(0)))


def available_memory(root: Path = Path("/")) -> int | None:
    """Bytes that programs can still have, caches given up; None where the system doesn't say."""
    report = root / "proc/meminfo"
    if not report.exists():
        return None
    found = re.search(r"^MemAvailable:\s*(\d+) kB$", report.read_text(), re.MULTILINE)
    return None if found is None else int(found[1]) << 10


def group_room(root: Path = Path("/")) -> int | None:
    """What this process's control groups (version 2) leave it; None without a limit.

    A group's page cache can be given up, so files that it read don't count as used.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return None
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), None)
    if own is None:
        return None
    top = root / "sys/fs/cgroup"
    group = top / own.strip("/")
    rooms = []
    while True:
        room = _room_of(group)
        if room is not None:
            rooms.append(room)
        if group == top or top not in group.parents:
            return min(rooms, default=None)
        group = group.parent


def _room_of(group: Path) -> int | None:
    try:
        limit = (group / "memory.max").read_text().strip()
        if limit == "max":
            return None
        used = int((group / "memory.current").read_text())
        counts = re.findall(r"^(file|shmem) (\d+)$", (group / "memory.stat").read_text(), re.M)
    except (OSError, ValueError):
        # The root group has no limit, and a container may not show groups outside its own.
        return None
    sizes = {name: int(size) for name, size in counts}
    # Shared memory and tmpfs are counted as files, but have nowhere to be read from again.
    cached = max(sizes.get("file", 0) - sizes.get("shmem", 0), 0)
    return max(int(limit) - used + cached, 0)


def _unshareable(root: Path, pid: int) -> int:
    """A process's memory that nobody else can have meanwhile; 0 for one that has ended.

    Pages of files can be read again and are free for others, unless they are locked.
    """
    try:
        status = (root / f"proc/{pid}/status").read_text()
    except OSError:
        return 0
    sizes = dict(re.findall(r"^(RssAnon|RssFile|VmLck):\s*(\d+) kB$", status, re.MULTILINE))
    anonymous, mapped, locked = (int(sizes.get(it, 0)) for it in ("RssAnon", "RssFile", "VmLck"))
    return (anonymous + min(mapped, locked)) << 10


def _disk(cache: Path) -> int:
    """Free where ``cache`` is, or will be made."""
    there = next(path for path in (cache, *cache.parents) if path.exists())
    return shutil.disk_usage(there).free
