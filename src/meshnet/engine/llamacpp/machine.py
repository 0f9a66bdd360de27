"""What of this machine changes the numbers that libllama computes, besides its build.

Found in llama.cpp as vendored in llama-cpp-python 0.3.36, and measured where said:

- The features that ggml's backends report: a build with several CPU variants loads one of them by
  what the processor can do, and some kernels look again at run time.
- The C library, whose sine, exponential and power make up rotary angles, soft-max and activations.
- Environment variables that switch kernels, such as ``GGML_CPU_TILED_MM`` and
  ``LLAMA_ATTN_ROT_DISABLE``.
- A GPU, also for a model that is kept on the processor: ``op_offload`` sends it large batches. So a
  node that was told to use none hides them all.
- Threads, in one case: with flash attention over a float32 or float16 cache, the work of a single
  row that looks back over 512 positions, which libllama makes of 257, is cut up by threads.
  Measured on AVX2: 1, 2 and 3 threads give other bits from there on; without flash attention, or
  over a q8_0 cache, 1 to 5 threads give the same. Processors that aren't x86 have kernels that
  take two rows at once, depending on how threads share them, so there the number always counts.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import platform
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import llama_cpp
import numpy as np

from meshnet.domain.recipe import Machine, Recipe
from meshnet.engine.base import EngineLimits
from meshnet.engine.llamacpp.library import function, library_identity, llama_ready
from meshnet.engine.llamacpp.placement import place_layers

_PROCESSOR: Final = 0
_DISCRETE: Final = 1
_INTEGRATED: Final = 2
_ACCELERATOR: Final = 3
"""Of ``enum ggml_backend_dev_type``."""
_SPLIT_BY_THREADS: Final = frozenset({"f32", "f16"})
_X86: Final = frozenset({"x86_64", "amd64", "i386", "i686"})
_SAMPLES: Final = 509
_FUNCTIONS: Final = ("expf", "expm1f", "sinf", "cosf", "tanhf", "logf", "erff", "sqrtf")


@dataclass(frozen=True, slots=True)
class Device:
    """A device that libllama can compute on besides the processor."""

    handle: int
    """``ggml_backend_dev_t``."""
    kind: str
    """Its backend and its model: equal ones compute equally."""
    free_bytes: int


def on_this_machine(
    recipe: Recipe,
    limits: EngineLimits,
    own_layers: int,
    devices: Sequence[Device] | None = None,
) -> Recipe:
    """The recipe with what this machine's libllama adds for a shard of ``own_layers``.

    ``recipe.machine.variables`` stay as they are; ``devices`` stand for the machine's GPUs. Raises
    :class:`~meshnet.domain.errors.InvalidArgumentError` for layers on a GPU where there is none,
    and ``OSError`` if libraries can't be read.
    """
    found = gpu_devices() if devices is None else devices
    free = [device.free_bytes for device in found]
    offload = place_layers(limits.gpu_layers, own_layers, 0, tail=True, free_bytes=free).offload
    kinds = {device.kind for device in found} if limits.gpu_layers else set()
    threads = counting_threads(
        limits.threads,
        (recipe.kv_type_k, recipe.kv_type_v),
        flash_attention=recipe.flash_attention,
    )
    machine = Machine(
        processor=processor_features(),
        mathematics=mathematics_digest(),
        variables=recipe.machine.variables,
        devices=tuple(sorted(kinds | set(_accelerators()))),
        offload=offload,
        threads=threads,
    )
    return replace(recipe, engine_build=library_identity(), machine=machine)


def counting_threads(
    threads: int,
    kv_types: tuple[str, str],
    *,
    flash_attention: bool,
    architecture: str | None = None,
) -> int:
    """The number of threads where it changes numbers, else 0; see the module's text.

    ``architecture`` is the processor's; None asks the platform.
    """
    x86 = (architecture or platform.machine()).lower() in _X86
    key, value = kv_types
    split = flash_attention and key == value and key in _SPLIT_BY_THREADS
    return threads if split or not x86 else 0


@functools.cache
def processor_features() -> str:
    """What ggml's loaded backends say they were built for and found, such as ``AVX2 = 1``."""
    llama_ready()
    text: str = llama_cpp.llama_print_system_info().decode()
    return " | ".join(filter(None, (part.strip() for part in text.split("|"))))


@functools.cache
def gpu_devices() -> tuple[Device, ...]:
    """The GPUs that libllama would use: discrete ones, or where there are none, integrated ones."""
    found = _devices()
    discrete = tuple(device for kind, device in found if kind == _DISCRETE)
    return discrete or tuple(device for kind, device in found if kind == _INTEGRATED)


def processor() -> Device:
    """The processor, as the device that it is to libllama too."""
    return next(device for kind, device in _devices() if kind == _PROCESSOR)


def _accelerators() -> list[str]:
    """Kinds of devices such as BLAS, which libllama always uses."""
    return [device.kind for kind, device in _devices() if kind == _ACCELERATOR]


def _devices() -> list[tuple[int, Device]]:
    llama_ready()
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    count = function("ggml_backend_dev_count", ctypes.c_size_t)
    get = function("ggml_backend_dev_get", pointer, ctypes.c_size_t)
    kind = function("ggml_backend_dev_type", ctypes.c_int, pointer)
    described = function("ggml_backend_dev_description", text, pointer)
    registry = function("ggml_backend_dev_backend_reg", pointer, pointer)
    registered = function("ggml_backend_reg_name", text, pointer)
    memory = function("ggml_backend_dev_memory", None, pointer, pointer, pointer)
    found = []
    for handle in map(get, range(count())):
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        memory(handle, ctypes.byref(free), ctypes.byref(total))
        backend, model = registered(registry(handle)).decode(), described(handle).decode()
        found.append((kind(handle), Device(handle, f"{backend} {model}", free.value)))
    return found


@functools.cache
def mathematics_digest() -> str:
    """A digest of what the process's C library computes for some hundred values of each function.

    Another version of it, or another processor that it has other code for, shows here only if it
    gives other numbers.
    """
    process: Any = ctypes.CDLL(None)
    values = np.geomspace(1e-6, 80.0, _SAMPLES, dtype=np.float32)
    digest = hashlib.sha256()
    for name in _FUNCTIONS:
        computed = process[name]
        computed.restype, computed.argtypes = ctypes.c_float, [ctypes.c_float]
        results = [computed(float(value)) for value in values]
        digest.update(np.array(results, np.float32).tobytes())
    power = process["powf"]
    power.restype, power.argtypes = ctypes.c_float, [ctypes.c_float, ctypes.c_float]
    exponents = np.linspace(-2.0, 2.0, _SAMPLES, dtype=np.float32)
    results = [power(float(a), float(b)) for a, b in zip(values, exponents, strict=True)]
    digest.update(np.array(results, np.float32).tobytes())
    return f"sha256:{digest.hexdigest()}"
