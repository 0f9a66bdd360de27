"""Loading a model's file into libllama: onto which devices, and how into memory."""

from __future__ import annotations

import ctypes
import re
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import llama_cpp

from meshnet.domain.errors import EngineError, InvalidArgumentError
from meshnet.engine.base import EngineLimits, LoadRequest
from meshnet.engine.llamacpp.library import function, llama_ready
from meshnet.engine.llamacpp.log import recent_errors
from meshnet.engine.llamacpp.machine import Device, gpu_devices, processor
from meshnet.engine.llamacpp.placement import Placement, blocks_behind, place_layers

KEY_PREFIX: Final = "meshnet.slice."
MAX_DEVICES: Final = 16
"""What libllama reads of a split, ``llama_max_devices()``, at most."""
_CAP_IPC_LOCK: Final = 14
"""Of Linux's capabilities, the one that lifts the limit of locked memory."""


class _Override(ctypes.Structure):
    """``struct llama_model_tensor_buft_override`` of ``llama.h``."""

    _fields_ = (("pattern", ctypes.c_char_p), ("buft", ctypes.c_void_p))


class ModelParams:
    """``llama_model_params`` with all that it points to, which must live as long as the model."""

    def __init__(self, limits: EngineLimits) -> None:
        self.values: Any = llama_cpp.llama_model_default_params()
        self.values.load_mode = load_mode(mmap=limits.mmap, mlock=limits.mlock)
        self._kept: list[object] = []

    def place(self, placement: Placement, devices: Sequence[Device], stubs: Sequence[int]) -> None:
        """Use these devices alone, none if the placement has none; stubs stay on the processor.

        Without the list libllama would send large batches to a GPU even where no layer is on one.
        """
        used = [*devices, processor()] if placement.processor_last else list(devices)
        handles = [device.handle for device in used] if placement.tensor_split else []
        self.values.n_gpu_layers = placement.n_gpu_layers
        self.values.devices = self._keep((ctypes.c_void_p * (len(handles) + 1))(*handles))
        if not placement.tensor_split:
            return
        split = (ctypes.c_float * MAX_DEVICES)(*placement.tensor_split)
        self._kept.append(split)
        self.values.tensor_split = ctypes.cast(split, ctypes.POINTER(ctypes.c_float))
        if placement.processor_last and stubs:
            on_processor = function("ggml_backend_cpu_buffer_type", ctypes.c_void_p)()
            names = [rf"^blk\.{stub}\.".encode() for stub in stubs]
            listed = [_Override(name, on_processor) for name in names]
            overrides = (_Override * (len(names) + 1))(*listed)
            self.values.tensor_buft_overrides = self._keep(overrides)

    def _keep(self, array: ctypes.Array[Any]) -> int:
        self._kept.append(array)
        return ctypes.addressof(array)


def load_mode(*, mmap: bool, mlock: bool) -> int:
    """The value of ``enum llama_load_mode``."""
    if mlock:
        mode = llama_cpp.LLAMA_LOAD_MODE_MMAP_MLOCK if mmap else llama_cpp.LLAMA_LOAD_MODE_MLOCK
    else:
        mode = llama_cpp.LLAMA_LOAD_MODE_AUTO if mmap else llama_cpp.LLAMA_LOAD_MODE_NONE
    return int(mode)


def load_model(request: LoadRequest, devices: Sequence[Device] | None = None) -> tuple[Any, object]:
    """The ``llama_model`` and what must live as long; ``devices`` instead of the machine's GPUs.

    Raises :class:`InvalidArgumentError` for limits that this machine can't keep, and
    :class:`EngineError` if libllama refuses the file.
    """
    llama_ready()
    path, limits = _path(request), request.limits
    if limits.mlock:
        require_lockable(path.stat().st_size, _lock_limit())
    params = ModelParams(limits)
    found = gpu_devices() if devices is None else devices
    stubs = _stubs_behind(path, len(request.layers)) if limits.gpu_layers else ()
    placement = place_layers(
        limits.gpu_layers,
        len(request.layers),
        len(stubs),
        tail=request.layers.is_tail(request.total_layers),
        free_bytes=[device.free_bytes for device in found],
    )
    params.place(placement, found, stubs)
    recent_errors.clear()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params.values)
    if not model:
        raise EngineError(f"libllama can't load {path}: {recent_errors.text()}")
    return model, params


def metadata_text(model: Any, key: str) -> str | None:
    """The text of a metadata value of the loaded file; None if absent."""
    buffer = ctypes.create_string_buffer(1024)
    size = llama_cpp.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode() if size >= 0 else None


def _stubs_behind(path: Path, own_layers: int) -> range:
    """The numbers that the blocks behind a slice's own layers have in its file."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    recent_errors.clear()
    model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
    if not model:
        raise EngineError(f"libllama can't load {path}: {recent_errors.text()}")
    try:
        architecture = metadata_text(model, "general.architecture")
        blocks = _count(model, f"{architecture}.block_count", path)
        before = _count(model, f"{KEY_PREFIX}nulls_before", path)
    finally:
        llama_cpp.llama_model_free(model)
    return blocks_behind(blocks, before, own_layers)


def _count(model: Any, key: str, path: Path) -> int:
    """A number of the file's metadata; 0 if absent."""
    text = metadata_text(model, key) or "0"
    if not (text.isascii() and text.isdigit()):
        raise EngineError(f"{path}: {key} is {text!r}, but should be a number of layers")
    return int(text)


def require_lockable(size: int, limit: int) -> None:
    """Raise :class:`InvalidArgumentError` if a process mayn't lock ``size`` bytes in memory."""
    if limit != resource.RLIM_INFINITY and limit < size:
        raise InvalidArgumentError(
            "mlock",
            f"a process may lock {limit >> 10} KiB here, but the file has {size >> 10}; raise the "
            f"limit (ulimit -l), or leave --mlock out",
        )


def _lock_limit() -> int:
    """Bytes that this process may lock."""
    status = Path("/proc/self/status")
    text = status.read_text() if status.exists() else ""
    held = re.search(r"^CapEff:\s*([0-9a-f]+)$", text, re.MULTILINE)
    if held is not None and int(held[1], 16) >> _CAP_IPC_LOCK & 1:
        return resource.RLIM_INFINITY
    return resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]


def _path(request: LoadRequest) -> Path:
    if request.model_path is None:
        raise InvalidArgumentError("model_path", "libllama needs a file")
    return request.model_path
