"""A tracker in another process, as the process with the gateway and the relay uses it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from meshnet.cli.cluster import StateFolder
from meshnet.cli.runtime import alongside
from meshnet.cli.tracker_keeper import TrackerKeeper
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.asking import RelayReply, RelayRequest, RouteReply, RouteRequest
from meshnet.tracker.client import ANSWER_SECONDS, TrackerClient
from meshnet.tracker.pairing_messages import CodeReply, CodeRequest
from meshnet.tracker.receiptmessages import ReceiptsReply, ReceiptsReport
from meshnet.tracker.remoteroutes import RemoteRoutes
from meshnet.transport.certificates import Role, fingerprint_of
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.jointoken import JoinToken

FRESH_SECONDS: Final = 3600.0
"""How often a client takes up the certificate that lies in its folder."""


class FreshClient:
    """A client that shows the certificate of now, which the tracker renews in its folder."""

    def __init__(self, address: Address, folder: IdentityFolder) -> None:
        self._address = address
        self._folder = folder
        self._client = self._opened()

    @property
    def now(self) -> TrackerClient:
        """The client of now."""
        return self._client

    async def keep_fresh(self) -> None:
        """Go on until cancelled."""
        while True:
            await asyncio.sleep(FRESH_SECONDS)
            before, self._client = self._client, self._opened()
            # What was asked over it is answered by then, or never.
            await asyncio.sleep(2 * ANSWER_SECONDS)
            await before.close()

    async def close(self) -> None:
        """End its connections."""
        await self._client.close()

    def _opened(self) -> TrackerClient:
        return TrackerClient(self._address, self._folder.files.load())


class TrackerLink:
    """What the gateway, the relay and the dashboard ask of the tracker.

    Methods raise what :class:`TrackerClient` raises; ``routes`` go on from memory without it.
    """

    def __init__(self, keeper: TrackerKeeper, near: Address, state: StateFolder) -> None:
        """``near``: where this machine reaches the tracker; its certificates are in ``state``."""
        self._keeper = keeper
        self._state = state
        self._admin = FreshClient(near, state.role(Role.ADMIN.value))
        self._gateway = FreshClient(near, state.role(Role.GATEWAY.value))
        self.routes = RemoteRoutes(self, keeper)

    async def route(self, request: RouteRequest) -> RouteReply:
        """A chain for the next generation."""
        return await self._gateway.now.route(request)

    async def send_receipts(self, report: ReceiptsReport) -> ReceiptsReply:
        """What the gateway's generations took."""
        return await self._gateway.now.send_receipts(report)

    async def relay(self, request: RelayRequest) -> RelayReply:
        """Who may wait at the relay."""
        self._keeper.waiting = tuple(map(NodeId, request.waiting))
        return await self._admin.now.relay(request)

    async def status(self) -> msg.StatusReply:
        """The cluster of now."""
        return await self._admin.now.status()

    async def tell(self, node: NodeId, verb: str) -> msg.StatusReply:
        """``drain``, ``undrain`` or ``remove`` a machine."""
        return await self._admin.now.tell(node, verb)

    async def join_line(self) -> str:
        """The command that another machine joins with; makes a token for it."""
        made = await self._admin.now.issue_token(msg.TokenRequest())
        membership = self._state.membership()
        if membership is None:
            raise InvalidArgumentError("state", f"{self._state.root} holds no cluster any more")
        token = JoinToken(
            Address(membership.tracker), self.fingerprint, made.secret, made.expires_unix
        )
        return f"meshnet join {token.encode()}"

    async def new_code(self, request: CodeRequest) -> CodeReply:
        """A pairing code for machines of the local network; the one before is good no more."""
        return await self._admin.now.new_code(request)

    @property
    def fingerprint(self) -> str:
        """Of the cluster's authority."""
        return fingerprint_of(self._state.role(Role.ADMIN.value).files.load().authority_pem)

    async def run(self) -> None:
        """Keep certificates fresh and tell outcomes, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._admin.keep_fresh(), name="admin's certificate")
            group.create_task(self._gateway.keep_fresh(), name="gateway's certificate")
            group.create_task(self.routes.tell(), name="outcomes")

    async def close(self) -> None:
        """End all connections."""
        await self._admin.close()
        await self._gateway.close()


@asynccontextmanager
async def tracker_linked(
    keeper: TrackerKeeper, near: Address, state: StateFolder
) -> AsyncIterator[TrackerLink]:
    """The way to a tracker that serves, for as long as the block runs."""
    async with AsyncExitStack() as stack:
        link = TrackerLink(keeper, near, state)
        stack.push_async_callback(link.close)
        await stack.enter_async_context(alongside(link.run(), "link to the tracker"))
        yield link
