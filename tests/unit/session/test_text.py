"""The text of a stream of tokens, against a cut of the whole text."""

from __future__ import annotations

import codecs
import itertools
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.tokenizer import ByteTokenizer
from meshnet.session.text import TextStream

BYTES = ByteTokenizer()
# A small alphabet, so that stop strings begin, break off and overlap all the time.
LETTERS = st.text("abé🙂", max_size=30)
STOPS = st.lists(st.text("abé🙂", min_size=1, max_size=5), max_size=4)


class PiecesTokenizer(ByteTokenizer):
    """Token ``i`` stands for ``pieces[i]``."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces

    def piece(self, token_id: int, *, special: bool) -> bytes:
        return self._pieces[token_id]


def reference_cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """The text before the stop string that ends first, the longest of those."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end - len(stop)], stop
    return text, None


def run(data: bytes, cuts: Sequence[int], stops: Sequence[str]) -> tuple[list[str], str | None]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    pieces = [data[a:b] for a, b in itertools.pairwise(edges)]
    stream = TextStream(PiecesTokenizer(pieces), stops)
    shown = [stream.feed(token) for token in range(len(pieces))]
    return [*shown, stream.finish()], stream.stopped


@given(
    st.one_of(LETTERS.map(str.encode), st.binary(max_size=30)),
    st.lists(st.integers(0, 100), max_size=20),
    STOPS,
)
def test_any_cutting_into_tokens_shows_the_text_up_to_the_first_stop(
    data: bytes, cuts: list[int], stops: list[str]
) -> None:
    shown, stopped = run(data, cuts, stops)
    whole = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    assert ("".join(shown), stopped) == reference_cut(whole, stops)


@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_a_stop_string_can_begin_with(
    text: str, stops: list[str]
) -> None:
    stream = TextStream(BYTES, stops)
    shown = ""
    for end, character in enumerate(text, 1):
        for token in character.encode():
            shown += stream.feed(token)
        if stream.stopped is not None:
            return
        held = text[len(shown) : end]
        assert text[:end] == shown + held
        longest = max(
            (n for stop in stops for n in range(len(stop)) if text[:end].endswith(stop[:n])),
            default=0,
        )
        assert len(held) == longest


@given(st.binary(max_size=12))
def test_a_replacement_character_is_final(data: bytes) -> None:
    # What was shown for a beginning must also begin what is shown for any continuation.
    stream = TextStream(BYTES)
    shown = "".join(map(stream.feed, data))
    for more in (b"", b"a", b"\x80", b"\xf0\x9f"):
        assert (data + more).decode("utf-8", "replace").startswith(shown)


def test_a_character_split_over_tokens_is_shown_once_it_is_whole() -> None:
    stream = TextStream(BYTES)
    assert [stream.feed(token) for token in "é🙂".encode()] == ["", "é", "", "", "", "🙂"]
    assert stream.feed(0xE2) == ""
    assert stream.feed(ord("a")) == "\ufffda"
    assert stream.feed(0xE2) == ""
    assert stream.finish() == ""


def test_nothing_is_shown_after_a_stop() -> None:
    stream = TextStream(BYTES, ["END"])
    assert "".join(map(stream.feed, b"ab EN")) == "ab "
    assert stream.feed(ord("D")) == ""
    assert stream.stopped == "END"
    assert "".join(map(stream.feed, b" more")) + stream.finish() == ""


def test_a_stop_string_may_be_made_of_replacement_characters_and_newlines() -> None:
    stream = TextStream(BYTES, ["\n\ufffd"])
    assert "".join(map(stream.feed, b"a\n\xff")) == "a"
    assert stream.stopped == "\n\ufffd"


def test_control_tokens_show_only_where_asked_for_and_ending_tokens_never() -> None:
    tokens = (BYTES.im_start_id, ord("a"), BYTES.eos_id, BYTES.im_end_id)
    assert "".join(map(TextStream(BYTES).feed, tokens)) == "a"
    assert "".join(map(TextStream(BYTES, special=True).feed, tokens)) == "<|im_start|>a"


def test_a_long_stop_string_costs_little_per_token() -> None:
    stop = "a" * 20_000 + "b"
    stream = TextStream(BYTES, [stop] * 4)
    assert "".join(map(stream.feed, b"a" * 20_001)) == "a"
    assert stream.feed(ord("b")) == ""
    assert stream.stopped == stop


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"stop: .*empty"):
        TextStream(BYTES, ["a", ""])


def test_a_control_token_has_text_only_where_it_is_asked_for() -> None:
    tokens = (BYTES.bos_id, ord("a"), BYTES.im_start_id, BYTES.eos_id)
    stream = TextStream(BYTES, shown={BYTES.im_start_id, BYTES.eos_id})
    assert "".join(map(stream.feed, tokens)) == "a<|im_start|>"
