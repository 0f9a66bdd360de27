"""``python -m meshnet.cli.worker``: the process that a supervisor starts for a node.

Standard input carries one line of configuration, and then stays open for as long as the supervisor
lives; whatever comes on it asks for the node's figures. Standard output carries events. Not meant
to be typed by people.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from contextlib import ExitStack

import uvloop

from meshnet.cli.tracing import tracer_for
from meshnet.domain.errors import MeshnetError, status_of
from meshnet.node.config import NodeConfig
from meshnet.node.worker import STOP_SECONDS, WorkerEvent, run_worker

SWITCH_SECONDS = 1e-4
"""How long a thread may keep the interpreter once another one wants it."""


def main() -> None:
    """Serve until standard input ends, or SIGTERM."""
    # A terminal sends Ctrl-C to the whole group; the supervisor decides when its workers end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Two threads take turns here, the loop's and the engine's; neither may hold the other up.
    sys.setswitchinterval(SWITCH_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        served = runner.run(_serve())
    # Without waiting for the engine's thread: a step that runs would delay the end.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0 if served else 1)


async def _serve() -> bool:
    loop = asyncio.get_running_loop()
    stop, asked = asyncio.Event(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    line = await asyncio.to_thread(sys.stdin.buffer.readline)
    with ExitStack() as stack:
        try:
            config = NodeConfig.from_json(line)
            traces = tracer_for(config.traces, "meshnet-node", config.node_id)
            tracer = stack.enter_context(traces)
        except MeshnetError as error:
            _report(WorkerEvent("failed", status=status_of(error)))
            return False
        threading.Thread(target=_watch_input, args=(loop, stop, asked), daemon=True).start()
        return await run_worker(config, stop, _report, asked, tracer)


def _watch_input(
    loop: asyncio.AbstractEventLoop, stop: asyncio.Event, asked: asyncio.Event
) -> None:
    """Stop when the supervisor is gone; end by force if the loop doesn't come to it."""
    # Not through sys.stdin: its lock would be held by this thread when the interpreter ends.
    while os.read(sys.stdin.fileno(), 4096):
        loop.call_soon_threadsafe(asked.set)
    loop.call_soon_threadsafe(stop.set)
    threading.Event().wait(2 * STOP_SECONDS)
    os._exit(1)


def _report(event: WorkerEvent) -> None:
    sys.stdout.buffer.write(event.to_json() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
