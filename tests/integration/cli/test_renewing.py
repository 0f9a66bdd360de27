"""A server that runs for longer than its certificate lasts."""

import asyncio
from pathlib import Path

import pytest

from meshnet.cli import renewing
from meshnet.cli.giving import SLOWEST_LIMIT, giving
from meshnet.model.cache import SliceCache
from meshnet.transport.address import parse_address
from meshnet.transport.certificates import Authority, Role, new_key, node_id_of, public_key_of
from meshnet.transport.identity_folder import IdentityFolder
from meshnet.transport.tls import Identity, client_context


async def test_a_renewed_certificate_is_shown_to_who_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(renewing, "RENEWAL_CHECK_SECONDS", 0.0)
    authority, folder = Authority.create("test"), IdentityFolder(tmp_path / "node")

    def certified(public: bytes) -> bytes:
        return authority.issue(public, node_id_of(public), role=Role.NODE)

    key = new_key()
    other = Identity(key, certified(public_key_of(key)), authority.certificate_pem)
    own = folder.keep(certified(folder.public_key()), authority.certificate_pem)
    store = SliceCache(tmp_path / "cache").store
    async with giving(store, folder.files, "127.0.0.1", SLOWEST_LIMIT) as given:
        host, port = parse_address(given.address or "", "address")
        context = client_context(other, node_id=own.node_id)

        async def shown() -> bytes:
            _, writer = await asyncio.open_connection(host, port, ssl=context)
            certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
            writer.transport.abort()
            return bytes(certificate)

        before = await shown()
        folder.keep(certified(folder.public_key()), authority.certificate_pem)
        async with asyncio.timeout(10.0):
            while await shown() == before:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
