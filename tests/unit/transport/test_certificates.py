"""What an authority certifies, whom a certificate names, and what is no identity."""

from __future__ import annotations

import hashlib
import time
from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import NodeId
from meshnet.transport.certificates import (
    SKEW,
    Authority,
    PeerIdentity,
    Role,
    fingerprint_of,
    host_name_of,
    new_key,
    node_id_of,
    peer_of,
    public_key_of,
)
from meshnet.transport.tls import Identity
from tests.support.identities import AUTHORITY, member

NOW = 1_800_000_000.0
DAY = 86400.0
OTHER = Authority.create("another")


def der(pem: bytes) -> bytes:
    return x509.load_pem_x509_certificate(pem).public_bytes(serialization.Encoding.DER)


def test_a_node_id_is_the_beginning_of_the_keys_digest() -> None:
    public = public_key_of(new_key())
    key = serialization.load_pem_public_key(public)
    spki = key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert node_id_of(public) == hashlib.sha256(spki).hexdigest()[:16]


@pytest.mark.parametrize("role", Role)
def test_a_certificate_names_its_holder_and_role(role: Role) -> None:
    identity = member(role=role)
    node_id = node_id_of(public_key_of(identity.key_pem))
    assert peer_of(der(identity.certificate_pem)) == PeerIdentity(node_id, role) == identity.peer
    names = x509.load_pem_x509_certificate(identity.certificate_pem).extensions
    held = names.get_extension_for_class(x509.SubjectAlternativeName).value
    assert held.get_values_for_type(x509.DNSName) == [f"{node_id}.meshnet", f"{role.value}.meshnet"]


def test_a_fingerprint_is_the_digest_of_the_authoritys_certificate() -> None:
    digest = hashlib.sha256(der(AUTHORITY.certificate_pem)).hexdigest()
    assert AUTHORITY.fingerprint == digest == fingerprint_of(AUTHORITY.certificate_pem)
    assert AUTHORITY.fingerprint != OTHER.fingerprint


def test_an_authority_that_was_stored_is_the_same() -> None:
    again = Authority(AUTHORITY.certificate_pem, AUTHORITY.key_pem)
    assert member(again).authority_pem == AUTHORITY.certificate_pem
    with pytest.raises(InvalidArgumentError, match="key: it isn't the key"):
        Authority(AUTHORITY.certificate_pem, OTHER.key_pem)


def test_no_secret_is_in_a_text_about_it() -> None:
    identity = member()
    for holder in (AUTHORITY, identity):
        assert "PRIVATE" not in repr(holder)


def test_only_the_id_of_the_key_is_certified() -> None:
    public = public_key_of(new_key())
    with pytest.raises(InvalidArgumentError, match="node_id"):
        AUTHORITY.issue(public, NodeId("0123456789abcdef"), role=Role.NODE)


@pytest.mark.parametrize("days", [0, -1, float("nan"), 1e9])
def test_a_time_that_cannot_be_is_refused(days: float) -> None:
    public = public_key_of(new_key())
    with pytest.raises(InvalidArgumentError, match="days"):
        AUTHORITY.issue(public, node_id_of(public), role=Role.NODE, days=days)


def test_a_certificate_ends_with_its_authority() -> None:
    old = Authority.create("old", now=NOW - 3649 * DAY)
    assert member(old, days=30, now=NOW).expires == pytest.approx(NOW + DAY, abs=1)


@pytest.mark.parametrize(
    "key",
    [
        b"",
        b"not a key",
        public_key_of(new_key()),
        ec.generate_private_key(ec.SECP384R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        ),
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        ),
    ],
    ids=["nothing", "noise", "public", "other curve", "encrypted"],
)
def test_what_is_no_key_of_ours_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^key: "):
        public_key_of(key)


@pytest.mark.parametrize("curve", ["noise", "private", "ed25519"])
def test_what_is_no_public_key_of_ours_is_not_certified(curve: str) -> None:
    other = ed25519.Ed25519PrivateKey.generate().public_key()
    keys = {
        "noise": b"noise",
        "private": new_key(),
        "ed25519": other.public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    }
    with pytest.raises(InvalidArgumentError, match="public_key"):
        AUTHORITY.issue(keys[curve], NodeId("0123456789abcdef"), role=Role.NODE)


def test_an_identity_is_of_one_key_and_one_authority() -> None:
    one, stranger = member(), member(OTHER)
    with pytest.raises(InvalidArgumentError, match="certificate: it belongs to another key"):
        Identity(new_key(), one.certificate_pem, one.authority_pem)
    with pytest.raises(InvalidArgumentError, match="certificate: it wasn't issued by"):
        Identity(stranger.key_pem, stranger.certificate_pem, AUTHORITY.certificate_pem)
    with pytest.raises(InvalidArgumentError, match="authority: the certificate isn't"):
        Identity(one.key_pem, one.certificate_pem, one.certificate_pem)
    with pytest.raises(InvalidArgumentError, match="certificate: not a PEM certificate"):
        Identity(one.key_pem, b"", one.authority_pem)
    with pytest.raises(InvalidArgumentError, match="certificate: its subject names no role"):
        Identity(AUTHORITY.key_pem, AUTHORITY.certificate_pem, AUTHORITY.certificate_pem)


def test_a_certificate_is_good_for_its_time() -> None:
    identity = member(days=30, now=NOW)
    identity.require_valid(NOW)
    identity.require_valid(NOW - SKEW.total_seconds() + 1)
    identity.require_valid(NOW + 30 * DAY - 1)
    with pytest.raises(InvalidArgumentError, match="certificate: it expired on 2027-02-14"):
        identity.require_valid(NOW + 30 * DAY)
    with pytest.raises(InvalidArgumentError, match="clock"):
        identity.require_valid(NOW - SKEW.total_seconds() - 1)


def test_a_certificate_is_due_for_renewal_in_its_last_third() -> None:
    identity = member(days=30, now=NOW)
    assert not identity.due_for_renewal(NOW + 19.5 * DAY)
    assert identity.due_for_renewal(NOW + 20.5 * DAY)
    assert identity.due_for_renewal(NOW + 40 * DAY)


def test_a_renewed_certificate_names_the_same_node() -> None:
    identity = member(now=NOW)
    public = public_key_of(identity.key_pem)
    again = AUTHORITY.issue(public, identity.node_id, role=identity.role, now=NOW + DAY)
    renewed = Identity(identity.key_pem, again, identity.authority_pem)
    assert renewed.peer == identity.peer
    assert renewed.expires == identity.expires + DAY


def _self_made(names: list[str], unit: str) -> bytes:
    """A certificate that no authority of ours would issue."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.fromtimestamp(time.time() - 9, UTC))
        .not_valid_after(datetime.fromtimestamp(time.time() + 9, UTC))
    )
    if names:
        held = x509.SubjectAlternativeName([x509.DNSName(each) for each in names])
        builder = builder.add_extension(held, critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)


@pytest.mark.parametrize(
    ("names", "unit"),
    [
        ([], "node"),
        (["0123456789abcdef.meshnet", "node.meshnet"], "node"),
        (["node.meshnet"], "node"),
        (["node.meshnet"], "king"),
    ],
    ids=["no names", "another's id", "no id", "no such role"],
)
def test_a_certificate_of_another_form_names_nobody(names: list[str], unit: str) -> None:
    with pytest.raises(InvalidArgumentError, match=r"^certificate: "):
        peer_of(_self_made(names, unit))
    with pytest.raises(InvalidArgumentError, match=r"^certificate: "):
        peer_of(b"\x30\x00")


@pytest.mark.parametrize("node_id", ["node", "", "0123456789ABCDEF", "0123456789abcdef.x", "*"])
def test_only_ids_of_keys_have_a_host_name(node_id: str) -> None:
    with pytest.raises(InvalidArgumentError, match="node_id"):
        host_name_of(NodeId(node_id))


def test_an_authority_issues_nothing_once_its_own_time_is_over() -> None:
    authority = Authority.create("old", now=0.0)  # as on a board that doesn't know the time yet
    public = public_key_of(new_key())
    with pytest.raises(InvalidArgumentError, match=r"^authority: it ended on 1979-12-30"):
        authority.issue(public, node_id_of(public), role=Role.NODE)
