"""What a machine keeps of the cluster it belongs to.

Under the state folder::

    cluster.json   where the tracker is, and what the cluster and this machine are called
    node/          this machine's key and certificate
    tracker/       on the machine with the tracker alone: authority, events, and the identities of
                   tracker, gateway and admin
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address
from meshnet.model.files import new_file
from meshnet.transport.address import parse_address
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.tls import Identity

_FILE: Final = "cluster.json"


class Membership(BaseModel):
    """What ``cluster.json`` holds."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tracker: str
    """``host:port``."""
    cluster: str
    name: str
    """What people call this machine."""


class StateFolder:
    """The state folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def tracker(self) -> Path:
        """Where the tracker keeps its own."""
        return self.root / "tracker"

    def node(self) -> IdentityFolder:
        """This machine's identity folder, made if need be."""
        return IdentityFolder(self.root / "node")

    def role(self, name: str) -> IdentityFolder:
        """The identity folder of another role that a process on the tracker's machine has."""
        return IdentityFolder(self.tracker / name)

    def membership(self) -> Membership | None:
        """The cluster that this machine belongs to; None if to none.

        Raises ``InvalidArgumentError`` for a file that can't be read.
        """
        path = self.root / _FILE
        try:
            return Membership.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise InvalidArgumentError("state", f"{path} can't be read: {error}") from error

    def remember(self, membership: Membership) -> None:
        """Write down which cluster this machine belongs to."""
        with new_file(self.root, field="state") as new:
            new.file.write(membership.model_dump_json().encode())
            new.publish(_FILE)

    def credentials(self) -> tuple[Address, Identity]:
        """The tracker's address, and the identity that may do most: an admin's, else the node's.

        Raises ``InvalidArgumentError`` on a machine that belongs to no cluster.
        """
        membership = self.membership()
        admin = self.role("admin") if (self.tracker / "admin").exists() else None
        identity = None if admin is None else admin.identity()
        if identity is None and membership is not None:
            identity = self.node().identity()
        if membership is None or identity is None:
            raise InvalidArgumentError(
                "state",
                f"this machine belongs to no cluster ({self.root} has none); use `meshnet join` "
                "with a token, or `meshnet up` to begin one",
            )
        return Address(membership.tracker), identity


def machine_name(asked: str | None) -> str:
    """What to call this machine: what was asked for, or the host's name as far as it can be used.

    Raises ``InvalidArgumentError`` for a name that was asked for and can't be.
    """
    if asked is not None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", asked):
            raise InvalidArgumentError(
                "name", f"{asked!r}: use letters, digits, '.', '_' and '-', 63 at most"
            )
        return asked
    host = re.sub(r"[^A-Za-z0-9._-]+", "-", socket.gethostname()).strip("-._")[:63]
    return host or "machine"


def own_address(towards: str) -> str:
    """The local address that a connection to ``towards`` (``host:port``) would come from.

    Raises ``InvalidArgumentError`` if there is no way there.
    """
    host, port = parse_address(towards, "address")
    try:
        found = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)
        family, kind, protocol, _, address = found[0]
        with socket.socket(family, kind, protocol) as probe:
            # Sends nothing: it only makes the system choose a way.
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise InvalidArgumentError(
            "address", f"there is no way from here to {host}: {error.strerror or error}"
        ) from error
