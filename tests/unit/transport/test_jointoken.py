"""A join token survives being pasted, and nothing else."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.transport.jointoken import (
    MAX_EXPIRES,
    PREFIX,
    JoinToken,
    new_secret,
    secret_digest,
)

TOKEN = JoinToken(Address("10.0.0.1:7443"), "0123456789abcdef" * 4, "k" * 24, 1_800_000_000)
WORD = TOKEN.encode()
PASTED = string.ascii_letters + string.digits + string.punctuation

_hosts = st.from_regex(r"[a-z0-9][a-z0-9.-]{0,40}|\[[0-9a-f:]{2,20}\]", fullmatch=True)
tokens = st.builds(
    JoinToken,
    st.builds(lambda host, port: Address(f"{host}:{port}"), _hosts, st.integers(0, 65535)),
    st.binary(min_size=32, max_size=32).map(bytes.hex),
    st.text(string.ascii_letters + string.digits + "-_", min_size=16, max_size=64),
    st.integers(0, MAX_EXPIRES),
)


@given(tokens)
def test_every_token_is_one_word_that_gives_it_back(token: JoinToken) -> None:
    word = token.encode()
    assert word.startswith(PREFIX)
    assert set(word) <= set(string.ascii_letters + string.digits + "-_")
    assert JoinToken.parse(word) == token
    assert JoinToken.parse(f"  {word}\n") == token


@given(tokens, st.data())
def test_every_wrong_character_is_noticed(token: JoinToken, data: st.DataObject) -> None:
    word = token.encode()
    place = data.draw(st.integers(0, len(word) - 1))
    wrong = data.draw(st.sampled_from(PASTED).filter(lambda each: each != word[place]))
    with pytest.raises(InvalidArgumentError, match="token"):
        JoinToken.parse(word[:place] + wrong + word[place + 1 :])


def test_every_wrong_character_of_one_token_is_noticed() -> None:
    alphabet = string.ascii_letters + string.digits + "-_"
    for place, right in enumerate(WORD):
        for wrong in alphabet:
            if wrong != right:
                with pytest.raises(InvalidArgumentError, match="token"):
                    JoinToken.parse(WORD[:place] + wrong + WORD[place + 1 :])


def test_a_token_that_is_cut_off_or_doubled_is_refused() -> None:
    for length in range(len(WORD)):
        with pytest.raises(InvalidArgumentError, match="whole word"):
            JoinToken.parse(WORD[:length])
    for text in (WORD + WORD, WORD + "=", WORD[:20] + " " + WORD[20:], "meshnet"):
        with pytest.raises(InvalidArgumentError, match="whole word"):
            JoinToken.parse(text)


@given(st.text())
def test_no_text_makes_more_than_the_one_error(text: str) -> None:
    for each in (text, PREFIX + text):
        with pytest.raises(InvalidArgumentError, match="token"):
            JoinToken.parse(each)


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": "nowhere"},
        {"address": "h" * 300 + ":1"},
        {"fingerprint": "0" * 63},
        {"fingerprint": "G" * 64},
        {"secret": "short"},
        {"secret": "not url safe!!!!!!!!"},
        {"expires": -1},
        {"expires": MAX_EXPIRES + 1},
    ],
)
def test_a_token_of_wrong_parts_cannot_be_made(wrong: dict[str, object]) -> None:
    parts = {
        "address": TOKEN.address,
        "fingerprint": TOKEN.fingerprint,
        "secret": TOKEN.secret,
        "expires": TOKEN.expires,
    }
    with pytest.raises(InvalidArgumentError, match=r"^token: "):
        JoinToken(**(parts | wrong))  # type: ignore[arg-type]


def test_a_token_is_good_until_it_expires() -> None:
    TOKEN.require_valid(TOKEN.expires - 0.1)
    with pytest.raises(InvalidArgumentError, match="expired"):
        TOKEN.require_valid(TOKEN.expires)


def test_a_secret_is_new_each_time_and_kept_as_a_digest() -> None:
    secret = new_secret()
    assert secret != new_secret()
    assert JoinToken(TOKEN.address, TOKEN.fingerprint, secret, 0).secret == secret
    assert secret_digest(secret) == secret_digest(secret) != secret_digest(new_secret())
    assert secret not in secret_digest(secret)
    assert TOKEN.secret not in repr(TOKEN)
