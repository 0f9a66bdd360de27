"""Lets machines of the local network find a cluster, and shows the code that they are asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from meshnet.cli.clusterwide import good_for
from meshnet.cli.output import print_note
from meshnet.cli.runtime import alongside
from meshnet.cli.tracker_link import TrackerLink
from meshnet.domain.errors import NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.tracker.pairing_messages import CodeReply, CodeRequest
from meshnet.transport.address import format_address, parse_address
from meshnet.transport.discovery import Announced, announced, reachable_hosts


@asynccontextmanager
async def findable(
    tracker: TrackerLink, listening: Address, cluster: str, *, announce: bool
) -> AsyncIterator[None]:
    """Show a pairing code, and announce the tracker for as long as the block runs.

    ``listening``: what its socket is bound to, by IP address. Does neither on loopback.
    """
    host, port = parse_address(listening, "listen")
    places = tuple(Address(format_address(it, port)) for it in reachable_hosts(host))
    async with AsyncExitStack() as stack:
        if places:
            code = await tracker.new_code(CodeRequest())
            if announce:
                print_note(f"on this network also with: meshnet join ({shown(code)})")
                what = Announced(cluster, tracker.fingerprint, places)
                await stack.enter_async_context(alongside(_announce(what), "announcement"))
            else:
                print_note(f"or with: meshnet join --tracker {places[0]} ({shown(code)})")
        yield


def shown(code: CodeReply) -> str:
    """A code for people to read, and how far it can be used."""
    return f"code {code.code}, {good_for(code)}"


async def _announce(what: Announced) -> None:
    try:
        async with announced(what):
            await asyncio.Event().wait()
    except NodeUnreachableError as error:
        print_note(f"`meshnet join` alone won't find this machine: {error.message}")
