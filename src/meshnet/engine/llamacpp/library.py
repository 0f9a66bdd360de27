"""libllama, loaded once a process: its log goes to Python's, and its build has a name."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

import llama_cpp

from meshnet.domain.errors import ResourceExhaustedError

Result = TypeVar("Result")

LOGGER: Final = logging.getLogger("meshnet.libllama")
_CONTINUES: Final = 5
_LEVELS: Final = {
    0: logging.INFO,
    1: logging.DEBUG,
    2: logging.INFO,
    3: logging.WARNING,
    4: logging.ERROR,
}
"""``enum ggml_log_level`` without its last value, which continues the line before."""
_STACK_LOCK: Final = threading.Lock()
_STACK_UNIT: Final = 1 << 16


class LineAssembler:
    """Joins the pieces in which libllama logs into lines, one per record of ``logger``.

    Each thread's pieces are kept apart, since contexts log at the same time.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._pending = threading.local()

    def add(self, level: int, text: bytes) -> None:
        """Take a piece; a level that continues keeps that of the line it continues."""
        before = getattr(self._pending, "text", "")
        known = _LEVELS.get(level, getattr(self._pending, "level", logging.INFO))
        if before and level != _CONTINUES:
            self._logger.log(self._pending.level, "%s", before)
            before = ""
        *lines, rest = (before + text.decode("utf-8", "replace")).split("\n")
        for line in filter(None, map(str.rstrip, lines)):
            self._logger.log(known, "%s", line)
        self._pending.text, self._pending.level = rest, known


_assembler: Final = LineAssembler(LOGGER)


def _on_log(level: int, text: bytes, _user_data: object) -> None:
    _assembler.add(level, text)


# ctypes frees a callback that nothing refers to, and libllama would call into freed memory.
_callback: Final = llama_cpp.llama_log_callback(_on_log)


@functools.cache
def llama_ready() -> None:
    """Make libllama ready for use; call it before any other of its functions. Idempotent."""
    llama_cpp.llama_log_set(_callback, ctypes.c_void_p(None))
    llama_cpp.llama_backend_init()


@functools.cache
def library_identity() -> str:
    """The binding's version and a digest of the bytes of libllama's and ggml's libraries.

    Two nodes with equal identities run the same machine code. Raises ``OSError`` if the libraries
    can't be read.
    """
    # The loaded library's own path, since the binding lets the environment name another folder.
    folder = Path(llama_cpp.llama_cpp._lib._name).parent
    names = sorted(
        path
        for pattern in ("libllama", "libggml*")
        for suffix in (".so", ".dylib")
        for path in folder.glob(pattern + suffix)
    )
    digest = hashlib.sha256()
    for path in names:
        digest.update(f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return f"llama-cpp-python {llama_cpp.__version__} sha256:{digest.hexdigest()}"


def call_with_stack(stack_bytes: int, function: Callable[[], Result]) -> Result:
    """Run ``function`` on a thread of its own that has a stack of at least ``stack_bytes``.

    For calls into libllama that recurse as deep as their input is long. Memory is used only as far
    as the stack is reached. Such a call can't be stopped, so there is no deadline. Raises what
    ``function`` raises, and :class:`ResourceExhaustedError` if there is no room for the stack.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="deep-call") as threads:
        # The size is a setting of the whole process, read when a thread starts.
        with _STACK_LOCK:
            usual = threading.stack_size(-(-stack_bytes // _STACK_UNIT) * _STACK_UNIT)
            try:
                outcome = threads.submit(function)
            except RuntimeError as error:
                raise ResourceExhaustedError(
                    f"no room for a stack of {stack_bytes} bytes; send a shorter text"
                ) from error
            finally:
                threading.stack_size(usual)
        return outcome.result()
