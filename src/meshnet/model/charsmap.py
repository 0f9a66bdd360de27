"""Whether a table of replaced characters can be walked without leaving it.

Vocabularies of the kind ``t5`` normalise a text by ``tokenizer.ggml.precompiled_charsmap``, which
SentencePiece makes: a uint32, the length in bytes of a trie, the trie as an array of uint32, and
texts that end in a zero byte. libllama throws, with nobody to catch it, when a text leads it out of
the trie, or to a replacement that isn't there (``llm_tokenizer_ugm_session::normalize_prefix`` of
``llama-vocab.cpp``). The trie is an XOR-compressed compact double array (Kanda, 2018). Of an entry:

- bits 0 to 7 and 31: the byte that leads to it, with bit 31 clear;
- bit 8: whether a replacement belongs to it, whose offset is in the entry that its base points to;
- bits 10 to 30: its base, times 256 if bit 9 is set. The next entry's index is base XOR byte.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from gguf import GGUFValueType
from numpy.typing import NDArray

from meshnet.model.gguf import GgufIndex

CHARSMAP: Final = "tokenizer.ggml.precompiled_charsmap"
_LENGTH: Final = 4
_ARRAY_HEAD: Final = 12
"""Bytes of an array's element type and count, in front of its items."""
_LABEL: Final = np.uint32((1 << 31) | 0xFF)
_OFFSET: Final = np.uint32((1 << 31) - 1)
_BYTES: Final = np.arange(1, 256, dtype=np.uint32)
_AT_ONCE: Final = 4096
"""Entries that are followed at a time, so that a large table takes little memory."""


def check_charsmap(index: GgufIndex) -> None:
    """Raise :class:`~meshnet.domain.errors.ModelFileError` unless every text stays in the table.

    A model without one passes.
    """
    value = index.metadata.get(CHARSMAP)
    if value is None:
        return
    if value.element not in (GGUFValueType.INT8, GGUFValueType.UINT8):
        raise index.error(CHARSMAP, "must be an array of bytes")
    problem = _problem(value.raw[_ARRAY_HEAD:])
    if problem:
        raise index.error(CHARSMAP, f"{problem}; the table is damaged")


def _problem(data: bytes) -> str:
    """What is wrong with the table; empty if nothing is."""
    length = int.from_bytes(data[:_LENGTH], "little")
    if len(data) < _LENGTH or _LENGTH + length >= len(data):
        return f"its trie of {length} bytes doesn't fit into {len(data)}"
    trie = np.frombuffer(data, "<u4", length // _LENGTH, _LENGTH)
    if not len(trie):
        return ""
    # A replacement must end before the table does.
    ends = data.rfind(b"\0", _LENGTH + length) - _LENGTH - length
    seen = np.zeros(len(trie), np.bool_)
    waiting = _bases(trie[:1])
    while len(waiting):
        # The largest index that a byte leads to; the last of a block of 256.
        if int(waiting.max() | np.uint32(0xFF)) >= len(trie):
            return "its trie leads beyond its end"
        seen[waiting] = True
        found = []
        for start in range(0, len(waiting), _AT_ONCE):
            indices = waiting[start : start + _AT_ONCE, None] ^ _BYTES
            entries = trie[indices]
            followed = (entries & _LABEL) == _BYTES
            indices, entries = indices[followed], entries[followed]
            bases = indices ^ _bases(entries)
            values = bases[(entries >> np.uint32(8)) & np.uint32(1) == 1]
            if len(values) and int(values.max()) >= len(trie):
                return "its trie leads beyond its end"
            if (trie[values] & _OFFSET > ends).any():
                return "its trie leads to a text that isn't there"
            found.append(bases)
        following = np.unique(np.concatenate(found))
        inside = following[following < len(trie)]
        waiting = np.concatenate([inside[~seen[inside]], following[following >= len(trie)]])
    return ""


def _bases(entries: NDArray[np.uint32]) -> NDArray[np.uint32]:
    return (entries >> np.uint32(10)) << ((entries & np.uint32(1 << 9)) >> np.uint32(6))
