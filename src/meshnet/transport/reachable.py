"""Whether a node can be reached at the address that it states."""

from __future__ import annotations

import asyncio
import logging
import ssl

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.transport.address import parse_address
from meshnet.transport.certificates import host_name_of
from meshnet.transport.tls import Identity, present

LOGGER = logging.getLogger(__name__)


async def answers(
    address: Address, node_id: NodeId, identity: Identity, timeout_seconds: float
) -> bool:
    """Whether that very node completes a TLS handshake at ``address`` in time.

    A connection alone would say little: a private address may be another machine's here.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity.authority_pem.decode())
    context.set_alpn_protocols(["h2"])
    present(context, identity)
    try:
        host, port = parse_address(address, "address")
        name = host_name_of(node_id)
        async with asyncio.timeout(timeout_seconds):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
    except (OSError, InvalidArgumentError) as error:
        LOGGER.info(
            "node %s doesn't answer at %s: %s",
            node_id,
            address,
            str(error) or f"nothing within {timeout_seconds:g} s",
        )
        return False
    writer.transport.abort()
    return True
