"""One libllama model and context: the raw computation of batches, without any session rules."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import EngineError, InvalidArgumentError
from meshnet.domain.recipe import FLOAT_KV_TYPES
from meshnet.engine.base import LoadRequest
from meshnet.engine.llamacpp.loading import KEY_PREFIX, load_model, metadata_text
from meshnet.engine.llamacpp.log import recent_errors
from meshnet.engine.llamacpp.tap import BoundaryTap

GGML_TYPES = {
    "f32": 0,
    "f16": 1,
    "q4_0": 2,
    "q4_1": 3,
    "q5_0": 6,
    "q5_1": 7,
    "q8_0": 8,
    "iq4_nl": 20,
    "bf16": 30,
}
"""``enum ggml_type``, of the types that a KV cache may have."""
KV_BLOCK = 32
"""Values in a block of any of the quantised ones."""

_SECTIONS = 4
_ROTATED_BY_SECTIONS = (llama_cpp.LLAMA_ROPE_TYPE_MROPE, llama_cpp.LLAMA_ROPE_TYPE_IMROPE)


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

    def pieces(self, size: int) -> list[Rows]:
        """The rows cut into runs of at most ``size``, with as many outputs in all."""
        made = []
        for start in range(0, self.count, size):
            end = min(start + size, self.count)
            made.append(
                Rows(
                    self.sequence,
                    self.position + start,
                    self.tokens[start:end],
                    None if self.embeddings is None else self.embeddings[start:end],
                    max(0, end - max(start, self.count - self.outputs)),
                )
            )
        return made


class LlamaContext:
    """Loads a file and decodes batches of up to ``max_rows`` rows, ``max_outputs`` with logits."""

    def __init__(self, request: LoadRequest, max_outputs: int) -> None:
        self._model, self._kept = load_model(request)
        self._context: Any = None
        self._tap: BoundaryTap | None = None
        try:
            self.n_embd = int(llama_cpp.llama_model_n_embd(self._model))
            self.n_layer = int(llama_cpp.llama_model_n_layer(self._model))
            self.n_vocab = int(
                llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
            )
            self.weight_bytes = int(llama_cpp.llama_model_size(self._model))
            self._require_whole_blocks(request.recipe.kv_type_k, "k", "key")
            self._require_whole_blocks(request.recipe.kv_type_v, "v", "value")
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
        self._arrays = _BatchArrays(self.max_rows, self._input_form())

    def _input_form(self) -> _InputForm:
        kind = int(llama_cpp.llama_model_rope_type(self._model))
        scale = self.metadata(f"{KEY_PREFIX}input_scale")
        return _InputForm(
            width=int(llama_cpp.llama_model_n_embd_inp(self._model)),
            scale=None if scale is None else float(scale),
            positions=_SECTIONS if kind in _ROTATED_BY_SECTIONS else 1,
        )

    def _require_whole_blocks(self, kv_type: str, letter: str, word: str) -> None:
        """Refuse what would make libllama end the process, or refuse without naming the option."""
        if kv_type in FLOAT_KV_TYPES:
            return
        architecture = self.metadata("general.architecture")
        stated = self.metadata(f"{architecture}.attention.{word}_length")
        heads = int(llama_cpp.llama_model_n_head(self._model))
        width = self.n_embd // max(heads, 1) if stated is None else int(stated)
        if width % KV_BLOCK:
            raise InvalidArgumentError(
                f"cache_type_{letter}",
                f"{kv_type} has blocks of {KV_BLOCK} values, but a head's {word} has {width}; use "
                f"f16",
            )

    def metadata(self, key: str) -> str | None:
        """The text of a metadata value of the loaded file; None if absent."""
        return metadata_text(self._model, key)

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
        logits = llama_cpp.llama_get_logits(self._context).contents
        values = (ctypes.c_float * (outputs * self.n_vocab)).from_address(ctypes.addressof(logits))
        return np.ctypeslib.as_array(values).reshape(outputs, self.n_vocab)

    def truncate(self, sequence: int, position: int) -> None:
        """Drop a sequence's cache from ``position`` on; 0 drops all of it."""
        if not llama_cpp.llama_memory_seq_rm(self._memory, sequence, position, -1):
            raise EngineError(f"this model's cache can't be rolled back to position {position}")

    def copy(self, source: int, target: int) -> None:
        """Make a sequence's cache, which must be empty, equal to another one's.

        With a KV stream per sequence libllama copies the source's whole stream, and does so when it
        next decodes, before that computes anything.
        """
        llama_cpp.llama_memory_seq_cp(self._memory, source, target, -1, -1)

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


@dataclass(frozen=True, slots=True)
class _InputForm:
    """How rows in place of tokens must be given to a model."""

    width: int
    """Values of a row: those of the boundary, then zeros."""
    scale: float | None
    """What they are multiplied by, to undo what libllama multiplies embeddings by."""
    positions: int
    """Positions of a row. libllama repeats a token's position by itself, but not a row's; of text
    the last of several is 0."""

    def write(self, rows: NDArray[np.float32], place: NDArray[np.float32]) -> None:
        """Put the rows in this form into ``place``, of shape (rows, width), zeros behind them."""
        values = place[:, : rows.shape[1]]
        if self.scale is None:
            values[...] = rows
        else:
            np.multiply(rows, np.float32(self.scale), out=values)


class _BatchArrays:
    """The arrays a ``llama_batch`` points to, made once and refilled for every step."""

    def __init__(self, rows: int, form: _InputForm) -> None:
        self._form = form
        self._tokens = np.zeros(rows, np.int32)
        self._positions = np.zeros(rows * form.positions, np.int32)
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
        # Of a single row: NumPy's own ways to one element take longer.
        arrays = (self._tokens, self._positions, self._sequences, self._flags)
        self._cells = tuple(array.data for array in arrays)
        self._inputs = np.zeros((rows, form.width), np.float32)
        self._input_pointer = ctypes.cast(self._inputs.ctypes.data, fields["embd"])

    def fill(self, parts: Sequence[Rows], *, flag_all: bool) -> int:
        """Write the parts one after another; returns the number of rows."""
        start = 0
        for part in parts:
            end = start + part.count
            if end == start + 1:
                self._fill_row(part, start, flag=flag_all or part.outputs > 0)
            else:
                self._fill_rows(part, slice(start, end), flag_all=flag_all)
            if part.embeddings is not None:
                self._form.write(part.embeddings, self._inputs[start:end])
            start = end
        if parts[0].embeddings is None:
            self.batch.embd = None
            self.batch.token = self._token_pointer
        else:
            if self._form.positions > 1:
                self._repeat_positions(start)
            self.batch.embd = self._input_pointer
            self.batch.token = None
        self.batch.n_tokens = start
        return start

    def _fill_row(self, part: Rows, place: int, *, flag: bool) -> None:
        tokens, positions, sequences, flags = self._cells
        if part.embeddings is None:
            tokens[place] = part.tokens[0]
        positions[place] = part.position
        sequences[place] = part.sequence
        flags[place] = flag

    def _fill_rows(self, part: Rows, places: slice, *, flag_all: bool) -> None:
        if part.embeddings is None:
            self._tokens[places] = part.tokens
        self._positions[places] = np.arange(part.position, part.position + part.count)
        self._sequences[places] = part.sequence
        self._flags[places] = flag_all
        self._flags[places.stop - part.outputs : places.stop] = 1

    def _repeat_positions(self, rows: int) -> None:
        planes = self._positions[: rows * self._form.positions].reshape(-1, rows)
        planes[1:-1] = planes[0]
        planes[1:][-1:] = 0
