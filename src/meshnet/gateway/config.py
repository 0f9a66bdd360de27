"""How the gateway is reached and what a client may ask of it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field

from meshnet.domain.errors import InvalidArgumentError
from meshnet.gateway.fair import QueueBounds
from meshnet.session.service import DEFAULT_TIMEOUT_SECONDS

_HOST_HEADER = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can be reached from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of one gateway; raises :class:`InvalidArgumentError` naming the field.

    A host that other machines can reach needs an ``api_key``, ``kept_keys``, or ``open_access`` to
    say that everybody may use the models.
    """

    host: str = "127.0.0.1"
    """Where the server listens: a name or an address."""
    api_key: str | None = field(default=None, repr=False)
    """Clients must send it as ``Authorization: Bearer <key>``; None asks for no key."""
    kept_keys: bool = False
    """Clients must send a key of those that are kept, which ``create_app`` is given."""
    open_access: bool = False
    """Allow a reachable host without a key."""
    allowed_hosts: tuple[str, ...] = ()
    """Names, without port, that a ``Host`` header may hold. On a loopback host they add to the
    loopback names; elsewhere, an empty tuple allows every name."""
    max_body_bytes: int = 8 * 2**20
    """Largest request body."""
    max_requests: int = 256
    """Requests for answers that are served at once; one more is told to come back later."""
    queue: QueueBounds = field(default_factory=QueueBounds)
    """Those of them that may wait until the nodes have room."""
    aliases: tuple[tuple[str, str], ...] = ()
    """Other names of models, each with the model's own."""
    generation_timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    """A generation that takes longer fails."""
    client_timeout_seconds: float = 30.0
    """How long a client may take to send its body, or to accept the next piece of an answer."""
    health_timeout_seconds: float = 5.0
    """How long the nodes may take to answer ``GET /health``."""

    def __post_init__(self) -> None:
        if not self.host:
            raise InvalidArgumentError("host", "it is empty; 127.0.0.1 serves this machine alone")
        if self.api_key is not None and not re.fullmatch(r"[!-~]+", self.api_key):
            raise InvalidArgumentError(
                "api_key", "it must be printable ASCII without spaces, one character at least"
            )
        if not (is_loopback(self.host) or self.api_key or self.kept_keys or self.open_access):
            raise InvalidArgumentError(
                "host",
                f"{self.host} can be reached from other machines; "
                "set an api_key, make keys with `meshnet keys create`, or set open_access to let "
                "everybody in",
            )
        for name in self.allowed_hosts:
            match = _HOST_HEADER.fullmatch(name)
            if match is None or match[2]:
                raise InvalidArgumentError(
                    "allowed_hosts", f"{name!r} is not a host name or address without a port"
                )
        for bound in ("max_body_bytes", "max_requests"):
            if getattr(self, bound) < 1:
                raise InvalidArgumentError(bound, f"{getattr(self, bound)} is less than 1")
        for timeout in (
            "generation_timeout_seconds",
            "client_timeout_seconds",
            "health_timeout_seconds",
        ):
            seconds = getattr(self, timeout)
            if not 0 < seconds < float("inf"):
                raise InvalidArgumentError(timeout, f"{seconds} must be positive and finite")

    def accepts_host(self, header: str) -> bool:
        """Whether a request with this ``Host`` header may come in.

        A page on the web can point its own name at 127.0.0.1 and so reach a loopback server from
        the user's browser; the browser still sends the page's name, which is refused here.
        """
        match = _HOST_HEADER.fullmatch(header)
        if match is None:
            return False
        name = match[1].lower().removesuffix(".")
        if name in {allowed.lower() for allowed in self.allowed_hosts}:
            return True
        if is_loopback(self.host):
            return is_loopback(name.strip("[]"))
        return not self.allowed_hosts
