"""GGUF metadata for tests: the kinds of Python values, and a small but real vocabulary.

The vocabulary is a byte-level BPE one (256 bytes, some merges, ChatML's control tokens), so any
text can be tokenised and comes back the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from gguf import GGUFValueType, TokenType

KeyValue = int | float | str | Sequence[int] | Sequence[float] | Sequence[str]

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = (("h", "e"), ("l", "l"), ("o", "w"), ("Ġ", "t"), ("Ġt", "he"), ("he", "ll"), ("hell", "o"))
CONTROL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
END_OF_TEXT, IM_START, IM_END = range(256 + len(MERGES), 256 + len(MERGES) + 3)
VOCABULARY = 256 + len(MERGES) + len(CONTROL_TOKENS)


def vocabulary_keys(tokens: int = VOCABULARY) -> dict[str, KeyValue]:
    """The tokenizer and the chat template; tokens beyond the vocabulary's are nameless ones."""
    more = [f"<more_{number}>" for number in range(tokens - VOCABULARY)]
    normal = _byte_letters() + ["".join(pair) for pair in MERGES]
    kinds = [TokenType.NORMAL] * len(normal) + [TokenType.CONTROL] * len(CONTROL_TOKENS)
    kinds += [TokenType.NORMAL] * len(more)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [*normal, *CONTROL_TOKENS, *more],
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in MERGES],
        "tokenizer.ggml.bos_token_id": END_OF_TEXT,
        "tokenizer.ggml.eos_token_id": IM_END,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": CHAT_TEMPLATE,
    }


def kinds_of(value: KeyValue) -> tuple[GGUFValueType, GGUFValueType | None]:
    """Kind of a value, and of an array's items: signed there, as converters write them."""
    if isinstance(value, bool):
        return GGUFValueType.BOOL, None
    if isinstance(value, int):
        return GGUFValueType.UINT32, None
    if isinstance(value, float):
        return GGUFValueType.FLOAT32, None
    if isinstance(value, str):
        return GGUFValueType.STRING, None
    element = kinds_of(value[0])[0]
    signed = GGUFValueType.INT32 if element is GGUFValueType.UINT32 else element
    return GGUFValueType.ARRAY, signed


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE (GPT-2) writes for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    substitutes = map(chr, itertools.count(256))
    return [chr(byte) if byte in printable else next(substitutes) for byte in range(256)]
