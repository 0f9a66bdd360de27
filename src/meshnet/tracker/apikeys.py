"""Keys that clients of the HTTP API send, and what each of them may use."""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass, field

from meshnet.domain.errors import InvalidArgumentError

SECRET_PREFIX = "sk-mesh-"  # noqa: S105 - what all secrets begin with is none
MOST = 2**53
"""Above this, JSON readers no longer tell numbers apart."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class KeyLimits:
    """What one key may use; None sets no bound. Raises :class:`InvalidArgumentError`."""

    requests_per_minute: int | None = None
    """Requests with a body; as many may come at once after a quiet minute."""
    tokens_per_day: int | None = None
    """Tokens of prompts and answers within any 24 hours."""
    concurrent_requests: int | None = None
    """Requests with a body that are being answered at once, waiting ones included."""
    weight: int = 1
    """A key of weight 2 gets twice as much of a full chain as a key of weight 1."""

    def __post_init__(self) -> None:
        for name in ("requests_per_minute", "tokens_per_day", "concurrent_requests"):
            bound = getattr(self, name)
            if bound is not None and not 1 <= bound <= MOST:
                raise InvalidArgumentError(name, f"{bound} must be from 1 to {MOST}")
        if not 1 <= self.weight <= 1000:
            raise InvalidArgumentError("weight", f"{self.weight} must be from 1 to 1000")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """What is kept of a key; never its secret, which the client alone has."""

    key_id: str
    name: str
    """What people call it; no two keys have the same."""
    digest: str = field(repr=False)
    """:func:`digest_of` the secret."""
    created_unix: int
    disabled: bool = False
    operator: bool = False
    """Whether it may also look after the network and end others' requests."""
    limits: KeyLimits = KeyLimits()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidArgumentError(
                "name",
                f"{self.name!r} must be up to 64 letters, digits and any of ._@-, "
                "the first of them a letter or a digit",
            )
        if not _DIGEST.fullmatch(self.digest):
            raise InvalidArgumentError("digest", "it must be 64 hexadecimal digits")


def digest_of(secret: str) -> str:
    """SHA-256 of a secret, hexadecimal.

    No salt and no slow function: a secret of :func:`issue` is 256 random bits, and nobody goes
    through these.
    """
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def issue(
    name: str, limits: KeyLimits, now_unix: float, *, operator: bool = False
) -> tuple[ApiKey, str]:
    """A new key and its secret, which is shown once and can't be had again."""
    secret = SECRET_PREFIX + secrets.token_urlsafe(32)
    key_id = f"key-{secrets.token_hex(6)}"
    digest = digest_of(secret)
    return ApiKey(key_id, name, digest, int(now_unix), operator=operator, limits=limits), secret


def fixed_key(secret: str, name: str) -> ApiKey:
    """An operator's key whose secret somebody chose; its id is its name, and it has no limits."""
    return ApiKey(name, name, digest_of(secret), 0, operator=True)
