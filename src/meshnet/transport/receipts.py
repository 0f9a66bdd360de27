"""Signs what sessions took, checks what others signed, and keeps receipts until they are fetched.

Only members of a cluster have keys to sign with; without there are no receipts.
"""

from __future__ import annotations

import functools
import hashlib
from collections import Counter, deque
from typing import Final

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError
from meshnet.domain.frames import SessionTerms
from meshnet.domain.receipts import (
    Receipt,
    ReceiptState,
    Seam,
    SeamEnd,
    SeamWork,
    Side,
    Statement,
    signed_bytes,
)
from meshnet.transport.certificates import NODE_ID_DIGITS, read_private_key
from meshnet.transport.tls import Identity

KEPT_RECEIPTS: Final = 4096
"""Receipts that wait to be fetched; of more the oldest go."""
_ALGORITHM: Final = ec.ECDSA(hashes.SHA256())


class Signer:
    """Speaks for the holder of a cluster's key. The key is read once."""

    def __init__(self, identity: Identity) -> None:
        self._key = read_private_key(identity.key_pem)
        public = self._key.public_key().public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self._public = public.hex()
        self.node_id = identity.node_id

    def sign(self, seam: Seam, work: SeamWork, side: Side) -> Statement:
        """What this member says as one side of a seam."""
        signature = self._key.sign(signed_bytes(seam, work, side), _ALGORITHM)
        return Statement(work, self._public, signature.hex())


def require_statement(seam: Seam, statement: Statement, side: Side) -> None:
    """Raise :class:`UnauthenticatedError` unless that side of the seam signed it.

    The key must be the one that the side's node id is made from.
    """
    end = seam.upstream if side is Side.UPSTREAM else seam.downstream
    der, signature = bytes.fromhex(statement.public_key), bytes.fromhex(statement.signature)
    if hashlib.sha256(der).hexdigest()[:NODE_ID_DIGITS] != end.node_id:
        raise UnauthenticatedError(f"the receipt's key isn't that of {end.node_id}, the {side}")
    key = _public_key(der)
    try:
        key.verify(signature, signed_bytes(seam, statement.work, side), _ALGORITHM)
    except InvalidSignature as error:
        raise UnauthenticatedError(f"the receipt isn't signed by {end.node_id}") from error


@functools.lru_cache(maxsize=256)
def _public_key(der: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise UnauthenticatedError(f"the receipt's key can't be read: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise UnauthenticatedError("the receipt's key isn't an EC key on P-256")
    return key


def seam_of(terms: SessionTerms, upstream: SeamEnd) -> Seam | None:
    """The seam between ``upstream`` and the first hop of a session's terms.

    None for one that gets no receipts, since no :class:`Seam` can be like that.
    """
    hop, fingerprint = terms.hops[0], terms.fingerprint
    try:
        return Seam(
            terms.key,
            "" if terms.trace is None else terms.trace.trace_id,
            fingerprint.model_artifact_digest,
            fingerprint.runtime_recipe_digest,
            upstream,
            SeamEnd(hop.node_id, hop.layers),
        )
    except InvalidArgumentError:
        # No fault of the session: it may have any name, and go on without a receipt.
        return None


class ReceiptBook:
    """One member's receipts. Belongs to its event loop."""

    def __init__(self, signer: Signer, kept: int = KEPT_RECEIPTS) -> None:
        self.signer = signer
        self.counts: Counter[ReceiptState] = Counter()
        """Receipts by what they are worth, since the start."""
        self.dropped = 0
        """Those that were never fetched, since there were too many."""
        self._kept = kept
        self._receipts: deque[Receipt] = deque()

    def file(self, receipt: Receipt) -> None:
        """Keep a receipt; each session's, once."""
        self.counts[receipt.state] += 1
        if len(self._receipts) >= self._kept:
            self._receipts.popleft()
            self.dropped += 1
        self._receipts.append(receipt)

    def take(self, at_most: int) -> tuple[Receipt, ...]:
        """Fetch the oldest ones, which aren't kept any longer."""
        return tuple(self._receipts.popleft() for _ in range(min(at_most, len(self._receipts))))
