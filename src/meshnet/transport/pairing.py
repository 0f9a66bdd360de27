"""A short code that two machines share becomes keys that nobody else has.

The exchange is SPAKE2 (Abdalla and Pointcheval, "Simple Password-Based Encrypted Key Exchange
Protocols", 2005) over the group of Ed25519, by the library ``spake2``. Whoever listens, or stands
in between, learns nothing from it that a guess at the code could be compared with; whoever takes
part learns whether one guess was right. Both ends put the fingerprint of the authority that they
see into it, so that one which was shown another's certificate gets other keys.

Each end then proves that it has the keys, the machine first, and the tracker seals what it has for
the machine.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field
from typing import Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from spake2 import SPAKE2_A, SPAKE2_B, SPAKEError  # type: ignore[import-untyped]
from spake2.ed25519_basic import NotOnCurve  # type: ignore[import-untyped]

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError

VERSION = 1
"""Of the exchange; part of what is agreed on, so two of different versions don't agree."""
ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32: no letter that is taken for a digit."""
CODE_LETTERS = 6
"""Of 5 bits each."""
MESSAGE_BYTES = 33
"""Whose it is, and a point in 32 bytes."""
PROOF_BYTES = 32
_READ_AS = str.maketrans("OIL", "011", " -")
_NONCE = bytes(12)
"""The same for all: each exchange has a key of its own, which seals one thing."""


@dataclass(frozen=True, slots=True)
class PairingCode:
    """What people read from one machine and type into another: 30 bits.

    Raises :class:`InvalidArgumentError` ("code").
    """

    letters: str = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.letters) != CODE_LETTERS or not set(self.letters) <= set(ALPHABET):
            raise InvalidArgumentError(
                "code", f"it has {CODE_LETTERS} letters and digits, such as 7F4-K2Q"
            )

    def __str__(self) -> str:
        half = CODE_LETTERS // 2
        return f"{self.letters[:half]}-{self.letters[half:]}"

    @staticmethod
    def new() -> PairingCode:
        """One that can't be foreseen."""
        return PairingCode("".join(secrets.choice(ALPHABET) for _ in range(CODE_LETTERS)))

    @staticmethod
    def parse(text: str) -> PairingCode:
        """The code that was typed: in capitals or not, with or without the dash, O for 0."""
        return PairingCode(text.upper().translate(_READ_AS))


@dataclass(frozen=True, slots=True)
class PairingKeys:
    """What both ends have after the exchange, if both had the same code and authority."""

    machine_proof: bytes
    """What the machine shows."""
    tracker_proof: bytes
    """What the tracker shows then."""
    sealing: bytes = field(repr=False)

    def seal(self, plain: bytes) -> bytes:
        """What the machine alone can read; to be used once."""
        return ChaCha20Poly1305(self.sealing).encrypt(_NONCE, plain, None)

    def unseal(self, sealed: bytes) -> bytes:
        """What the tracker sealed; raises :class:`UnauthenticatedError` for anything else."""
        try:
            return ChaCha20Poly1305(self.sealing).decrypt(_NONCE, sealed, None)
        except InvalidTag as error:
            raise UnauthenticatedError("what came was changed on its way") from error


def same_proof(shown: bytes, expected: bytes) -> bool:
    """Compares in a time that says nothing of where two proofs differ."""
    return hmac.compare_digest(shown, expected)


class PairingSide:
    """One end of one exchange; its message goes to the other end, whose message ends it."""

    def __init__(self, pake: _Pake) -> None:
        self._pake = pake
        self.message = pake.start()
        """:data:`MESSAGE_BYTES` that tell nothing of the code."""

    @staticmethod
    def machine(code: PairingCode, fingerprint: str) -> PairingSide:
        """The end that joins; ``fingerprint`` is that of the authority it was shown."""
        return PairingSide(SPAKE2_A(code.letters.encode(), *_names(fingerprint)))

    @staticmethod
    def tracker(code: PairingCode, fingerprint: str) -> PairingSide:
        """The end that is joined, with its own authority's fingerprint."""
        return PairingSide(SPAKE2_B(code.letters.encode(), *_names(fingerprint)))

    def finish(self, message: bytes) -> PairingKeys:
        """The keys, from the other end's message; once.

        Raises :class:`InvalidArgumentError` ("message") for what the other end never sends.
        """
        if len(message) != MESSAGE_BYTES:
            raise InvalidArgumentError("message", f"it has {len(message)} bytes, not 33")
        try:
            agreed = self._pake.finish(message)
        except (SPAKEError, NotOnCurve, ValueError) as error:
            raise InvalidArgumentError("message", f"no other end sends it: {error}") from error
        return _keys_from(agreed)


class _Pake(Protocol):
    """What the library, which has no types, gives."""

    def start(self) -> bytes: ...

    def finish(self, message: bytes, /) -> bytes: ...


def _names(fingerprint: str) -> tuple[bytes, bytes]:
    begin = f"meshnet pairing {VERSION}"
    return f"{begin} machine".encode(), f"{begin} tracker {fingerprint}".encode()


def _keys_from(agreed: bytes) -> PairingKeys:
    # The library's key is a hash of code, both names and both messages, besides what was agreed on:
    # whatever is made from it holds for this transcript alone.
    made = HKDF(
        algorithm=hashes.SHA256(), length=96, salt=None, info=b"meshnet pairing keys"
    ).derive(agreed)
    return PairingKeys(
        hmac.digest(made[:32], b"machine", hashlib.sha256),
        hmac.digest(made[32:64], b"tracker", hashlib.sha256),
        made[64:],
    )
