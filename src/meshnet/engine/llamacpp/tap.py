"""The boundary tap: native code that takes one tensor out of libllama's graph and stops it."""

from __future__ import annotations

import ctypes
import functools
import importlib.util

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import EngineError
from meshnet.engine.llamacpp.library import library

_EXTENSION = "meshnet.engine.llamacpp._tap"


@functools.cache
def _load_tap() -> ctypes.CDLL:
    spec = importlib.util.find_spec(_EXTENSION)
    if spec is None or spec.origin is None:
        raise EngineError(
            "the native boundary tap isn't built; install the package with a C compiler at hand "
            "(pip install .)"
        )
    library = ctypes.CDLL(spec.origin)
    library.meshnet_tap_new.restype = ctypes.c_void_p
    library.meshnet_tap_new.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_size_t]
    library.meshnet_tap_new.argtypes += [ctypes.c_void_p] * 3
    library.meshnet_tap_captured.restype = ctypes.c_int64
    library.meshnet_tap_finite.restype = ctypes.c_bool
    library.meshnet_tap_finite.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    for function in ("meshnet_tap_free", "meshnet_tap_arm", "meshnet_tap_captured"):
        getattr(library, function).argtypes = [ctypes.c_void_p]
    return library


def all_finite(data: bytes) -> bool:
    """Whether the float32 values in ``data`` are all finite numbers.

    NumPy says the same, but takes several times as long for a row once a matrix product has emptied
    the processor's caches of its code.
    """
    return bool(_load_tap().meshnet_tap_finite(bytes(data), len(data) // 4))


def _ggml_functions() -> list[int]:
    """Addresses of the three ggml functions that the tap calls."""
    names = ("ggml_get_name", "ggml_nbytes", "ggml_backend_tensor_get")
    return [_address(library()[name]) for name in names]


def _address(function: object) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value  # type: ignore[arg-type]
    if address is None:
        raise EngineError("a native function has no address")
    return address


class BoundaryTap:
    """Captures the tensor ``name`` of up to ``rows`` rows of ``n_embd`` float32 values each."""

    def __init__(self, name: str, rows: int, n_embd: int) -> None:
        self._library = _load_tap()
        self._buffer = np.empty((rows, n_embd), np.float32)
        self._name = name
        self._handle = self._library.meshnet_tap_new(
            name.encode(), self._buffer.ctypes.data, self._buffer.nbytes, *_ggml_functions()
        )
        if not self._handle:
            raise EngineError(f"no tap can be made for a tensor named {name!r}")

    @property
    def callback(self) -> int:
        """Address of the callback, for ``llama_context_params.cb_eval``."""
        return _address(self._library.meshnet_tap_eval)

    @property
    def user_data(self) -> int:
        """Address to hand to the callback, for ``cb_eval_user_data``."""
        return int(self._handle)

    def arm(self) -> None:
        """Forget what was captured; call before each ``llama_decode``."""
        self._library.meshnet_tap_arm(self._handle)

    def rows(self, count: int) -> NDArray[np.float32]:
        """The ``count`` captured rows, a view that the next capture overwrites.

        Raises :class:`EngineError` unless exactly that many rows were captured: a tensor of
        another size under the expected name means that this isn't the residual.
        """
        captured = self._library.meshnet_tap_captured(self._handle)
        expected = count * self._buffer.shape[1] * 4
        if captured != expected:
            raise EngineError(
                f"tensor {self._name} gave {captured} bytes where {expected} were expected"
            )
        return self._buffer[:count]

    def close(self) -> None:
        """Free the native part; the context that calls it must be gone."""
        if self._handle:
            self._library.meshnet_tap_free(self._handle)
            self._handle = None
