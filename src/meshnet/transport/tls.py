"""TLS with a cluster's certificates: for gRPC between nodes, and for the tracker's HTTPS.

Both ends of every connection prove who they are. What a client asks for is a name in the other's
certificate, not its address: a node moves to another address and stays the node it was.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import tempfile
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import grpc

from meshnet.domain.errors import (
    InvalidArgumentError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address, NodeId
from meshnet.transport.address import parse_address
from meshnet.transport.certificates import (
    RENEW_AT,
    PeerIdentity,
    Role,
    fingerprint_of,
    host_name_of,
    peer_named_by,
    read_authority,
    read_certificate,
    read_private_key,
    require_issued_by,
)
from meshnet.transport.failures import no_answer, unreachable

if TYPE_CHECKING:
    from cryptography import x509

LOGGER = logging.getLogger(__name__)
AUTHORITY_PATH = "/authority"
"""Where a tracker gives the authority's certificate (PEM) to anybody, over HTTPS."""
FIRST_CONTACT_SECONDS = 10.0
_HANDSHAKE_PROBLEMS = (
    ("Hostname Verification Check failed", "what is there isn't the node that was expected"),
    (
        "certificate has expired",
        "the certificate there has expired; is this machine's clock right?",
    ),
    (
        "certificate is not yet valid",
        "the certificate there isn't valid yet; are the clocks right?",
    ),
    ("CERTIFICATE_VERIFY_FAILED", "the certificate there isn't of this cluster"),
    ("WRONG_VERSION_NUMBER", "what is there doesn't speak TLS; does it belong to this cluster?"),
)
"""What gRPC and its TLS library say of a server that isn't the right one, and what that means. (One
that refuses this end's certificate ends the connection without a word.)"""
_BEGIN, _END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"


class IdentitySource(Protocol):
    """Gives an identity as it is now; an :class:`Identity` gives itself."""

    def load(self) -> Identity:
        """The identity; raises :class:`InvalidArgumentError` if there is none to be had."""

    @property
    def removed(self) -> Path | None:
        """The file that lists nodes which aren't answered any more; None: there is none."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What its holder proves who it is with: a key, its certificate, and whom it trusts; all PEM.

    Raises :class:`InvalidArgumentError` ("key", "certificate" or "authority") for what can't be
    read, a certificate of another key, or one that another authority issued. Whether it has
    expired isn't looked at: see :meth:`require_valid`.
    """

    key_pem: bytes = field(repr=False)
    certificate_pem: bytes
    authority_pem: bytes

    def __post_init__(self) -> None:
        certificate = self._certificate()
        if read_private_key(self.key_pem).public_key() != certificate.public_key():
            raise InvalidArgumentError("certificate", "it belongs to another key")
        require_issued_by(certificate, read_authority(self.authority_pem))
        peer_named_by(certificate)

    def load(self) -> Identity:
        """Itself, always."""
        return self

    @property
    def removed(self) -> None:
        """Nothing: what is held in memory alone has no list of removed nodes."""

    @property
    def peer(self) -> PeerIdentity:
        """Whom the certificate names."""
        return peer_named_by(self._certificate())

    @property
    def node_id(self) -> NodeId:
        """The holder's id."""
        return self.peer.node_id

    @property
    def role(self) -> Role:
        """What the holder may do."""
        return self.peer.role

    @property
    def expires(self) -> float:
        """When the certificate ends, in Unix seconds."""
        return _unix(self._certificate().not_valid_after_utc)

    def due_for_renewal(self, now: float) -> bool:
        """Whether a new certificate should be asked for at ``now`` (Unix seconds)."""
        certificate = self._certificate()
        begins = _unix(certificate.not_valid_before_utc)
        ends = _unix(certificate.not_valid_after_utc)
        return now >= ends - RENEW_AT * (ends - begins)

    def require_valid(self, now: float) -> None:
        """Raise :class:`InvalidArgumentError` ("certificate") if it isn't valid at ``now``."""
        certificate = self._certificate()
        if now >= _unix(certificate.not_valid_after_utc):
            raise InvalidArgumentError(
                "certificate",
                f"it expired on {certificate.not_valid_after_utc:%Y-%m-%d}; join anew",
            )
        if now < _unix(certificate.not_valid_before_utc):
            raise InvalidArgumentError(
                "certificate",
                f"it isn't valid before {certificate.not_valid_before_utc:%Y-%m-%d}; "
                "is this machine's clock right?",
            )

    def _certificate(self) -> x509.Certificate:
        return read_certificate(self.certificate_pem, "certificate")


def client_context(
    identity: Identity, *, server: Role = Role.TRACKER, node_id: NodeId | None = None
) -> ssl.SSLContext:
    """For clients of a server of the cluster that has this role: both prove who they are.

    The name that is asked for is the role's, or that of the one node that is meant, whatever host
    name the client was told.
    """
    name = server.host_name if node_id is None else host_name_of(node_id)
    context = _context_for(name, identity.authority_pem)
    present(context, identity)
    return context


def joining_context(authority_pem: bytes) -> ssl.SSLContext:
    """For a client that has no certificate yet, of the tracker, whose authority is known."""
    return _context_for(Role.TRACKER.host_name, authority_pem)


def server_context(identity: Identity, *, members_only: bool = False) -> ssl.SSLContext:
    """For a server of ``members_only``, or one that also speaks to those without a certificate.

    A certificate that a client does show must be the cluster's; where none must be shown, that one
    is needed is for the server to require, by what it is asked.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED if members_only else ssl.CERT_OPTIONAL
    context.load_verify_locations(cadata=identity.authority_pem.decode())
    present(context, identity)
    return context


def present(context: ssl.SSLContext, identity: Identity) -> None:
    """Have a context show this identity's certificate; on one in use, to whoever connects then.

    Raises :class:`InvalidArgumentError` ("certificate") if that can't be done.
    """
    # The library takes keys from files only.
    try:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "identity.pem")
            file.touch(mode=0o600)
            file.write_bytes(identity.key_pem + identity.certificate_pem + identity.authority_pem)
            context.load_cert_chain(file)
    except OSError as error:
        # A disk without room, or a key and a certificate that TLS doesn't take.
        raise InvalidArgumentError("certificate", f"it can't be shown: {error}") from error


async def first_contact(
    address: Address, fingerprint: str, timeout_seconds: float = FIRST_CONTACT_SECONDS
) -> bytes:
    """The authority's certificate (PEM), from a tracker that isn't trusted yet.

    It is the right one if its ``fingerprint`` is; with it, :func:`joining_context` proves that the
    tracker is the cluster's. Raises like :func:`authority_at`, and :class:`UnauthenticatedError` if
    it is another cluster's.
    """
    pem = await authority_at(address, timeout_seconds)
    found = fingerprint_of(pem)
    if found != fingerprint:
        raise UnauthenticatedError(
            f"{address}: the tracker there isn't the one that the token is for; its authority's "
            f"fingerprint is {found}, and {fingerprint} was expected",
            address=address,
        )
    return pem


async def authority_at(address: Address, timeout_seconds: float = FIRST_CONTACT_SECONDS) -> bytes:
    """The certificate (PEM) that a tracker gives for its authority's, which may be anybody's.

    It is asked for at :data:`AUTHORITY_PATH`; nothing secret is sent. Raises
    ``NodeUnreachableError`` if no tracker answers there.
    """
    try:
        async with asyncio.timeout(timeout_seconds):
            pem = await _ask_authority(address)
    except TimeoutError:
        raise no_answer(address, timeout_seconds) from None
    except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise unreachable(address, f"no tracker answers there: {error}") from error
    try:
        fingerprint_of(pem)
    except InvalidArgumentError as error:
        raise unreachable(address, "what it gave isn't a certificate") from error
    return pem


async def _ask_authority(address: Address) -> bytes:
    host, port = parse_address(address, "address")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    # What comes is public, and is compared with the fingerprint.
    context.verify_mode = ssl.CERT_NONE
    name = Role.TRACKER.host_name
    reader, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    try:
        writer.write(f"GET {AUTHORITY_PATH} HTTP/1.1\r\nHost: {name}\r\n\r\n".encode())
        answer = await reader.readuntil(_END)
    finally:
        # Taking leave by TLS would outlast the question.
        writer.transport.abort()
    return answer[answer.find(_BEGIN) :] + b"\n"


def handshake_problem(details: str) -> str | None:
    """Why the server isn't the right one, by gRPC's text about a connection that failed.

    None if that wasn't the trouble.
    """
    if not details.startswith("failed to connect"):
        return None
    return next((words for mark, words in _HANDSHAKE_PROBLEMS if mark in details), None)


def server_credentials(source: IdentitySource) -> grpc.ServerCredentials:
    """For a gRPC server that nobody reaches without a certificate of the cluster.

    Each new connection is shown the certificate that ``source`` gives then.
    """
    renewal = _Renewal(source)
    return grpc.dynamic_ssl_server_credentials(
        renewal.first,
        renewal.changed,  # type: ignore[arg-type] # None is for no change, says gRPC itself
        require_client_authentication=True,
    )


def channel_credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For a gRPC channel to a node of the cluster."""
    return grpc.ssl_channel_credentials(
        identity.authority_pem, identity.key_pem, identity.certificate_pem
    )


class _Renewal:
    """Brings a server's certificate up to date; gRPC asks from threads of its own."""

    def __init__(self, source: IdentitySource) -> None:
        self._source = source
        self._shown = source.load()
        self.first = _configuration(self._shown)

    def changed(self) -> grpc.ServerCertificateConfiguration | None:
        """What to show from now on; None for what was shown before."""
        try:
            identity = self._source.load()
        except InvalidArgumentError as error:
            LOGGER.warning("the certificate can't be read, so the old one is kept: %s", error)
            return None
        if identity == self._shown:
            return None
        self._shown = identity
        return _configuration(identity)


def _configuration(identity: Identity) -> grpc.ServerCertificateConfiguration:
    return grpc.ssl_server_certificate_configuration(
        [(identity.key_pem, identity.certificate_pem)], identity.authority_pem
    )


class _NamingContext(ssl.SSLContext):
    """Asks for one name, whatever host a client is told to connect to."""

    server_name: str

    def wrap_bio(
        self,
        incoming: ssl.MemoryBIO,
        outgoing: ssl.MemoryBIO,
        server_side: bool = False,  # noqa: FBT001, FBT002 - the signature is ssl's
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLObject:
        return super().wrap_bio(incoming, outgoing, server_side, self.server_name, session)

    def wrap_socket(
        self,
        sock: socket.socket,
        server_side: bool = False,  # noqa: FBT001, FBT002
        do_handshake_on_connect: bool = True,  # noqa: FBT001, FBT002
        suppress_ragged_eofs: bool = True,  # noqa: FBT001, FBT002
        server_hostname: str | bytes | None = None,
        session: ssl.SSLSession | None = None,
    ) -> ssl.SSLSocket:
        return super().wrap_socket(
            sock,
            server_side,
            do_handshake_on_connect,
            suppress_ragged_eofs,
            self.server_name,
            session,
        )


def _context_for(name: str, authority_pem: bytes) -> _NamingContext:
    read_authority(authority_pem)
    context = _NamingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.server_name = name
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=authority_pem.decode())
    return context


def _unix(moment: datetime) -> float:
    return moment.timestamp()
