"""Whom a node answers, by the certificate that TLS has verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from meshnet.domain.errors import UnauthenticatedError
from meshnet.transport.admission import Context, RemovedNodes, admitted
from meshnet.transport.certificates import Role
from meshnet.transport.identity_folder import IdentityFolder
from tests.support.identities import AUTHORITY, member

NOBODY = RemovedNodes(None)


class Shown:
    """A call's context, as far as it tells who calls."""

    def __init__(self, *certificates: bytes) -> None:
        self._certificates = certificates

    def auth_context(self) -> dict[str, Any]:
        return {"x509_pem_cert": self._certificates} if self._certificates else {}


def caller(*certificates: bytes) -> Context:
    return cast(Context, Shown(*certificates))


@pytest.mark.parametrize("role", [Role.NODE, Role.GATEWAY])
def test_nodes_and_gateways_are_answered(role: Role) -> None:
    identity = member(role=role)
    assert admitted(caller(identity.certificate_pem), NOBODY) == identity.peer


@pytest.mark.parametrize("role", [Role.TRACKER, Role.ADMIN])
def test_other_members_are_told_that_they_are_not(role: Role) -> None:
    with pytest.raises(UnauthenticatedError, match=f"{role.value} .* may not call a node"):
        admitted(caller(member(role=role).certificate_pem), NOBODY)


def test_a_node_that_was_removed_is_refused_as_soon_as_it_is_listed(tmp_path: Path) -> None:
    one, other = member(), member()
    file = tmp_path / "removed"
    removed = RemovedNodes(file)
    context = caller(one.certificate_pem)
    assert admitted(context, removed) == one.peer
    folder = IdentityFolder(tmp_path)
    for refused in ({one.node_id}, {one.node_id, other.node_id}):
        folder.refuse(refused)
        with pytest.raises(UnauthenticatedError, match=f"node {one.node_id} was removed"):
            admitted(context, removed)
    folder.refuse({other.node_id})
    assert admitted(context, removed) == one.peer
    file.unlink()
    assert admitted(caller(other.certificate_pem), removed) == other.peer


@pytest.mark.parametrize(
    "certificates",
    [(), (b"noise",), (AUTHORITY.certificate_pem,)],
    ids=["none", "noise", "the authority's own"],
)
def test_who_shows_no_members_certificate_is_nobody(certificates: tuple[bytes, ...]) -> None:
    with pytest.raises(UnauthenticatedError, match="no certificate of a node or gateway"):
        admitted(caller(*certificates), NOBODY)
