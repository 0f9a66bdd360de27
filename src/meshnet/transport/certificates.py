"""Who is who in a cluster: keys, and the certificates that its authority issues for them.

A cluster has one authority, a certificate that signs all others (X.509, RFC 5280; keys are EC
P-256). A certificate names its holder twice in the subject alternative names, as
``<node id>.meshnet`` and ``<role>.meshnet``, so that a client can ask for one holder, or for any
of a role. The node id is made from the key: nobody else can have it.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError
from meshnet.domain.ids import NodeId

DOMAIN = "meshnet"
"""What the names in certificates end with; no name server knows it."""
NODE_ID_DIGITS = 16
_NODE_ID = re.compile(f"[0-9a-f]{{{NODE_ID_DIGITS}}}")
AUTHORITY_DAYS = 3650.0
CERTIFICATE_DAYS = 30.0
SKEW = timedelta(hours=1)
"""Certificates are valid from so long before they were issued, for clocks that are behind."""
RENEW_AT = 1 / 3
"""A certificate is due for renewal when less than this part of its time is left."""


class Role(Enum):
    """What the holder of a certificate may do in the cluster."""

    NODE = "node"
    """Holds layers: serves seams and opens them."""
    GATEWAY = "gateway"
    """Opens sessions at heads."""
    TRACKER = "tracker"
    """Serves the control plane."""
    ADMIN = "admin"
    """Gives orders to the tracker."""

    @property
    def host_name(self) -> str:
        """The name that every certificate of the role carries."""
        return f"{self.value}.{DOMAIN}"


def host_name_of(node_id: NodeId) -> str:
    """The name that the certificate of one node carries.

    Raises :class:`InvalidArgumentError` ("node_id") for an id that :func:`node_id_of` never gives.
    """
    if not _NODE_ID.fullmatch(node_id):
        raise InvalidArgumentError(
            "node_id", f"{node_id[:40]!r} isn't {NODE_ID_DIGITS} hexadecimal digits, as TLS needs"
        )
    return f"{node_id}.{DOMAIN}"


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Whom a certificate names."""

    node_id: NodeId
    role: Role

    def __str__(self) -> str:
        return f"{self.role.value} {self.node_id}"


def new_key() -> bytes:
    """A new private key (EC P-256), as unencrypted PKCS #8 PEM."""
    return _private_pem(ec.generate_private_key(ec.SECP256R1()))


def public_key_of(key_pem: bytes) -> bytes:
    """The public half of a private key, as PEM; raises :class:`InvalidArgumentError` ("key")."""
    return _public_pem(read_private_key(key_pem).public_key())


def signature_of(key_pem: bytes, message: bytes) -> bytes:
    """ECDSA with SHA-256, in DER (RFC 3279); raises :class:`InvalidArgumentError` ("key")."""
    return read_private_key(key_pem).sign(message, ec.ECDSA(hashes.SHA256()))


def require_signature(public_key_pem: bytes, signature: bytes, message: bytes) -> None:
    """Raise :class:`UnauthenticatedError` unless the key's holder signed the message.

    Raises :class:`InvalidArgumentError` ("public_key") for what isn't the PEM of a P-256 key.
    """
    key = _read_public_key(public_key_pem)
    try:
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature as error:
        raise UnauthenticatedError("the signature isn't that of the key's holder") from error


def node_id_of(public_key_pem: bytes) -> NodeId:
    """The id of a key's holder: the first 16 hexadecimal digits of the SHA-256 of the public key.

    The digest is that of its SubjectPublicKeyInfo in DER. Raises :class:`InvalidArgumentError`
    ("public_key") for what isn't the PEM of a P-256 key.
    """
    return _node_id(_read_public_key(public_key_pem))


def peer_of(certificate_der: bytes) -> PeerIdentity:
    """Whom a certificate names; who issued it, and whether it is still valid, isn't looked at.

    Raises :class:`InvalidArgumentError` ("certificate") unless it is a certificate of the form
    that :meth:`Authority.issue` makes.
    """
    try:
        certificate = x509.load_der_x509_certificate(certificate_der)
    except ValueError as error:
        raise InvalidArgumentError("certificate", f"it can't be read: {error}") from error
    return peer_named_by(certificate)


def peer_named_by(certificate: x509.Certificate) -> PeerIdentity:
    """Like :func:`peer_of`, for a certificate that is read already."""
    role = _role(certificate)
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise InvalidArgumentError("certificate", "its key isn't an EC key; no authority issued it")
    node_id = _node_id(key)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
        held = names.value.get_values_for_type(x509.DNSName)
    except (x509.ExtensionNotFound, ValueError) as error:
        raise InvalidArgumentError("certificate", f"it has no names: {error}") from error
    if sorted(held) != sorted([host_name_of(node_id), role.host_name]):
        raise InvalidArgumentError(
            "certificate", f"its names {held} aren't those of {role.value} {node_id}"
        )
    return PeerIdentity(node_id, role)


@dataclass(frozen=True, slots=True)
class Authority:
    """What signs a cluster's certificates. Whoever has the key can let anybody into the cluster.

    Raises :class:`InvalidArgumentError` ("authority" or "key") unless it is an authority's
    certificate with its key.
    """

    certificate_pem: bytes
    key_pem: bytes = field(repr=False)

    def __post_init__(self) -> None:
        key = read_private_key(self.key_pem)
        if read_authority(self.certificate_pem).public_key() != key.public_key():
            raise InvalidArgumentError("key", "it isn't the key of the authority's certificate")

    @staticmethod
    def create(cluster_name: str, *, now: float | None = None) -> Authority:
        """A new authority. ``now``: Unix seconds; None takes the clock's."""
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(cluster_name, "authority")
        builder = _builder(name, name, key.public_key(), now, AUTHORITY_DAYS)
        made = _signed(
            builder,
            key,
            (x509.BasicConstraints(ca=True, path_length=0), True),
            (_key_usage(signs_certificates=True), True),
            (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False),
        )
        return Authority(made, _private_pem(key))

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the certificate in DER, 64 hexadecimal digits: what a join token carries."""
        return fingerprint_of(self.certificate_pem)

    def issue(
        self,
        public_key_pem: bytes,
        node_id: NodeId,
        *,
        role: Role,
        days: float = CERTIFICATE_DAYS,
        now: float | None = None,
    ) -> bytes:
        """A certificate for the holder of a key, as PEM. Issuing again is how one is renewed.

        It ends with the authority's own at the latest. Raises :class:`InvalidArgumentError`
        ("public_key", "node_id", "days", "authority") for a key that can't be read, an id that is
        another key's, a time that isn't positive, and an authority whose own time is over.
        """
        if not 0 < days <= AUTHORITY_DAYS:
            raise InvalidArgumentError("days", f"{days} isn't over 0 to {AUTHORITY_DAYS:g}")
        public_key = _read_public_key(public_key_pem)
        if _node_id(public_key) != node_id:
            raise InvalidArgumentError(
                "node_id", f"{node_id!r} isn't the id of this key, which is {_node_id(public_key)}"
            )
        own = read_authority(self.certificate_pem)
        moment = time.time() if now is None else now
        if moment >= own.not_valid_after_utc.timestamp():
            raise InvalidArgumentError(
                "authority", f"it ended on {own.not_valid_after_utc:%Y-%m-%d}; is the clock right?"
            )
        subject = _subject(node_id, role.value)
        names = [x509.DNSName(host_name_of(node_id)), x509.DNSName(role.host_name)]
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        own_key = read_private_key(self.key_pem)
        return _signed(
            _builder(subject, own.subject, public_key, moment, days, own.not_valid_after_utc),
            own_key,
            (x509.SubjectAlternativeName(names), False),
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.SubjectKeyIdentifier.from_public_key(public_key), False),
            (x509.AuthorityKeyIdentifier.from_issuer_public_key(own_key.public_key()), False),
        )


def fingerprint_of(certificate_pem: bytes) -> str:
    """SHA-256 of a certificate in DER, in hexadecimal; raises for what isn't a certificate."""
    return read_certificate(certificate_pem, "authority").fingerprint(hashes.SHA256()).hex()


def read_certificate(pem: bytes, field_name: str) -> x509.Certificate:
    """The first certificate of a PEM text; raises :class:`InvalidArgumentError`."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise InvalidArgumentError(field_name, f"not a PEM certificate: {error}") from error


def read_authority(pem: bytes) -> x509.Certificate:
    """A certificate that may sign others; raises :class:`InvalidArgumentError` ("authority")."""
    certificate = read_certificate(pem, "authority")
    try:
        constraints = certificate.extensions.get_extension_for_class(x509.BasicConstraints)
        signs = constraints.value.ca
    except (x509.ExtensionNotFound, ValueError):
        signs = False
    if not signs or not isinstance(certificate.public_key(), ec.EllipticCurvePublicKey):
        raise InvalidArgumentError("authority", "the certificate isn't an authority's")
    return certificate


def require_issued_by(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Raise :class:`InvalidArgumentError` ("certificate") if another authority signed it."""
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature) as error:
        raise InvalidArgumentError(
            "certificate", "it wasn't issued by this cluster's authority"
        ) from error


def read_private_key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """A private key; raises :class:`InvalidArgumentError` ("key") for anything else."""
    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("key", f"not an unencrypted PEM key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not _is_p256(key.curve):
        raise InvalidArgumentError("key", "it isn't an EC key on P-256")
    return key


def _read_public_key(pem: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, TypeError) as error:
        raise InvalidArgumentError("public_key", f"not a PEM public key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not _is_p256(key.curve):
        raise InvalidArgumentError("public_key", "it isn't an EC key on P-256")
    return key


def _is_p256(curve: ec.EllipticCurve) -> bool:
    return isinstance(curve, ec.SECP256R1)


def _node_id(key: ec.EllipticCurvePublicKey) -> NodeId:
    digest = hashes.Hash(hashes.SHA256())
    digest.update(
        key.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return NodeId(digest.finalize().hex()[:NODE_ID_DIGITS])


def _role(certificate: x509.Certificate) -> Role:
    units = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)
    try:
        (unit,) = units
        return Role(unit.value)
    except ValueError:
        raise InvalidArgumentError("certificate", "its subject names no role") from None


def _subject(common_name: str, unit: str) -> x509.Name:
    try:
        return x509.Name(
            [
                x509.NameAttribute(NameOID.COMMON_NAME, common_name),
                x509.NameAttribute(NameOID.ORGANIZATION_NAME, DOMAIN),
                x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            ]
        )
    except ValueError as error:
        raise InvalidArgumentError("cluster_name", f"{common_name!r}: {error}") from error


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: float | None,
    days: float,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    issued = datetime.fromtimestamp(time.time() if now is None else now, UTC)
    ends = issued + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(issued - SKEW)
        .not_valid_after(ends if latest is None else min(ends, latest))
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _signed(
    builder: x509.CertificateBuilder,
    key: ec.EllipticCurvePrivateKey,
    *extensions: tuple[x509.ExtensionType, bool],
) -> bytes:
    """The certificate, as PEM, with extensions that are critical or not."""
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _public_pem(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
