"""A model's vocabulary through libllama, loaded without any weights."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import llama_cpp

from meshnet.domain.errors import InternalError, InvalidArgumentError, ModelFileError
from meshnet.engine.llamacpp.library import call_with_stack, llama_ready
from meshnet.engine.llamacpp.log import recent_errors
from meshnet.engine.tokenizer import encode_text, require_token

MAX_TEXT_BYTES: Final = 4 << 20
"""Longest text that is tokenised: more than any context holds."""

_SHALLOW_TEXT_BYTES: Final = 4096
_STACK_BYTES_PER_TEXT_BYTE: Final = 1024
_SPARE_STACK_BYTES: Final = 1 << 20
_NO_TOKEN: Final = -1


class Vocabulary:
    """A ``Tokenizer`` over the vocabulary of a GGUF file. Thread-safe.

    Frees libllama's memory on :meth:`close`, after which only what is cached can be asked for;
    anything else raises :class:`InternalError`.
    """

    def __init__(self, model: Any, path: Path) -> None:
        self._model = model
        self._handle = llama_cpp.llama_model_get_vocab(model)
        self._lock = threading.Lock()
        self._pieces: dict[tuple[int, bool], bytes] = {}
        handle = self._handle
        if llama_cpp.llama_vocab_type(handle) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            raise ModelFileError(
                f"{path} has no vocabulary: it is a slice for a node behind the first; use the "
                f"whole model, or a slice that holds layer 0"
            )
        self.n_vocab: Final[int] = llama_cpp.llama_vocab_n_tokens(handle)
        self.bos_id: Final = _optional(llama_cpp.llama_vocab_bos(handle))
        self.eos_id: Final = _optional(llama_cpp.llama_vocab_eos(handle))
        self.adds_bos: Final[bool] = llama_cpp.llama_vocab_get_add_bos(handle)
        self._require_special(path)
        self._require_bytes(path)
        self.end_of_generation: Final = frozenset(
            token for token in range(self.n_vocab) if llama_cpp.llama_vocab_is_eog(handle, token)
        )
        template = llama_cpp.llama_model_chat_template(model, None)
        self.chat_template: Final = None if template is None else _decode(template)
        self.name: Final = self._metadata("general.name") or path.stem
        architecture = self._metadata("general.architecture")
        # A vocabulary-only load leaves llama_model_n_ctx_train() at 0.
        self.context_length: Final = int(self._metadata(f"{architecture}.context_length") or 0)
        self.bos_token: Final = "" if self.bos_id is None else self.token_text(self.bos_id)
        self.eos_token: Final = "" if self.eos_id is None else self.token_text(self.eos_id)

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the vocabulary of the GGUF file ``path``, a first part or a whole model.

        The caller has checked the header: libllama ends the process over tokens that are there
        twice, among others. Raises :class:`ModelFileError` for everything that can be told here.
        """
        if not path.is_file():
            raise ModelFileError(f"{path} isn't a file; give the path of a GGUF model")
        llama_ready()
        params = llama_cpp.llama_model_default_params()
        params.vocab_only = True
        recent_errors.clear()
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not model:
            raise ModelFileError(
                f"libllama can't load the vocabulary of {path}: {recent_errors.text()}"
            )
        try:
            return cls(model, path)
        except BaseException:
            llama_cpp.llama_model_free(model)
            raise

    def close(self) -> None:
        """Free libllama's memory; idempotent."""
        with self._lock:
            if self._model is not None:
                llama_cpp.llama_model_free(self._model)
                self._model = self._handle = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> tuple[int, ...]:
        """See ``Tokenizer.tokenize``; :class:`InvalidArgumentError` for a text that is too long."""
        data = encode_text(text)
        if len(data) > MAX_TEXT_BYTES:
            raise InvalidArgumentError(
                "text",
                f"it has {len(data)} bytes, more than the {MAX_TEXT_BYTES} that any "
                f"context has room for",
            )
        if len(data) <= _SHALLOW_TEXT_BYTES:
            return self._tokenize(data, add_special, parse_special)
        # Many models' texts are split by std::regex, which recurses once per character of a match:
        # 330 bytes of stack each. A long run of letters or blanks would overflow a usual stack.
        stack = _SPARE_STACK_BYTES + len(data) * _STACK_BYTES_PER_TEXT_BYTE
        return call_with_stack(stack, lambda: self._tokenize(data, add_special, parse_special))

    def _tokenize(self, data: bytes, add_special: bool, parse_special: bool) -> tuple[int, ...]:  # noqa: FBT001
        room = len(data) + 8
        while True:
            tokens = (llama_cpp.llama_token * room)()
            with self._lock:
                count: int = llama_cpp.llama_tokenize(
                    self._open(), data, len(data), tokens, room, add_special, parse_special
                )
            if count >= 0:
                return tuple(tokens[:count])
            room = -count

    def piece(self, token_id: int, *, special: bool) -> bytes:
        """See ``Tokenizer.piece``."""
        known = self._pieces.get((token_id, special))
        if known is not None:
            return known
        require_token(token_id, self.n_vocab)
        room = 64
        while True:
            buffer = ctypes.create_string_buffer(room)
            with self._lock:
                size: int = llama_cpp.llama_token_to_piece(
                    self._open(), token_id, buffer, room, 0, special
                )
            if size >= 0:
                return self._pieces.setdefault((token_id, special), buffer.raw[:size])
            room = -size

    def token_text(self, token_id: int) -> str:
        """The token as the file spells it, for templates; control tokens are spelt out."""
        require_token(token_id, self.n_vocab)
        with self._lock:
            return _decode(llama_cpp.llama_vocab_get_text(self._open(), token_id))

    @property
    def handle(self) -> Any:
        """libllama's own vocabulary; it lives until :meth:`close`."""
        return self._open()

    def _open(self) -> Any:
        if self._handle is None:
            raise InternalError("the vocabulary was closed while in use")
        return self._handle

    def _metadata(self, key: str) -> str | None:
        room = 256
        while True:
            buffer = ctypes.create_string_buffer(room)
            size = llama_cpp.llama_model_meta_val_str(self._model, key.encode(), buffer, room)
            if size < 0:
                return None
            if size < room:
                return _decode(buffer.value)
            room = size + 1

    def _require_special(self, path: Path) -> None:
        """libllama asserts, while it tokenises, that the tokens it is told to add are there."""
        handle = self._handle
        always = llama_cpp.llama_vocab_type(handle) == llama_cpp.LLAMA_VOCAB_TYPE_WPM
        adds_eos = llama_cpp.llama_vocab_get_add_eos(handle)
        for name, added, token in (
            ("bos", always or self.adds_bos, self.bos_id),
            ("eos", adds_eos, self.eos_id),
            ("sep", always, _optional(llama_cpp.llama_vocab_sep(handle))),
        ):
            if added and token is None:
                raise ModelFileError(
                    f"{path}: tokenizer.ggml.add_{name}_token asks for a token that the "
                    f"vocabulary doesn't have"
                )

    def _require_bytes(self, path: Path) -> None:
        """libllama throws, with nobody to catch it, where a byte falls back to no token."""
        if llama_cpp.llama_vocab_type(self._handle) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
            return
        texts = {
            llama_cpp.llama_vocab_get_text(self._handle, token) for token in range(self.n_vocab)
        }
        for byte in range(256):
            if b"<0x%02X>" % byte not in texts and bytes((byte,)) not in texts:
                raise ModelFileError(
                    f"{path}: tokenizer.ggml.tokens has no token for byte 0x{byte:02X}"
                )


def _optional(token: int) -> int | None:
    return None if token == _NO_TOKEN else token


def _decode(text: bytes) -> str:
    return text.decode("utf-8", "replace")
