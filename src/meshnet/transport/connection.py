"""A client's connection to one peer over gRPC, with or without TLS."""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio

from meshnet.domain.ids import Address, NodeId
from meshnet.transport.failures import unreachable
from meshnet.transport.methods import method_path
from meshnet.transport.options import GrpcOptions
from meshnet.transport.tls import Identity, channel_credentials, handshake_problem

RENEWAL_SECONDS = 60.0
"""How long an expired certificate is used before a new one is looked for again."""
RETRY_SECONDS = 0.1
"""How long after a failure gRPC tries anew, at the least."""
POLL_SECONDS = 0.01
"""How often a connection that comes about is looked at."""


class Connection:
    """Made when first used, and again when the certificate that it was made with has expired.

    Streams on a connection outlive the certificate; what begins later needs a valid one.
    """

    def __init__(
        self, address: Address, node_id: NodeId | None, options: GrpcOptions, max_bytes: int
    ) -> None:
        self._address = address
        self._tls = options.tls
        self._arguments = options.channel_arguments(max_bytes, node_id)
        self._channels: list[grpc.aio.Channel] = []
        """The last one is in use, those before it carry streams that began earlier."""
        self._shown: Identity | None = None
        self._expires = float("inf")
        self.closed = False

    def channel(self) -> grpc.aio.Channel:
        """The channel to begin something on; raises ``NodeUnreachableError`` after closing."""
        if self.closed:
            raise unreachable(self._address, "the connection was closed here")
        if not self._channels or time.time() >= self._expires:
            self._renew()
        return self._channels[-1]

    async def recognised(self, timeout_seconds: float) -> None:
        """Wait for a connection, but not for one to become another's than the expected node's.

        gRPC tries anew whatever the reason was. That nobody answers may pass, that somebody else
        does won't: then this raises gRPC's error at once. Returns at once without TLS.
        """
        if self._tls is None:
            return
        ask: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]
        channel = self.channel()
        ask = channel.unary_unary(method_path("Health"))
        while not self.closed:
            state = channel.get_state(try_to_connect=True)
            if state is grpc.ChannelConnectivity.READY:
                return
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                # A call that doesn't wait for a connection fails with the reason why there is none.
                try:
                    await ask(b"", timeout=timeout_seconds)
                except grpc.aio.AioRpcError as error:
                    if handshake_problem(error.details() or "") is not None:
                        raise
                await asyncio.sleep(RETRY_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    async def close(self) -> None:
        """Close what there is; idempotent."""
        self.closed = True
        for channel in self._channels:
            await channel.close()

    def _renew(self) -> None:
        """Make the first channel, or one for another certificate than the last one's."""
        if self._tls is None:
            self._channels.append(grpc.aio.insecure_channel(self._address, options=self._arguments))
            return
        identity = self._tls.load()
        self._expires = max(identity.expires, time.time() + RENEWAL_SECONDS)
        if identity != self._shown:
            self._shown = identity
            credentials = channel_credentials(identity)
            self._channels.append(
                grpc.aio.secure_channel(self._address, credentials, self._arguments)
            )
