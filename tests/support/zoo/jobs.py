"""Many models, each in a process of its own, since what libllama can't do ends the process.

The processes are forks of one that has loaded everything, which makes starting them cheap. It must
have no threads, so it isn't the process of the tests: ``python -m tests.support.zoo`` is.
"""

from __future__ import annotations

import json
import os
import select
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

Job = TypeVar("Job")

SECONDS: Final = 240
"""How long a job may take."""
_LAST_WORDS: Final = 300
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - files are as safe there as anywhere
"""Where files don't wait for a disk."""


@dataclass(frozen=True, slots=True)
class Died:
    """A job's process ended without an answer."""

    reason: str
    by_signal: bool = True
    """Whether a signal ended it; otherwise the work raised an error, or its status says one."""


@dataclass(slots=True)
class _Running(Generic[Job]):
    job: Job
    pid: int
    pipe: int
    errors: Path
    deadline: float
    answer: bytes = b""


def run_jobs(
    jobs: Sequence[Job],
    work: Callable[[Job, Path], object],
    at_once: int,
) -> Iterator[tuple[Job, object]]:
    """Each job with what ``work`` made of it, or :class:`Died`, as they end.

    ``work`` gets an empty folder, and returns or raises; both must survive JSON, an exception as
    its text in a :class:`Died`.
    """
    waiting = list(reversed(jobs))
    running: list[_Running[Job]] = []
    with tempfile.TemporaryDirectory(dir=_MEMORY if _MEMORY.is_dir() else None) as folder:
        while waiting or running:
            while waiting and len(running) < at_once:
                running.append(_start(waiting.pop(), work, Path(folder)))
            ready, _, _ = select.select([task.pipe for task in running], [], [], 0.5)
            for task in list(running):
                if task.pipe in ready:
                    chunk = os.read(task.pipe, 1 << 16)
                    task.answer += chunk
                    if chunk:
                        continue
                elif time.monotonic() < task.deadline:
                    continue
                else:
                    os.kill(task.pid, signal.SIGKILL)
                running.remove(task)
                yield task.job, _ended(task)


def _start(job: Job, work: Callable[[Job, Path], object], folder: Path) -> _Running[Job]:
    reader, writer = os.pipe()
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as errors:
        pid = os.fork()
        if pid == 0:
            os.close(reader)
            os.dup2(errors.fileno(), 2)
            _answer(job, work, folder, writer)
    os.close(writer)
    return _Running(job, pid, reader, Path(errors.name), time.monotonic() + SECONDS)


def _answer(job: Job, work: Callable[[Job, Path], object], folder: Path, writer: int) -> None:
    """In the child: do the work, say what came of it, and end."""
    try:
        with tempfile.TemporaryDirectory(dir=folder) as own:
            made = {"made": work(job, Path(own))}
    except BaseException as error:  # noqa: BLE001 - whatever it is, the parent is told
        made = {"error": f"{type(error).__name__}: {error}"}
    with os.fdopen(writer, "wb") as pipe:
        pipe.write(json.dumps(made).encode())
    os._exit(0)


def _ended(task: _Running[Job]) -> object:
    os.close(task.pipe)
    _, status = os.waitpid(task.pid, 0)
    errors = task.errors.read_text(errors="replace")
    task.errors.unlink()
    if task.answer:
        answer = json.loads(task.answer)
        return answer["made"] if "made" in answer else Died(answer["error"], by_signal=False)
    lines = [line for line in errors.splitlines() if "ASSERT" in line or "rror" in line]
    said = lines[-1][-_LAST_WORDS:] if lines else "it said nothing"
    code = os.waitstatus_to_exitcode(status)
    ending = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return Died(f"{ending}: {said}", by_signal=code < 0)
