"""A cluster's authority, and members that it certified."""

from __future__ import annotations

from meshnet.transport.certificates import (
    CERTIFICATE_DAYS,
    Authority,
    Role,
    new_key,
    node_id_of,
    public_key_of,
)
from meshnet.transport.tls import Identity

AUTHORITY = Authority.create("tests")


def member(
    authority: Authority = AUTHORITY,
    role: Role = Role.NODE,
    days: float = CERTIFICATE_DAYS,
    now: float | None = None,
) -> Identity:
    """A new member of a cluster, with a key of its own."""
    key = new_key()
    public = public_key_of(key)
    made = authority.issue(public, node_id_of(public), role=role, days=days, now=now)
    return Identity(key, made, authority.certificate_pem)
