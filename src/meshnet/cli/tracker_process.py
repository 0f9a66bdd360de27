"""``python -m meshnet.cli.tracker_process``: what ``meshnet up`` starts for its tracker.

Standard input carries one line of configuration, and then stays open for as long as ``up`` lives.
Standard output carries events. The socket that machines connect to is handed down, so that those
who come while no tracker runs wait for the next one. Not meant to be typed by people.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import sys
import threading
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import uvloop
from pydantic import TypeAdapter

from meshnet.cli.cluster import Membership, StateFolder
from meshnet.cli.logfiles import log_to_files
from meshnet.cli.reaching import addresses_tried
from meshnet.cli.runtime import known_error
from meshnet.cli.tracking import OfferedModel, RunningTracker, tracker_running
from meshnet.domain.errors import MeshnetError, UnauthenticatedError, status_of
from meshnet.domain.ids import Address, NodeId
from meshnet.domain.status import OK, StructuredStatus
from meshnet.tracker.reach import Reach
from meshnet.tracker.receiptdesk import ReceiptDesk
from meshnet.tracker.store.receipts import Receipts
from meshnet.transport.certificates import Role

LOGGER: Final = logging.getLogger("meshnet.cli.tracker_process")
STOP_SECONDS: Final = 3.0
"""How long the end in good order may take once the input is closed."""


@dataclass(frozen=True, slots=True)
class TrackerConfig:
    """What a tracker's process is told."""

    state: Path
    """The state folder."""
    membership: Membership
    offered: tuple[OfferedModel, ...]
    store: str | None
    """A path or a URL; None: a file in the state folder."""
    relay: Address | None = None
    """Where other machines reach the relay; None: there is none."""
    waiting: tuple[NodeId, ...] = ()
    """Nodes that wait at the relay already, as a tracker before this one told them to."""
    accounts: str | None = None
    """The database of keys and usage, where receipts are kept too; None: there is none."""
    node: bool = True
    """Whether this machine is to be a member that holds layers."""
    log_level: int = logging.WARNING
    listener: int = 0
    """The file descriptor of the bound socket, once it is handed down."""

    def to_json(self) -> bytes:
        """One line, without its end."""
        return _CONFIGS.dump_json(self)

    @staticmethod
    def from_json(line: bytes) -> TrackerConfig:
        """Read a line; raises ``ValueError`` for anything else."""
        return _CONFIGS.validate_json(line)


@dataclass(frozen=True, slots=True)
class TrackerEvent:
    """One line that a tracker's process writes."""

    event: Literal["ready", "failed"]
    status: StructuredStatus = field(default=OK)
    """Of a failure."""
    node_problem: str = ""
    """Why this machine can't hold layers; the tracker serves all the same."""

    def to_json(self) -> bytes:
        """One line, without its end."""
        return _EVENTS.dump_json(self)

    @staticmethod
    def from_json(line: bytes) -> TrackerEvent:
        """Read a line; raises ``ValueError`` for anything else."""
        return _EVENTS.validate_json(line)


_CONFIGS: Final = TypeAdapter(TrackerConfig)
_EVENTS: Final = TypeAdapter(TrackerEvent)


def main() -> None:
    """Serve until standard input ends, or SIGTERM."""
    # A terminal sends Ctrl-C to the whole group; `up` decides when its tracker ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        served = runner.run(_serve())
    sys.exit(0 if served else 1)


async def _serve() -> bool:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    if not line:
        # A spare one that was never needed.
        return True
    config = TrackerConfig.from_json(line)
    logging.basicConfig(
        level=config.log_level,
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
    )
    logging.getLogger().handlers[0].setLevel(config.log_level)
    log_to_files(config.state, "tracker")
    threading.Thread(target=_watch_input, args=(loop, stop), daemon=True).start()
    try:
        await _track(config, stop)
    except (MeshnetError, ExceptionGroup) as error:
        known = known_error(error)
        if known is None:
            raise
        _report(TrackerEvent("failed", status=status_of(known)))
        return False
    return True


async def _track(config: TrackerConfig, stop: asyncio.Event) -> None:
    """Be the tracker until ``stop`` is set; what ends it before is raised."""
    state = StateFolder(config.state)
    listener = socket.socket(fileno=config.listener)
    async with AsyncExitStack() as stack:
        tracker = await stack.enter_async_context(
            tracker_running(state, listener, config.membership, config.offered, config.store)
        )
        if config.accounts is not None:
            receipts = stack.enter_context(closing(Receipts(config.accounts)))
            tracker.service.receipts = stack.enter_context(closing(ReceiptDesk(receipts)))
        if config.relay is not None:
            tracker.service.reach = Reach(config.relay, config.waiting, tracker.service.now)
            files = tracker.folder(Role.TRACKER).files
            await stack.enter_async_context(addresses_tried(tracker.service, files))
        problem = _node_problem(tracker, config.membership.name) if config.node else ""
        LOGGER.info("process %d is the tracker", os.getpid())
        _report(TrackerEvent("ready", node_problem=problem))
        await stop.wait()


def _node_problem(tracker: RunningTracker, name: str) -> str:
    """Certify this machine as a node; gives why that can't be."""
    try:
        tracker.identity(Role.NODE, name)
    except UnauthenticatedError as error:
        return error.message
    return ""


def _watch_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Stop when `up` is gone; end by force if the loop doesn't come to it."""
    # Not through sys.stdin: its lock would be held by this thread when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        pass
    loop.call_soon_threadsafe(stop.set)
    threading.Event().wait(STOP_SECONDS)
    os._exit(1)


def _report(event: TrackerEvent) -> None:
    sys.stdout.buffer.write(event.to_json() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
