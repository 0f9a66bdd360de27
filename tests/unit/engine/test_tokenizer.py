"""The byte vocabulary that the fixture engine and the tests of upper layers use."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.engine.tokenizer import ByteTokenizer, Tokenizer

TOKENIZER = ByteTokenizer()
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def test_it_fulfils_the_protocol() -> None:
    tokenizer: Tokenizer = TOKENIZER
    assert tokenizer.n_vocab == 260
    assert tokenizer.end_of_generation == {257, 259}
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<s>", "</s>")


@given(TEXT)
def test_any_text_comes_back_from_its_tokens(text: str) -> None:
    tokens = TOKENIZER.tokenize(text, add_special=True, parse_special=False)
    assert tokens[0] == TOKENIZER.bos_id
    assert b"".join(TOKENIZER.piece(t, special=False) for t in tokens) == text.encode()


def test_control_tokens_are_read_only_where_asked_for() -> None:
    text = "<|im_start|>a<s><|im_end|>"
    plain = TOKENIZER.tokenize(text, add_special=False, parse_special=False)
    assert max(plain) < 256
    assert TOKENIZER.tokenize(text, add_special=False, parse_special=True) == (258, 97, 256, 259)


def test_control_tokens_have_text_only_where_asked_for() -> None:
    names = [TOKENIZER.piece(token, special=True) for token in range(256, 260)]
    assert names == [b"<s>", b"</s>", b"<|im_start|>", b"<|im_end|>"]
    assert {TOKENIZER.piece(token, special=False) for token in range(256, 260)} == {b""}


@pytest.mark.parametrize("token", [-1, 260])
def test_a_token_outside_the_vocabulary_is_refused(token: int) -> None:
    with pytest.raises(InvalidArgumentError, match=f"no token {token}, only 0 to 259"):
        TOKENIZER.piece(token, special=True)


def test_half_of_a_surrogate_pair_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidArgumentError, match="text: character 1 is half"):
        TOKENIZER.tokenize("a\ud83d", add_special=False, parse_special=True)
