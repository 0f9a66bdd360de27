"""The one word that lets a machine into a cluster.

It carries where the tracker is, which authority the tracker's certificate must come from, and a
secret that the tracker knows the digest of. It is as good as a password until it expires or is
revoked, and is meant to be pasted into a command on another machine.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import secrets
import struct
import zlib
from dataclasses import dataclass, field

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.transport.address import parse_address
from meshnet.transport.certificates import require_signature, signature_of

PREFIX = "mesh1_"
_HEAD = struct.Struct(">Q32sB")
"""When it expires, the fingerprint, and how long the secret is; then the secret and the address."""
_SUM = struct.Struct(">I")
"""CRC-32 of all before it: finds every error within 32 bits, so every wrong character."""
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
MAX_ADDRESS_BYTES = 300
MAX_EXPIRES = 2**53


def new_secret() -> str:
    """A secret that can't be guessed (144 random bits), of letters that need no quoting."""
    return secrets.token_urlsafe(18)


def secret_digest(secret: str) -> str:
    """What the tracker keeps of a secret: SHA-256 in hexadecimal."""
    return hashlib.sha256(secret.encode()).hexdigest()


def join_proof(key_pem: bytes, secret: str, name: str) -> str:
    """What shows that whoever joins under a name has the private key: a signature, hexadecimal.

    Raises :class:`InvalidArgumentError` ("key").
    """
    return signature_of(key_pem, _proven(secret, name)).hex()


def require_join_proof(public_key_pem: bytes, secret: str, name: str, proof: str) -> None:
    """Raise :class:`UnauthenticatedError` unless the key's holder made this :func:`join_proof`.

    Raises :class:`InvalidArgumentError` ("public_key", "proof") for what can't be read.
    """
    try:
        signature = bytes.fromhex(proof)
    except ValueError as error:
        raise InvalidArgumentError("proof", "it isn't hexadecimal") from error
    require_signature(public_key_pem, signature, _proven(secret, name))


def _proven(secret: str, name: str) -> bytes:
    # Neither part has a line's end in it, and nothing else that a node signs begins like this.
    return f"meshnet join\n{secret}\n{name}\n".encode()


@dataclass(frozen=True, slots=True)
class JoinToken:
    """What a machine needs to join; raises :class:`InvalidArgumentError` ("token")."""

    address: Address
    """``host:port`` of the tracker."""
    fingerprint: str
    """Of the cluster's authority: SHA-256 of its certificate, 64 hexadecimal digits."""
    secret: str = field(repr=False)
    expires: int
    """Unix seconds; the token is refused from then on."""

    def __post_init__(self) -> None:
        parse_address(self.address, "token")
        if len(self.address.encode()) > MAX_ADDRESS_BYTES:
            raise InvalidArgumentError("token", "its address is too long")
        if not _FINGERPRINT.fullmatch(self.fingerprint):
            raise InvalidArgumentError("token", "its fingerprint isn't 64 hexadecimal digits")
        if not _SECRET.fullmatch(self.secret):
            raise InvalidArgumentError("token", "its secret isn't 16 to 64 of A-Z a-z 0-9 _ -")
        if not 0 <= self.expires <= MAX_EXPIRES:
            raise InvalidArgumentError("token", f"it can't expire at {self.expires}")

    def encode(self) -> str:
        """One word, which :meth:`parse` takes."""
        secret = self.secret.encode()
        head = _HEAD.pack(self.expires, bytes.fromhex(self.fingerprint), len(secret))
        body = head + secret + self.address.encode()
        packed = base64.urlsafe_b64encode(body + _SUM.pack(zlib.crc32(body)))
        return PREFIX + packed.rstrip(b"=").decode()

    @staticmethod
    def parse(text: str) -> JoinToken:
        """The token that a word carries; spaces around it don't matter.

        Raises :class:`InvalidArgumentError` ("token") if it isn't whole.
        """
        word = text.strip()
        if not word.startswith(PREFIX):
            raise InvalidArgumentError(
                "token", f"it doesn't begin with {PREFIX}; paste the whole word that was printed"
            )
        token = _unpacked(word.removeprefix(PREFIX))
        # One token has one word: what differs in bits that mean nothing was damaged too.
        if token is None or token.encode() != word:
            raise InvalidArgumentError(
                "token", "it is damaged or cut off; paste the whole word that was printed"
            )
        return token

    def require_valid(self, now: float) -> None:
        """Raise :class:`InvalidArgumentError` ("token") if it has expired at ``now`` (Unix)."""
        if now >= self.expires:
            raise InvalidArgumentError("token", "it has expired; make a new one at the tracker")


def _unpacked(packed: str) -> JoinToken | None:
    """The token, or None if there is none in it."""
    try:
        data = base64.b64decode(packed + "=" * (-len(packed) % 4), b"-_", validate=True)
    except (binascii.Error, ValueError):
        return None
    body, total = data[: -_SUM.size], data[-_SUM.size :]
    if len(body) < _HEAD.size or _SUM.pack(zlib.crc32(body)) != total:
        return None
    expires, fingerprint, secret_bytes = _HEAD.unpack_from(body)
    rest = body[_HEAD.size :]
    try:
        secret, address = rest[:secret_bytes].decode(), rest[secret_bytes:].decode()
        return JoinToken(Address(address), fingerprint.hex(), secret, expires)
    except (UnicodeDecodeError, InvalidArgumentError):
        return None
