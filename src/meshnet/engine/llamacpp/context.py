"""One libllama model and context: the raw computation of batches, without any session rules."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import EngineError
from meshnet.engine.base import LoadRequest
from meshnet.engine.llamacpp.library import llama_ready
from meshnet.engine.llamacpp.log import recent_errors
from meshnet.engine.llamacpp.tap import BoundaryTap

GGML_TYPES = {"f32": 0, "f16": 1, "q8_0": 8, "bf16": 30}
KEY_PREFIX = "meshnet.slice."


@dataclass(frozen=True, slots=True)
class Rows:
    """Consecutive positions of one sequence: token ids, or float32 rows of shape (n, n_embd)."""

    sequence: int
    position: int
    tokens: tuple[int, ...] = ()
    embeddings: NDArray[np.float32] | None = None
    outputs: int = 0
    """Of how many of the last rows the logits are wanted."""

    @property
    def count(self) -> int:
        """How many positions."""
        return len(self.tokens) if self.embeddings is None else len(self.embeddings)


class LlamaContext:
    """Loads a file and decodes batches of up to ``max_rows`` rows, ``max_outputs`` with logits."""

    def __init__(self, request: LoadRequest, max_outputs: int) -> None:
        self._model = _load_model(request)
        self._context: Any = None
        self._tap: BoundaryTap | None = None
        try:
            self.n_embd = int(llama_cpp.llama_model_n_embd(self._model))
            self.n_layer = int(llama_cpp.llama_model_n_layer(self._model))
            self.n_vocab = int(
                llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
            )
            self.weight_bytes = int(llama_cpp.llama_model_size(self._model))
            self._open_context(request, max_outputs)
        except BaseException:
            self.close()
            raise

    def _open_context(self, request: LoadRequest, max_outputs: int) -> None:
        limits, recipe = request.limits, request.recipe
        self.max_rows = max(recipe.chunk_tokens, limits.max_sessions)
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = limits.context_length * limits.max_sessions
        params.n_batch = params.n_ubatch = self.max_rows
        params.n_seq_max = limits.max_sessions
        params.n_threads = params.n_threads_batch = limits.threads
        params.type_k = GGML_TYPES[recipe.kv_type_k]
        params.type_v = GGML_TYPES[recipe.kv_type_v]
        params.flash_attn_type = int(recipe.flash_attention)
        params.no_perf = True
        # A KV stream per sequence: with a shared buffer a sequence's bits depend on its neighbours.
        params.kv_unified = False
        # Sliding-window layers keep every position, so that a session can be rolled back exactly.
        params.swa_full = True
        name = self.metadata(f"{KEY_PREFIX}tap")
        if name is not None:
            self._tap = BoundaryTap(name, self.max_rows, self.n_embd)
            params.cb_eval = type(params.cb_eval)(self._tap.callback)
            params.cb_eval_user_data = self._tap.user_data
        # Without a stub behind it, the last layer computes only the rows flagged as outputs.
        self._flag_rows = self.metadata(f"{KEY_PREFIX}all_rows") == "true"
        if not self._flag_rows:
            params.n_outputs_max = max_outputs
        recent_errors.clear()
        self._context = llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise EngineError(f"libllama can't make a context: {recent_errors.text()}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._arrays = _BatchArrays(self.max_rows)

    def metadata(self, key: str) -> str | None:
        """The text of a metadata value of the loaded file; None if absent."""
        buffer = ctypes.create_string_buffer(1024)
        size = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode() if size >= 0 else None

    @property
    def taps(self) -> bool:
        """Whether the output is a boundary rather than logits."""
        return self._tap is not None

    def decode(self, parts: Sequence[Rows]) -> NDArray[np.float32]:
        """Compute parts of distinct sequences, sorted by sequence, in one batch.

        Returns the boundary rows, shape (rows, n_embd), or on a tail the logits that the parts
        want, shape (outputs, n_vocab), both float32 views that the next call overwrites.
        Raises :class:`EngineError`; the cache of the parts' sequences is undefined then.
        """
        count = self._arrays.fill(parts, flag_all=self._flag_rows)
        recent_errors.clear()
        if self._tap is not None:
            self._tap.arm()
        code = llama_cpp.llama_decode(self._context, self._arrays.batch)
        if code != 0:
            raise EngineError(f"libllama refused a batch (code {code}): {recent_errors.text()}")
        if self._tap is not None:
            return self._tap.rows(count)
        outputs = sum(part.outputs for part in parts)
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (outputs, self.n_vocab))

    def truncate(self, sequence: int, position: int) -> None:
        """Drop a sequence's cache from ``position`` on; 0 drops all of it."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, position, -1):
            raise EngineError(f"this model's cache can't be rolled back to position {position}")

    def clear(self) -> None:
        """Drop every sequence's cache, and overwrite what it held."""
        llama_cpp.llama_memory_clear(self._memory, True)  # noqa: FBT003 - positional

    def close(self) -> None:
        """Free everything; idempotent."""
        if self._context:
            llama_cpp.llama_free(self._context)
            self._context = None
        if self._tap is not None:
            self._tap.close()
            self._tap = None
        if self._model:
            llama_cpp.llama_model_free(self._model)
            self._model = None


class _BatchArrays:
    """The arrays a ``llama_batch`` points to, made once and refilled for every step."""

    def __init__(self, rows: int) -> None:
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows, np.int32)
        self._counts = np.ones(rows, np.int32)
        self._sequences = np.zeros(rows, np.int32)
        self._flags = np.zeros(rows, np.int8)
        pointers = self._sequences.ctypes.data + 4 * np.arange(rows + 1, dtype=np.uint64)
        self._pointers = pointers.astype(np.uint64)
        # ctypes fields have no useful static type.
        self.batch: Any = llama_cpp.llama_batch()
        fields: dict[str, Any] = {name: kind for name, kind, *_ in llama_cpp.llama_batch._fields_}
        for name, array in (
            ("pos", self._positions),
            ("n_seq_id", self._counts),
            ("seq_id", self._pointers),
            ("logits", self._flags),
        ):
            setattr(self.batch, name, ctypes.cast(array.ctypes.data, fields[name]))
        self._token_pointer = ctypes.cast(self._tokens.ctypes.data, fields["token"])
        self._embd_type = fields["embd"]
        self._embeddings: NDArray[np.float32] | None = None

    def fill(self, parts: Sequence[Rows], *, flag_all: bool) -> int:
        """Write the parts one after another; returns the number of rows."""
        start = 0
        self._flags[:] = flag_all
        for part in parts:
            end = start + part.count
            self._positions[start:end] = np.arange(part.position, part.position + part.count)
            self._sequences[start:end] = part.sequence
            if part.tokens:
                self._tokens[start:end] = part.tokens
            self._flags[end - part.outputs : end] = 1
            start = end
        blocks = [part.embeddings for part in parts if part.embeddings is not None]
        if blocks:
            # Held until the next call: libllama reads the rows through the pointer.
            joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
            self._embeddings = np.ascontiguousarray(joined)
            self.batch.embd = ctypes.cast(self._embeddings.ctypes.data, self._embd_type)
            self.batch.token = None
        else:
            self.batch.embd = None
            self.batch.token = self._token_pointer
        self.batch.n_tokens = start
        return start


def _load_model(request: LoadRequest) -> Any:
    llama_ready()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = request.limits.gpu_layers
    recent_errors.clear()
    model = llama_cpp.llama_model_load_from_file(str(request.model_path).encode(), params)
    if not model:
        raise EngineError(f"libllama can't load {request.model_path}: {recent_errors.text()}")
    return model
