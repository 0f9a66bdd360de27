"""What an OpenAI server should answer, worked out with llama-cpp-python alone, greedily.

Nothing here is shared with the gateway: text is tokenised and put together again by the binding,
stop strings are looked for in the whole text, and tokens are counted by hand.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import llama_cpp
import numpy as np

DEFAULT_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@dataclass(frozen=True, slots=True)
class Expected:
    """An answer with its counts."""

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int


class Reference:
    """The unsplit model on one thread, which computes ``chunk`` tokens of a prompt at a time.

    A row's sums depend on how many rows are computed at a time, and with them now and then a token.
    """

    def __init__(self, path: Path, context_length: int, chunk: int) -> None:
        self._llama: Any = llama_cpp.Llama(
            str(path),
            n_ctx=context_length,
            n_batch=chunk,
            n_ubatch=chunk,
            n_threads=1,
            n_threads_batch=1,
            flash_attn=False,
            verbose=False,
        )
        vocabulary = llama_cpp.llama_model_get_vocab(self._llama.model)
        self._ends = {
            token
            for token in range(self._llama.n_vocab())
            if llama_cpp.llama_vocab_is_eog(vocabulary, token)
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._llama.close()

    def chat(self, turns: Sequence[tuple[str, str]], limit: int, stops: Sequence[str]) -> Expected:
        """The answer to a conversation of (role, content) in ChatML, as SmolLM2 has it."""
        if turns[0][0] != "system":
            turns = [("system", DEFAULT_SYSTEM), *turns]
        said = "".join(f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in turns)
        return self.complete(said + "<|im_start|>assistant\n", limit, stops)

    def complete(self, prompt: str, limit: int, stops: Sequence[str]) -> Expected:
        """How a text goes on."""
        tokens = self._llama.tokenize(prompt.encode(), add_bos=True, special=True)
        self._llama.reset()
        made: list[int] = []
        data = b""
        following = tokens
        while len(made) < limit:
            self._llama.eval(following)
            row = llama_cpp.llama_get_logits(self._llama.ctx)
            token = int(np.ctypeslib.as_array(row, (self._llama.n_vocab(),)).argmax())
            if token in self._ends:
                return Expected(_text(data), "stop", len(tokens), len(made))
            made.append(token)
            following = [token]
            data += self._llama.detokenize([token])
            text = _text(data)
            # The one that ends first; of those, the longest.
            found = [(text.index(it) + len(it), text.index(it)) for it in stops if it in text]
            if found:
                return Expected(text[: min(found)[1]], "stop", len(tokens), len(made))
        return Expected(_text(data), "length", len(tokens), len(made))


def _text(data: bytes) -> str:
    """The text of the bytes, without half a character at their end."""
    return codecs.getincrementaldecoder("utf-8")("replace").decode(data)
