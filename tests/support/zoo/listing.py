"""Which tensors libllama wants of a model, from the model's metadata alone.

``llama_model_init_from_user`` (llama.h) makes a model without a file: it asks for every tensor that
the architecture knows, the optional ones included, and hands each to a callback to be filled.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llama_cpp

from meshnet.engine.llamacpp.library import llama_ready
from meshnet.engine.llamacpp.log import recent_errors


class ListingError(Exception):
    """libllama takes no model with such metadata."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A tensor's name and its shape in ggml's order, without ones at the end."""

    name: str
    shape: tuple[int, ...]


class _GgufInit(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


class _TensorStart(ctypes.Structure):
    """How ``struct ggml_tensor`` begins (ggml.h)."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("buffer", ctypes.c_void_p),
        ("ne", ctypes.c_int64 * 4),
        ("nb", ctypes.c_size_t * 4),
    )


_FILL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


def ggml_base() -> ctypes.CDLL:
    """The library with ggml's own functions, typed as far as the zoo calls them."""
    folder = Path(llama_cpp.__file__).parent / "lib"
    library = ctypes.CDLL(str(sorted(folder.glob("*ggml-base*"))[0]))
    library.gguf_init_from_file.restype = ctypes.c_void_p
    library.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GgufInit]
    library.gguf_free.argtypes = [ctypes.c_void_p]
    library.ggml_get_name.restype = ctypes.c_char_p
    library.ggml_get_name.argtypes = [ctypes.c_void_p]
    return library


def wanted_tensors(metadata: Path) -> list[Wanted]:
    """All tensors of the model whose metadata the file holds, each once, in libllama's order.

    Raises :class:`ListingError` with libllama's reason; other metadata ends the process.
    """
    llama_ready()
    ggml = ggml_base()
    found: dict[str, Wanted] = {}

    def note(tensor: int, _data: object) -> None:
        extents = list(_TensorStart.from_address(tensor).ne)
        while len(extents) > 1 and extents[-1] == 1:
            extents.pop()
        name = ggml.ggml_get_name(tensor).decode()
        found.setdefault(name, Wanted(name, tuple(extents)))

    # The binding doesn't declare this function.
    make: Any = llama_cpp.llama_cpp._lib.llama_model_init_from_user
    params = llama_cpp.llama_model_default_params()
    make.restype = ctypes.c_void_p
    make.argtypes = [ctypes.c_void_p, _FILL, ctypes.c_void_p, type(params)]
    context = ggml.gguf_init_from_file(str(metadata).encode(), _GgufInit(True, None))
    callback = _FILL(note)
    recent_errors.clear()
    model = make(context, callback, None, params)
    ggml.gguf_free(context)
    if not model:
        raise ListingError(recent_errors.text())
    llama_cpp.llama_model_free(model)
    return list(found.values())
