"""Tables of replaced characters, sound ones and damaged ones."""

import dataclasses
import struct

import pytest
from gguf import GGUFValueType

from meshnet.domain.errors import ModelFileError
from meshnet.model.charsmap import CHARSMAP, check_charsmap
from meshnet.model.check import check_index
from meshnet.model.gguf import GgufIndex
from meshnet.model.metadata import MetadataValue, string
from tests.support.tiny_gguf import index_of

LEAF, WIDE = 1 << 8, 1 << 9
TEXTS = b"x\0yy\0"


def trie(changes: dict[int, int] | None = None, size: int = 512) -> list[int]:
    """Replaces "a" by the text at 0 and "ab" by that at 2."""
    entries = [1 << 31] * size
    entries[0] = 1 << 10  # base 1
    at_a = 1 ^ ord("a")
    entries[at_a] = ord("a") | LEAF | (at_a ^ 256) << 10  # base 256
    entries[256] = 1 << 31
    at_b = 256 ^ ord("b")
    entries[at_b] = ord("b") | LEAF | (at_b ^ 288) << 10  # base 288
    entries[288] = 1 << 31 | 2
    for place, value in (changes or {}).items():
        entries[place] = value
    return entries


def table(entries: list[int], texts: bytes = TEXTS) -> bytes:
    return struct.pack(f"<I{len(entries)}I", 4 * len(entries), *entries) + texts


def with_table(data: bytes, element: GGUFValueType = GGUFValueType.UINT8) -> GgufIndex:
    index = index_of()
    raw = struct.pack("<IQ", element, len(data)) + data
    value = MetadataValue(GGUFValueType.ARRAY, raw, element, len(data))
    kind = {"tokenizer.ggml.model": string("t5"), CHARSMAP: value}
    return dataclasses.replace(index, metadata={**index.metadata, **kind})


def test_a_sound_table_passes() -> None:
    check_index(with_table(table(trie())))
    check_index(with_table(table([1 << 10] * 256)))
    check_charsmap(with_table(table([], b"\0")))
    check_charsmap(index_of())


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "doesn't fit"),
        (b"\1\0\0", "doesn't fit"),
        (table(trie(), b""), "doesn't fit"),
        (table(trie(size=400)), "beyond its end"),
        (table(trie({0: 1 << 10 << 10})), "beyond its end"),
        (table(trie({0: 2 << 10 | WIDE})), "beyond its end"),
        (table(trie({1 ^ ord("a"): ord("a") | (1 << 10) << 10})), "beyond its end"),
        (table(trie({1 ^ ord("a"): ord("a") | LEAF | (1 << 10) << 10})), "beyond its end"),
        (table(trie({288: 1 << 31 | 5})), "a text that isn't there"),
        (table(trie(), b"x\0yy"), "a text that isn't there"),
        (table(trie(), b"xyy"), "a text that isn't there"),
    ],
)
def test_a_table_that_libllama_would_throw_on_is_refused(data: bytes, problem: str) -> None:
    with pytest.raises(ModelFileError, match=f"charsmap.*{problem}"):
        check_index(with_table(data))


def test_a_table_must_be_bytes() -> None:
    with pytest.raises(ModelFileError, match="array of bytes"):
        check_charsmap(with_table(bytes(8), GGUFValueType.BOOL))
