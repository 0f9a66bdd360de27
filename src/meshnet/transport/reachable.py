"""Whether a node can be reached at the address that it states."""

from __future__ import annotations

import asyncio
import ssl

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.transport.address import parse_address
from meshnet.transport.certificates import host_name_of
from meshnet.transport.tls import Identity, present


async def trouble(
    address: Address, node_id: NodeId, identity: Identity, timeout_seconds: float
) -> str | None:
    """Why that very node can't be reached; None if it completes a TLS handshake at ``address``.

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
        return str(error) or f"nothing within {timeout_seconds:g} s"
    writer.transport.abort()
    return None
