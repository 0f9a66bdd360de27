import struct

import pytest
from gguf import GGUFValueType
from hypothesis import given
from hypothesis import strategies as st

from meshnet.model.metadata import (
    MetadataValue,
    boolean,
    boolean_array,
    encode_string,
    string,
    uint32,
)


def array(element: GGUFValueType, code: str, items: list[int]) -> MetadataValue:
    raw = struct.pack("<IQ", element, len(items)) + struct.pack(f"<{len(items)}{code}", *items)
    return MetadataValue(GGUFValueType.ARRAY, raw, element, len(items))


@given(st.integers(0, 2**32 - 1), st.text(), st.booleans())
def test_a_value_decodes_to_what_was_encoded(number: int, text: str, flag: bool) -> None:
    assert uint32(number).scalar() == number
    assert string(text).scalar() == text
    assert boolean(flag).scalar() is flag


@given(st.lists(st.booleans()))
def test_an_array_of_flags_decodes_to_what_was_encoded(flags: list[bool]) -> None:
    assert boolean_array(flags).items() == flags


@given(st.lists(st.text(), max_size=8))
def test_texts_of_an_array_come_back_in_order(texts: list[str]) -> None:
    raw = struct.pack("<IQ", GGUFValueType.STRING, len(texts))
    raw += b"".join(map(encode_string, texts))
    value = MetadataValue(GGUFValueType.ARRAY, raw, GGUFValueType.STRING, len(texts))
    assert value.items() == texts


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1), st.data())
def test_picking_keeps_the_element_type_and_the_chosen_order(
    items: list[int], data: st.DataObject
) -> None:
    indices = data.draw(st.lists(st.integers(0, len(items) - 1), min_size=1))
    picked = array(GGUFValueType.INT32, "i", items).pick(indices)
    assert picked.items() == [items[index] for index in indices]
    assert picked.element is GGUFValueType.INT32


def test_encoding_puts_the_type_in_front() -> None:
    assert uint32(7).encode() == struct.pack("<II", GGUFValueType.UINT32, 7)


def test_an_array_has_no_single_value_and_a_single_value_no_items() -> None:
    with pytest.raises(ValueError, match="is an array"):
        boolean_array([True]).scalar()
    with pytest.raises(ValueError, match="is not an array"):
        uint32(1).items()


def test_strings_cannot_be_picked() -> None:
    raw = struct.pack("<IQ", GGUFValueType.STRING, 1) + encode_string("a")
    value = MetadataValue(GGUFValueType.ARRAY, raw, GGUFValueType.STRING, 1)
    with pytest.raises(ValueError, match="not an array of numbers"):
        value.pick([0])


def test_bad_utf8_is_an_error_only_when_decoded() -> None:
    value = MetadataValue(GGUFValueType.STRING, struct.pack("<Q", 1) + b"\xff")
    assert value.encode().endswith(b"\xff")
    with pytest.raises(ValueError, match="utf-8"):
        value.scalar()
