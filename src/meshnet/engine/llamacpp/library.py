"""libllama, loaded once a process: its log goes to Python's, and its build has a name."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar, cast

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
_SOURCE_FOLDER: Final = b"/vendor/llama.cpp/"
_BUILD_ID: Final = re.compile(rb"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0.{20}", re.DOTALL)
"""The ELF note in which a linker states a sum over everything, the build's folder included."""
_MATHEMATICS: Final = re.compile(r"lib(cublas|cublasLt|openblas|blas|mkl_\w+|hipblas|rocblas)\b")


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
    """The binding's version, llama.cpp's commit and a digest of the libraries that compute.

    Two nodes with equal identities run the same machine code. Raises ``OSError`` if the libraries
    can't be read.
    """
    # The loaded library's own path, since the binding lets the environment name another folder.
    folder = Path(library()._name).parent
    commit = function("ggml_commit", ctypes.c_char_p)().decode()
    version = f"llama-cpp-python {llama_cpp.__version__} llama.cpp {commit}"
    return f"{version} {libraries_digest(folder, _loaded_mathematics())}"


def library() -> ctypes.CDLL:
    """The loaded libllama, which finds ggml's functions as well."""
    loaded: ctypes.CDLL = llama_cpp.llama_cpp._lib
    return loaded


def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """A C function of libllama or of ggml's libraries, with its types."""
    # Not the attribute, which is the library's own object that others may have typed otherwise.
    found: Any = library()[name]
    found.restype, found.argtypes = result, list(arguments)
    return cast(Callable[..., Any], found)


def libraries_digest(folder: Path, others: Iterable[Path] = ()) -> str:
    """A digest of libllama's and ggml's libraries in ``folder``, and of ``others``.

    Builds of the same source with the same tools have the same digest: the folder that a build ran
    in, which ends up in its messages, doesn't count, nor does the build's number made from it. A
    folder whose name has another length shifts the code, so that such builds do differ.
    """
    own = {
        path
        for pattern in ("libllama", "libggml*")
        for suffix in (".so", ".dylib")
        for path in folder.glob(pattern + suffix)
    }
    digest = hashlib.sha256()
    for path in sorted(own) + sorted(others):
        content = hashlib.sha256(_without_build_folder(path.read_bytes())).hexdigest()
        digest.update(f"{path.name} {content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _without_build_folder(content: bytes) -> bytes:
    pieces = content.split(_SOURCE_FOLDER)
    texts = [piece[: piece.rfind(b"\0") + 1] for piece in pieces[:-1]]
    return _BUILD_ID.sub(b"", _SOURCE_FOLDER.join([*texts, pieces[-1]]))


def _loaded_mathematics(maps: Path = Path("/proc/self/maps")) -> set[Path]:
    """The libraries of matrix products that came with ggml's own; empty where none can be seen."""
    if not maps.exists():
        return set()
    mapped = {line.split(maxsplit=5)[-1] for line in maps.read_text().splitlines() if "/" in line}
    return {Path(path) for path in mapped if _MATHEMATICS.match(Path(path).name)}


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
