"""Gets a machine its identity: from a token, or from an earlier time."""

from __future__ import annotations

import shutil
import time

from meshnet.cli.cluster import Membership, StateFolder, machine_name
from meshnet.domain.errors import InvalidArgumentError, NodeError, UnauthenticatedError
from meshnet.domain.ids import Address
from meshnet.tracker.client import TrackerClient, join
from meshnet.transport.certificates import fingerprint_of
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.jointoken import JoinToken
from meshnet.transport.tls import Identity


async def _is_known(tracker: Address, identity: Identity) -> bool:
    """Whether the tracker knows this machine still; one that can't be reached may know it."""
    try:
        async with TrackerClient(tracker, identity) as client:
            await client.status()
    except UnauthenticatedError:
        return False
    except NodeError:
        return True
    return True


async def identity_for(
    state: StateFolder, token_text: str | None, name: str | None
) -> tuple[Address, IdentityFolder, Identity]:
    """The tracker's address, and who this machine is in its cluster.

    Without a token, or with one of the cluster that the machine belongs to, the identity it has is
    used. ``name``: what to call the machine; None: what it was called, at first the host's name.
    Raises ``InvalidArgumentError`` without either, or for a token that is damaged or of
    another cluster, and what :func:`meshnet.tracker.client.join` raises.
    """
    folder = state.node()
    membership, identity = state.membership(), folder.identity()
    called = membership.name if name is None and membership is not None else machine_name(name)
    if token_text is None:
        if membership is None or identity is None:
            raise InvalidArgumentError(
                "token", "this machine belongs to no cluster yet; paste the line of `meshnet up`"
            )
        identity.require_valid(time.time())
        if called != membership.name:
            state.remember(membership.model_copy(update={"name": called}))
        return Address(membership.tracker), folder, identity
    token = JoinToken.parse(token_text)
    if identity is not None and membership is not None:
        if fingerprint_of(identity.authority_pem) != token.fingerprint:
            raise InvalidArgumentError(
                "token",
                f"it is of another cluster than {membership.cluster}, to which this machine "
                f"belongs; delete {state.root} to leave that one, or set MESHNET_STATE",
            )
        if time.time() < identity.expires:
            if await _is_known(token.address, identity):
                changed = {"tracker": token.address, "name": called}
                state.remember(membership.model_copy(update=changed))
                return token.address, folder, identity
            # One that was removed is of no use any more: the machine joins as a new one.
            shutil.rmtree(state.root / "node")
            folder = state.node()
    token.require_valid(time.time())
    reply, authority = await join(token, folder.key(), called)
    identity = folder.keep(reply.certificate.encode(), authority)
    state.remember(Membership(tracker=token.address, cluster=reply.cluster, name=called))
    return token.address, folder, identity
