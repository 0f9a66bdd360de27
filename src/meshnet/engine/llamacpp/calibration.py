"""How fast this machine multiplies weights by one row, which is what generating a token waits for.

Measured with ggml's own kernel over a matrix larger than processors' caches, and remembered for the
library, the processor's features and the number of threads, unless something else on the machine
had the processors meanwhile. Run it in a process of its own
(``python -m meshnet.engine.llamacpp.calibration FOLDER THREADS [NAME=VALUE ...]``, which prints
one JSON object): it takes :data:`MATRIX_BYTES` and, the first time, some seconds. The arguments
after the threads are the variables of its environment that may switch kernels.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from meshnet.domain.errors import EngineError
from meshnet.engine.llamacpp.library import function, library_identity, llama_ready
from meshnet.engine.llamacpp.machine import gpu_devices, processor_features
from meshnet.engine.llamacpp.notes import read_note, write_note

SECONDS: Final = 1.0
"""How long multiplying goes on, the first, unmeasured time not counted."""
MATRIX_BYTES: Final = 144 << 20
UNDISTURBED: Final = 0.8
"""What is measured with less than this share of the processors' time isn't remembered."""
_VERSION: Final = 1
_Q4_K: Final = 12
_F32: Final = 0
"""Of ``enum ggml_type``. Most published files are mostly Q4_K."""
_COLUMNS: Final = 4096
_BYTES_A_ROW: Final = _COLUMNS // 256 * 144
"""A block of Q4_K is 256 weights in 144 bytes."""
_PROCESSOR: Final = 0


class _InitParams(ctypes.Structure):
    """``struct ggml_init_params``."""

    _fields_ = (
        ("mem_size", ctypes.c_size_t),
        ("mem_buffer", ctypes.c_void_p),
        ("no_alloc", ctypes.c_bool),
    )


def known_speed(folder: Path, threads: int, variables: Sequence[str] = ()) -> float:
    """Bytes of weights a second, as measured before or now; kept in ``folder``.

    Raises :class:`EngineError` if ggml has no room for the matrix.
    """
    about = [_VERSION, library_identity(), processor_features(), threads, *variables]
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()
    note = folder / f"{name}.speed.json"
    found = read_note(note, _speed_in)
    if found is not None:
        return found
    began, had = time.perf_counter(), time.process_time()
    speed = measure_speed(threads, SECONDS)
    got = (time.process_time() - had) / (time.perf_counter() - began) / threads
    if got >= UNDISTURBED:
        write_note(note, json.dumps(speed).encode())
    return speed


def _speed_in(note: bytes) -> float:
    found = json.loads(note)
    if isinstance(found, float) and found > 0:
        return found
    raise ValueError(f"{str(found)[:40]!r} is no speed")


def measure_speed(threads: int, seconds: float) -> float:
    """Bytes of Q4_K weights that the processor multiplies by one float32 row in a second."""
    llama_ready()
    pointer = ctypes.c_void_p
    backend = function("ggml_backend_init_by_type", pointer, ctypes.c_int, ctypes.c_char_p)(
        _PROCESSOR, None
    )
    context = function("ggml_init", pointer, _InitParams)(
        _InitParams(mem_size=1 << 20, no_alloc=True)
    )
    buffer = None
    try:
        new = function("ggml_new_tensor_2d", pointer, pointer, ctypes.c_int, *[ctypes.c_int64] * 2)
        rows = MATRIX_BYTES // _BYTES_A_ROW
        matrix, row = new(context, _Q4_K, _COLUMNS, rows), new(context, _F32, _COLUMNS, 1)
        product = function("ggml_mul_mat", pointer, *[pointer] * 3)(context, matrix, row)
        graph = function("ggml_new_graph", pointer, pointer)(context)
        function("ggml_build_forward_expand", None, pointer, pointer)(graph, product)
        buffer = function("ggml_backend_alloc_ctx_tensors", pointer, pointer, pointer)(
            context, backend
        )
        if not buffer:
            raise EngineError(f"no room for {MATRIX_BYTES} bytes to measure the speed with")
        # Pages that nobody wrote are all one page, which no memory has to be read for.
        function("ggml_backend_buffer_clear", None, pointer, ctypes.c_uint8)(buffer, 1)
        _set_threads(backend, threads)
        compute = function("ggml_backend_graph_compute", ctypes.c_int, pointer, pointer)
        return rows * _BYTES_A_ROW / _quickest(lambda: compute(backend, graph), seconds)
    finally:
        if buffer:
            function("ggml_backend_buffer_free", None, pointer)(buffer)
        function("ggml_free", None, pointer)(context)
        function("ggml_backend_free", None, pointer)(backend)


def _set_threads(backend: int, threads: int) -> None:
    pointer = ctypes.c_void_p
    device = function("ggml_backend_get_device", pointer, pointer)(backend)
    registry = function("ggml_backend_dev_backend_reg", pointer, pointer)(device)
    found = function("ggml_backend_reg_get_proc_address", pointer, pointer, ctypes.c_char_p)(
        registry, b"ggml_backend_set_n_threads"
    )
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(found)(backend, threads)


def _quickest(step: Callable[[], int], seconds: float) -> float:
    """The shortest time of a step: what else runs just then makes the others longer."""
    step()
    taken: list[float] = []
    ends = time.perf_counter() + seconds
    while len(taken) < 3 or time.perf_counter() < ends:
        began = time.perf_counter()
        if step() != 0:
            raise EngineError("ggml failed to multiply")
        taken.append(time.perf_counter() - began)
    return min(taken)


def main() -> None:
    """Print the speed and the accelerators of this machine as JSON."""
    folder, threads = Path(sys.argv[1]), int(sys.argv[2])
    speed = known_speed(folder, threads, sys.argv[3:])
    devices = [device.kind for device in gpu_devices()]
    sys.stdout.write(json.dumps({"bytes_per_second": speed, "devices": devices}) + "\n")


if __name__ == "__main__":
    main()
