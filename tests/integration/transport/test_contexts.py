"""TLS contexts at work: who gets through to a server, whom a client believes, and first contact."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from meshnet.domain.errors import NodeUnreachableError, UnauthenticatedError
from meshnet.domain.ids import Address
from meshnet.transport.certificates import Authority, Role, peer_of
from meshnet.transport.tls import (
    AUTHORITY_PATH,
    Identity,
    client_context,
    first_contact,
    joining_context,
    present,
    server_context,
)
from tests.support.identities import AUTHORITY, member

DAY = 86400.0
OTHER = Authority.create("another")
TRACKER = member(role=Role.TRACKER)
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def who_asks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer each request with who sent it, or with the authority's certificate."""
    request = await reader.readuntil(b"\r\n\r\n")
    shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    body = str(peer_of(shown)).encode() if shown else b"nobody"
    if request.startswith(f"GET {AUTHORITY_PATH} ".encode()):
        body = AUTHORITY.certificate_pem
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))
    await writer.drain()
    writer.close()


@asynccontextmanager
async def served(identity: Identity = TRACKER, answer: Answer = who_asks) -> AsyncIterator[Address]:
    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server_context(identity))
    host, port = server.sockets[0].getsockname()
    yield Address(f"{host}:{port}")
    server.close()


async def ask(address: Address, context: ssl.SSLContext) -> str:
    async with httpx.AsyncClient(verify=context, trust_env=False) as client:
        return (await client.get(f"https://{address}/")).text


async def test_both_ends_know_each_other_whatever_the_address_is_called() -> None:
    member_of_it = member(role=Role.ADMIN)
    async with served() as address:
        assert await ask(address, client_context(member_of_it)) == str(member_of_it.peer)
        name = Address(address.replace("127.0.0.1", "localhost"))
        assert await ask(name, client_context(member_of_it)) == str(member_of_it.peer)
        assert await ask(address, joining_context(AUTHORITY.certificate_pem)) == "nobody"


async def test_a_blocking_client_is_as_careful() -> None:
    def get(address: Address, context: ssl.SSLContext) -> str:
        with httpx.Client(verify=context, trust_env=False) as client:
            return client.get(f"https://{address}/").text

    async with served() as address:
        node = member()
        assert await asyncio.to_thread(get, address, client_context(node)) == str(node.peer)
    async with served(member()) as address:
        with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(get, address, client_context(member()))


@pytest.mark.parametrize(
    "server",
    [
        member(),
        member(OTHER, Role.TRACKER),
        member(role=Role.TRACKER, days=1, now=time.time() - 3 * DAY),
    ],
    ids=["not a tracker", "another cluster's", "expired"],
)
async def test_a_server_that_is_not_the_tracker_is_not_believed(server: Identity) -> None:
    async with served(server) as address:
        for context in (client_context(member()), joining_context(AUTHORITY.certificate_pem)):
            with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                await ask(address, context)


@pytest.mark.parametrize(
    "shown",
    [member(OTHER), member(days=1, now=time.time() - 3 * DAY)],
    ids=["another cluster's", "expired"],
)
async def test_a_certificate_that_is_not_good_is_worse_than_none(shown: Identity) -> None:
    context = joining_context(AUTHORITY.certificate_pem)
    present(context, shown)
    async with served() as address:
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError)):
            await ask(address, context)


async def test_a_server_in_use_shows_a_renewed_certificate_to_whoever_connects_then() -> None:
    context = server_context(member(role=Role.TRACKER, days=1, now=time.time() - 3 * DAY))
    server = await asyncio.start_server(who_asks, "127.0.0.1", 0, ssl=context)
    host, port = server.sockets[0].getsockname()
    address, client = Address(f"{host}:{port}"), member()
    with pytest.raises(httpx.ConnectError, match="certificate has expired"):
        await ask(address, client_context(client))
    present(context, TRACKER)
    assert await ask(address, client_context(client)) == str(client.peer)
    server.close()


async def test_first_contact_gives_the_authority_that_the_token_named() -> None:
    async with served() as address:
        assert await first_contact(address, AUTHORITY.fingerprint) == AUTHORITY.certificate_pem


async def test_first_contact_with_another_cluster_is_refused() -> None:
    async with served() as address:
        with pytest.raises(UnauthenticatedError, match="isn't the one that the token is for"):
            await first_contact(address, OTHER.fingerprint)


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


async def _closing(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def _noise(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"-----BEGIN CERTIFICATE-----\nnoise\n-----END CERTIFICATE-----\n")
    writer.close()


async def _endless(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(b"x" * 2**20)
    writer.close()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (_silent, "no answer within 0.5 s"),
        (_closing, "no tracker answers there"),
        (_noise, "isn't a certificate"),
        (_endless, "no tracker answers there"),
    ],
)
async def test_first_contact_with_what_is_no_tracker_says_so(answer: Answer, words: str) -> None:
    async with served(answer=answer) as address:
        with pytest.raises(NodeUnreachableError, match=f"{address}: .*{words}"):
            await first_contact(address, AUTHORITY.fingerprint, 0.5)


async def test_first_contact_with_nobody_or_without_tls_says_so() -> None:
    server = await asyncio.start_server(_noise, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    address = Address(f"{host}:{port}")
    with pytest.raises(NodeUnreachableError, match="no tracker answers there"):
        await first_contact(address, AUTHORITY.fingerprint, 2)
    server.close()
    with pytest.raises(NodeUnreachableError, match="no tracker answers there"):
        await first_contact(address, AUTHORITY.fingerprint, 2)
