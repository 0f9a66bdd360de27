"""Network namespaces on this machine, with links of a chosen delay and rate between them.

A stand-in for ``tc netem``, which many kernels don't have. Needs root, iproute2, a C compiler and
``/dev/net/tun``. The router (``router.c``) is compiled once and kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
import select
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from meshnet.cli.settings import Settings

SOURCE = Path(__file__).with_name("router.c")
ANSWER_SECONDS = 5.0
CLONE_NEWNET = 0x40000000
CAPABILITIES = 1 << 12 | 1 << 21
"""To configure networks and to make namespaces: CAP_NET_ADMIN and CAP_SYS_ADMIN."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Link:
    """What lies between any two machines."""

    delay_ms: float
    """One way."""
    mbit: float = 0.0
    """Of each machine's link out, in Mbit/s; 0 is no limit."""

    def __str__(self) -> str:
        rate = "" if not self.mbit else f", {self.mbit:g} Mbit/s"
        return f"{self.delay_ms:g} ms{rate}"


@dataclass(frozen=True, slots=True)
class Traffic:
    """What the router passed on since the link was set the last time."""

    packets: int
    bytes: int
    dropped: int


class Network:
    """Machines ``0`` to ``n - 1``, and the router between them."""

    def __init__(self, namespaces: tuple[str, ...], router: subprocess.Popen[str]) -> None:
        self.namespaces = namespaces
        self._router = router

    def address(self, machine: int) -> str:
        """A machine's IPv4 address."""
        return f"10.77.0.{machine + 1}"

    def command(self, machine: int) -> tuple[str, ...]:
        """What to put before a command to run it on a machine."""
        return ("ip", "netns", "exec", self.namespaces[machine])

    def set(self, link: Link) -> Traffic:
        """Change all links from now on; what the packets under way have left stays."""
        if self._router.stdin is None:
            raise RuntimeError("the router has no input")
        self._router.stdin.write(f"{round(link.delay_ms * 1000)} {round(link.mbit * 1000)}\n")
        self._router.stdin.flush()
        word, *numbers = _line(self._router).split()
        if word != "ok":
            raise RuntimeError(f"the router said {word!r}")
        return Traffic(*map(int, numbers))


def obstacle() -> str | None:
    """What this machine lacks for a :func:`network`; None if nothing."""
    status = Path("/proc/self/status")
    found = re.search(r"^CapEff:\s*(\w+)", status.read_text() if status.exists() else "", re.M)
    if found is None or int(found[1], 16) & CAPABILITIES != CAPABILITIES:
        return "root on Linux (for network namespaces): run this with sudo"
    if not Path("/dev/net/tun").exists():
        return "/dev/net/tun, which this machine doesn't have"
    for tool, package in (("ip", "iproute2"), ("cc", "gcc")):
        if shutil.which(tool) is None:
            return f"`{tool}`: apt-get install {package}"
    return None


@contextmanager
def network(machines: int) -> Iterator[Network]:
    """That many machines, with links that have no delay yet; removed on the way out."""
    missing = obstacle()
    if missing is not None:
        raise SystemExit(f"links with a delay need {missing}")
    _remove_abandoned()
    namespaces = tuple(f"mb{os.getpid()}-{number}" for number in range(1, machines + 1))
    with subprocess.Popen(
        [_router(), *namespaces], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as router:
        try:
            if _line(router) != "ready":
                raise SystemExit("the router doesn't start; its message is above")
            for number, name in enumerate(namespaces, start=1):
                _ip("netns", "add", name)
                _ip("link", "set", name, "netns", name)
                _ip("-n", name, "link", "set", "lo", "up")
                _ip("-n", name, "addr", "add", f"10.77.0.{number}/24", "dev", name)
                _ip("-n", name, "link", "set", name, "mtu", "1500", "txqueuelen", "10000", "up")
            made = Network(namespaces, router)
            made.set(Link(0.0))
            yield made
        finally:
            router.kill()
            for name in _existing().intersection(namespaces):
                _ip("netns", "del", name)


def enter(namespace: str) -> None:
    """Move this thread, and all that it starts from now on, to a machine."""
    library = ctypes.CDLL(None, use_errno=True)
    with Path("/var/run/netns", namespace).open("rb") as handle:
        if library.setns(handle.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"can't enter the namespace {namespace}")


def on_machine(namespace: str, work: Callable[[], ResultT]) -> ResultT:
    """Run ``work`` on a machine; a socket that it makes stays there."""
    results: list[ResultT] = []

    def there() -> None:
        enter(namespace)
        results.append(work())

    thread = threading.Thread(target=there)
    thread.start()
    thread.join()
    return results[0]


def _router() -> str:
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    program = Settings.from_environment().cache / "bench" / f"router-{digest}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        half = program.with_suffix(f".{os.getpid()}")
        flags = ("-std=c11", "-O2", "-Wall", "-Wextra", "-Werror")
        subprocess.run(["cc", *flags, "-o", str(half), str(SOURCE)], check=True)
        half.rename(program)
    return str(program)


def _line(router: subprocess.Popen[str]) -> str:
    if router.stdout is None:
        raise RuntimeError("the router has no output")
    if not select.select([router.stdout], [], [], ANSWER_SECONDS)[0]:
        raise RuntimeError(f"the router says nothing for {ANSWER_SECONDS:g} s")
    return router.stdout.readline().strip()


def _ip(*arguments: str) -> str:
    made = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise SystemExit(f"`ip {' '.join(arguments)}` failed: {made.stderr.strip()}")
    return made.stdout


def _existing() -> set[str]:
    return {line.split()[0] for line in _ip("netns", "list").splitlines() if line}


def _remove_abandoned() -> None:
    """Namespaces of measurements that were killed."""
    for name in _existing():
        owner = re.fullmatch(r"mb(\d+)-\d+", name)
        if owner is not None and not Path("/proc", owner[1]).exists():
            _ip("netns", "del", name)
