"""Codes, and what two ends have after an exchange."""

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spake2 import SPAKE2_A, SPAKE2_B  # type: ignore[import-untyped]

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError
from meshnet.transport.pairing import (
    ALPHABET,
    MESSAGE_BYTES,
    PairingCode,
    PairingKeys,
    PairingSide,
    same_proof,
)

CODE = PairingCode("7F4K2Q")
AUTHORITY, OTHER = "a" * 64, "b" * 64


def exchange(machine: PairingSide, tracker: PairingSide) -> tuple[PairingKeys, PairingKeys]:
    return machine.finish(tracker.message), tracker.finish(machine.message)


@given(st.text(ALPHABET, min_size=6, max_size=6))
def test_a_code_is_read_as_it_is_shown_and_as_people_type_it(letters):
    code = PairingCode(letters)
    assert PairingCode.parse(str(code)) == code
    assert PairingCode.parse(f" {letters.lower()} ") == code
    assert PairingCode.parse(letters.replace("0", "o").replace("1", "l")) == code


@pytest.mark.parametrize("text", ["", "7F4-K2", "7F4-K2QQ", "7F4-K2U", "7F4-K2é", "mesh1_AAAA"])
def test_what_is_no_code_is_refused_by_name(text):
    with pytest.raises(InvalidArgumentError, match="code: it has 6 letters"):
        PairingCode.parse(text)


def test_codes_differ_and_are_kept_out_of_logs():
    made = {PairingCode.new() for _ in range(100)}
    assert len(made) == 100
    assert {letter for code in made for letter in code.letters} == set(ALPHABET)
    assert CODE.letters not in repr(CODE)


def test_both_ends_with_the_same_code_and_authority_agree_on_keys_that_are_new_each_time():
    sealed = set()
    for _ in range(2):
        machine, tracker = exchange(
            PairingSide.machine(CODE, AUTHORITY), PairingSide.tracker(CODE, AUTHORITY)
        )
        assert machine == tracker
        assert machine.machine_proof != machine.tracker_proof
        assert machine.unseal(tracker.seal(b"a token")) == b"a token"
        sealed.add(tracker.seal(b"a token"))
    assert len(sealed) == 2


@pytest.mark.parametrize(("code", "authority"), [(PairingCode("7F4K2R"), AUTHORITY), (CODE, OTHER)])
def test_with_another_code_or_certificate_no_proof_and_no_seal_is_right(code, authority):
    machine, tracker = exchange(
        PairingSide.machine(CODE, AUTHORITY), PairingSide.tracker(code, authority)
    )
    assert not same_proof(machine.machine_proof, tracker.machine_proof)
    assert not same_proof(machine.tracker_proof, tracker.tracker_proof)
    with pytest.raises(UnauthenticatedError, match="changed"):
        machine.unseal(tracker.seal(b"a token"))


def test_what_is_sent_and_derived_stays_as_it_is():
    def chance(seed: bytes):
        return lambda count: hashlib.shake_256(seed).digest(count)

    names = (b"meshnet pairing 1 machine", b"meshnet pairing 1 tracker " + AUTHORITY.encode())
    code = CODE.letters.encode()
    machine = PairingSide(SPAKE2_A(code, *names, entropy_f=chance(b"machine")))
    tracker = PairingSide(SPAKE2_B(code, *names, entropy_f=chance(b"tracker")))
    assert machine.message.hex() == (
        "417e190e346b6a80375717dd9d5fc4efcebda6aa205b3b012c6b3b9276e4031c08"
    )
    assert tracker.message.hex() == (
        "42d758fe7bb39a9026a5d7f2b8213b173a8423ca50b168317d0cb64db81aa54e31"
    )
    keys, same = exchange(machine, tracker)
    assert keys == same
    assert keys.machine_proof.hex() == (
        "094f99e4e48455614932902d9901fa15569dc3908e0a9bc1804e17df9a598830"
    )
    assert keys.tracker_proof.hex() == (
        "a095d34c171e152c54e9cc598e835abbe1b5dde5bd1ccbfc964f524005e4bdc7"
    )
    assert keys.seal(b"a token").hex() == "4e2c5b74aa092ffff77d5ab4bfbe994d44d50c72b2eaaa"
    made, again = exchange(
        PairingSide.machine(CODE, AUTHORITY), PairingSide(SPAKE2_B(code, *names))
    )
    assert made == again


def test_a_proof_of_one_exchange_is_none_of_another_with_the_same_message():
    machine = PairingSide.machine(CODE, AUTHORITY)
    keys = [
        PairingSide.tracker(CODE, AUTHORITY).finish(machine.message).machine_proof for _ in range(2)
    ]
    assert keys[0] != keys[1]


def test_an_end_does_not_agree_with_itself_nor_with_its_own_kind():
    def own(side: PairingSide) -> bytes:
        return side.message

    def turned_round(side: PairingSide) -> bytes:
        return b"B" + side.message[1:]

    def of_its_kind(_side: PairingSide) -> bytes:
        return PairingSide.machine(CODE, AUTHORITY).message

    for answer in (own, turned_round, of_its_kind):
        machine = PairingSide.machine(CODE, AUTHORITY)
        with pytest.raises(InvalidArgumentError, match="message"):
            machine.finish(answer(machine))


POINTS_OF_NO_USE = [
    bytes(32),
    (1).to_bytes(32, "little"),
    (2**255 - 20).to_bytes(32, "little"),
    b"\xff" * 32,
    (2).to_bytes(32, "little"),
]
"""Of order 4, 1 and 2, one beyond the field, and one that isn't on the curve."""


@pytest.mark.parametrize("point", POINTS_OF_NO_USE)
def test_points_that_would_give_the_key_away_are_refused(point):
    with pytest.raises(InvalidArgumentError, match="message"):
        PairingSide.tracker(CODE, AUTHORITY).finish(b"A" + point)


@settings(max_examples=20, deadline=None)
@given(st.binary(max_size=40) | st.binary(min_size=32, max_size=32).map(lambda it: b"A" + it))
def test_any_bytes_are_refused_by_name_or_give_keys_of_nobody(message):
    tracker = PairingSide.tracker(CODE, AUTHORITY)
    try:
        keys = tracker.finish(message)
    except InvalidArgumentError as error:
        assert error.details["field"] == "message"
    else:
        assert len(message) == MESSAGE_BYTES
        assert len(keys.machine_proof) == 32
