"""A node's worker that notes when a decode step passes each point; for ``bench.profile_step``.

    python -m bench.profile_worker FILE

Works as ``meshnet.cli.worker`` does and writes the notes into FILE when it ends: a line for each,
the time in nanoseconds on the machine's monotonic clock and the point's name. ``loop:cpu`` is the
CPU time of the event loop's thread instead.
"""

from __future__ import annotations

import functools
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from meshnet.cli import worker
from meshnet.engine.llamacpp.engine import LlamaShardEngine
from meshnet.transport import queues, seam_client, seam_server

Notes = list[tuple[int, str]]


def _cpu_of_this_thread() -> Callable[[], int]:
    """A clock of the CPU time that the calling thread used, readable from any thread."""
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return functools.partial(time.clock_gettime_ns, clock)


CPU = _cpu_of_this_thread()
"""Of the main thread, which runs the event loop."""


def noted(notes: Notes, function: Callable[..., Any], name: str) -> Callable[..., Any]:
    """``function``, with a note before and after each call."""
    begin, end = f"{name}:begin", f"{name}:end"

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        notes.append((time.perf_counter_ns(), begin))
        if name == "engine":
            notes.append((CPU(), "loop:cpu"))
        try:
            return function(*args, **kwargs)
        finally:
            notes.append((time.perf_counter_ns(), end))

    return call


def note_steps(notes: Notes) -> None:
    """Put the notes where a step passes: the codec, the engine, and the write to the stream."""
    for module, name in (
        (seam_server, "decode_request"),
        (seam_server, "encode_reply"),
        (seam_client, "encode_request"),
        (seam_client, "decode_replies"),
    ):
        setattr(module, name, noted(notes, getattr(module, name), name.split("_")[0]))
    LlamaShardEngine.execute = noted(notes, LlamaShardEngine.execute, "engine")  # type: ignore[method-assign]
    make = queues.Outbox.__init__

    def made(box: queues.Outbox, write: Callable[[bytes], Awaitable[None]], bound: int) -> None:
        def written(frame: bytes) -> Awaitable[None]:
            notes.append((time.perf_counter_ns(), "write:begin"))
            return write(frame)

        make(box, written, bound)

    queues.Outbox.__init__ = made  # type: ignore[method-assign, assignment]


def main() -> None:
    notes: Notes = []
    note_steps(notes)
    leave = os._exit

    def write_and_leave(status: int) -> None:
        lines = [f"{moment} {name}\n" for moment, name in notes]
        Path(sys.argv[1]).write_text("".join(lines))
        leave(status)

    os._exit = write_and_leave  # type: ignore[assignment]
    worker.main()


if __name__ == "__main__":
    main()
