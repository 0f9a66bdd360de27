"""A file's first load, in a process of its own: what libllama can't do ends that process only.

libllama checks much by assertions, which abort. A worker that loaded such a file would die again
each time it is started, and could only say that it was aborted. So the first time, a child loads
the file on the processor and computes one small step. Before that its header is checked, which also
finds slices that would give wrong answers. A file that passes isn't tried again by the same
build of libllama with the same kinds of caches.

The child is ``python -m meshnet.engine.llamacpp.trial``. It reads its order from standard input,
and writes one JSON object: that the file passed, or what refused it or made libllama abort.

Measured with SmolLM2-135M (100 MB) on two cores: see ``docs/architectures.md``.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import logging
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import PIPE
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from meshnet.domain.errors import EngineError, InvalidArgumentError, MeshnetError, ModelFileError
from meshnet.domain.ids import Digest
from meshnet.domain.recipe import Recipe
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.context import LlamaContext, Rows
from meshnet.engine.llamacpp.library import function, library_identity

LOGGER: Final = logging.getLogger(__name__)
TRIAL_SECONDS: Final = 120.0
"""How long a trial may take; reading a large file from a slow disk takes minutes."""
ROWS: Final = 4
"""Rows of the step: more than one, since a single row takes other kernels."""
_COMMAND: Final = (sys.executable, "-m", "meshnet.engine.llamacpp.trial")
_OUTSIDE: Final = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Signals that say nothing about a file: memory ran out, or someone ended the process."""
_LOOK_SECONDS: Final = 0.5
_FIRST_TO_ABORT: Final = threading.Lock()
"""Taken by the thread that says why the process ends, and never released."""


@dataclass(frozen=True, slots=True)
class Order:
    """What a child is to load, in JSON's types."""

    path: str
    start: int
    end: int
    total_layers: int
    threads: int
    kv_type_k: str
    kv_type_v: str
    flash_attention: bool

    @staticmethod
    def of(request: LoadRequest) -> Order:
        """What the request loads, without the limits that the machine sets."""
        recipe = request.recipe
        return Order(
            str(request.model_path),
            request.shard_start,
            request.shard_end,
            request.total_layers,
            request.limits.threads,
            recipe.kv_type_k,
            recipe.kv_type_v,
            recipe.flash_attention,
        )

    def request(self) -> LoadRequest:
        """The same for a short text, on the processor."""
        recipe = Recipe(
            Digest("sha256:" + "0" * 64),
            "libllama",
            "trial",
            kv_type_k=self.kv_type_k,
            kv_type_v=self.kv_type_v,
            flash_attention=self.flash_attention,
            chunk_tokens=ROWS,
        )
        limits = EngineLimits(2 * ROWS, max_sessions=1, threads=self.threads)
        path = Path(self.path)
        return LoadRequest(path, self.start, self.end, self.total_layers, recipe, limits)


async def try_out(
    request: LoadRequest,
    passed: Path,
    check: Callable[[Path], None],
    seconds: float = TRIAL_SECONDS,
) -> None:
    """Return once ``check`` has let the file pass and a child has computed with it.

    Files that passed leave a mark in the folder ``passed``, and aren't tried again. A trial that
    takes more than ``seconds``, or that something outside ends, proves nothing; that is logged. One
    in which libllama refuses the file is left to the load itself, which says why.

    Raises :class:`ModelFileError` for a file that ends the child, or can't be read,
    :class:`EngineError` for a child that fails by itself, and what ``check`` raises.
    """
    order = Order.of(request)
    mark = passed / _name(order)
    if mark.exists():
        return
    await asyncio.to_thread(check, Path(order.path))
    process = await asyncio.create_subprocess_exec(*_COMMAND, stdin=PIPE, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(seconds):
            spoken = json.dumps(asdict(order)).encode()
            answer, errors = await process.communicate(spoken)
    except TimeoutError:
        LOGGER.warning("%s: its trial took more than %.0f s and was given up", order.path, seconds)
        return
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if _judge(order.path, process.returncode or 0, answer, errors):
        _leave(mark)


def _name(order: Order) -> str:
    """Of all that the outcome depends on: the file as it is now, the build, what is asked for."""
    try:
        status = Path(order.path).stat()
    except OSError as error:
        raise ModelFileError(
            f"{order.path}: file: can't be read: {error.strerror}", file=order.path, field="file"
        ) from error
    about = [
        {**asdict(order), "threads": None},
        status.st_size,
        status.st_mtime_ns,
        library_identity(),
    ]
    return f"{hashlib.sha256(json.dumps(about).encode()).hexdigest()}.passed"


def _leave(mark: Path) -> None:
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()
    except OSError as error:
        raise InvalidArgumentError(
            "cache", f"{mark.parent} can't be written: {error.strerror}"
        ) from error


def _judge(path: str, returncode: int, answer: bytes, errors: bytes) -> bool:
    """Whether the file passed; raises if it is at fault, or if the trial itself failed."""
    said = _read(answer)
    if returncode == 0 and said.keys() & {"passed", "refused"}:
        return "passed" in said
    if -returncode in _OUTSIDE:
        LOGGER.warning("%s: its trial was ended by signal %d", path, -returncode)
        return False
    words = said.get("aborted") or _last_line(errors)
    if returncode >= 0:
        raise EngineError(
            f"{path}: its trial failed (code {returncode}), which says nothing of it: {words}"
        )
    raise ModelFileError(
        f"{path}: libllama can't load it or compute with it, and ended a process that tried to: "
        f"{words}. The file is damaged, or of a kind that this build doesn't know",
        file=path,
        field="file",
    )


def _read(answer: bytes) -> dict[str, object]:
    """What the child wrote; nothing if it was ended as it wrote."""
    try:
        said = json.loads(answer)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _last_line(errors: bytes) -> str:
    lines = errors.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "it gave no reason"


def main() -> None:
    """Be the child."""
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    order = Order(**json.loads(sys.stdin.buffer.read()))
    say_what_aborts: Any = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_tell_abort)
    function("ggml_set_abort_callback", ctypes.c_void_p, ctypes.c_void_p)(
        ctypes.cast(say_what_aborts, ctypes.c_void_p)
    )
    try:
        compute(order.request())
    except MeshnetError as error:
        _tell("refused", str(error))
    else:
        _tell("passed", "yes")
    sys.stdout.flush()
    # Without freeing anything, which takes time and proves nothing.
    os._exit(0)


def compute(request: LoadRequest) -> None:
    """Load the file and compute one step; what libllama can't do ends this process.

    Raises :class:`~meshnet.domain.errors.MeshnetError` for what it refuses.
    """
    context = LlamaContext(request, max_outputs=ROWS)
    outputs = 0 if context.taps else ROWS
    if request.shard_start == 0:
        tokens = tuple(number % context.n_vocab for number in range(ROWS))
        context.decode([Rows(0, 0, tokens, outputs=outputs)])
        return
    rows = np.random.default_rng(0).standard_normal((ROWS, context.n_embd), np.float32)
    context.decode([Rows(0, 0, embeddings=rows, outputs=outputs)])


def _tell(word: str, text: str) -> None:
    sys.stdout.write(json.dumps({word: text}))


def _tell_abort(message: bytes) -> None:
    """Called by ggml in place of its own message and of a debugger's stack.

    By each thread that aborts: the first one speaks, and ends the process as it returns. The others
    wait for that here.
    """
    _FIRST_TO_ABORT.acquire()
    text = message.decode(errors="replace")
    # The path in front of the source file's name is of the machine that built it.
    _tell("aborted", text.rpartition("/")[2])
    sys.stdout.flush()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main()
