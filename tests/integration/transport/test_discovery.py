"""Announcements on this machine's loopback interface, which other programs use too."""

import asyncio
import socket
from contextlib import AsyncExitStack
from dataclasses import replace

import ifaddr
import pytest
from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

from meshnet.domain.errors import InvalidArgumentError, NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.transport import discovery
from meshnet.transport.discovery import SERVICE, Announced, announced, browse, reachable_hosts
from meshnet.transport.jointoken import new_secret, secret_digest

LOOPBACK = ("127.0.0.1",)
HERE = (Address("127.0.0.1:7700"),)


def new_fingerprint() -> str:
    """One that nobody else announces."""
    return secret_digest(new_secret())


async def heard_of(*fingerprints: str) -> list[Announced]:
    """What is announced of these; tests that run beside this one announce others."""
    return [it for it in await browse(1.5, LOOPBACK) if it.fingerprint in fingerprints]


async def found(count: int, *fingerprints: str) -> list[Announced]:
    """The same, as soon as it is so many: a record isn't sent again within a second."""
    async with asyncio.timeout(20):
        while len(heard := await heard_of(*fingerprints)) < count:
            pass
    return heard


async def test_trackers_that_announce_themselves_are_found():
    home = Announced("home", new_fingerprint(), (Address("127.0.0.1:7700"), Address("[::1]:7700")))
    work = Announced("büro", new_fingerprint(), HERE, protocol=2)
    long = Announced("ü" * 300, new_fingerprint(), HERE)
    rude = Announced("a\x1b[2J\nb", new_fingerprint(), HERE)
    every = (home, work, long, rude)
    fingerprints = [it.fingerprint for it in every]
    async with AsyncExitStack() as stack:
        starting = (stack.enter_async_context(announced(it, LOOPBACK)) for it in every)
        await asyncio.gather(*starting)
        heard = await found(len(every), *fingerprints)
    assert heard == [
        replace(rude, cluster="a?[2J?b"),
        work,
        home,
        replace(long, cluster="ü" * 100),
    ]


@pytest.mark.slow
async def test_a_tracker_that_ended_is_not_found_any_more():
    what = Announced("home", new_fingerprint(), HERE)
    async with announced(what, LOOPBACK):
        assert await found(1, what.fingerprint) == [what]
        listening = asyncio.create_task(browse(4.0, LOOPBACK))
        await asyncio.sleep(2.0)
    assert what not in await listening
    assert await heard_of(what.fingerprint) == []


async def test_what_no_tracker_announces_is_passed_over():
    good = new_fingerprint()
    places = [socket.inet_aton(it) for it in ("0.0.0.0", "224.0.0.251", "127.0.0.1")]
    said: dict[str, tuple[dict[str | bytes, str | bytes], list[bytes]]] = {
        "good": ({"cluster": "x", "authority": good, "protocol": "1"}, places),
        "nowhere": ({"cluster": "x", "authority": new_fingerprint()}, places[:2]),
        "hint": ({"cluster": "x", "authority": "no hint"}, places),
        "version": ({"authority": new_fingerprint(), "protocol": "two"}, places),
        "bytes": ({b"cluster": b"\xff", b"authority": b"\xff" * 64}, places),
        "nothing": ({}, places),
    }
    bad = {str(told.get("authority")) for told, _ in said.values()} - {good}
    zeroconf = AsyncZeroconf(interfaces=list(LOOPBACK))
    try:
        for label, (told, addresses) in said.items():
            name = f"{label}-{good[:12]}"
            info = ServiceInfo(
                SERVICE,
                f"{name}.{SERVICE}",
                addresses=addresses,
                port=7700,
                properties=told,
                server=f"{name}.local.",
            )
            await zeroconf.async_register_service(info, cooperating_responders=True)
        assert await found(1, good, *bad) == [Announced("x", good, HERE)]
    finally:
        await zeroconf.async_unregister_all_services()
        await zeroconf.async_close()


@pytest.mark.parametrize("trouble", [OSError(19, "No such device"), RuntimeError("No such device")])
async def test_a_machine_that_can_not_speak_by_multicast_says_so(monkeypatch, trouble):
    def fail(**_options: object) -> None:
        raise trouble

    monkeypatch.setattr(discovery, "AsyncZeroconf", fail)
    with pytest.raises(NodeUnreachableError, match=r"multicast.*No such device"):
        async with announced(Announced("home", new_fingerprint(), HERE)):
            pass
    with pytest.raises(NodeUnreachableError, match=r"multicast.*No such device"):
        await browse(0.1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"fingerprint": "a" * 63}, "fingerprint"),
        ({"fingerprint": "A" * 64}, "fingerprint"),
        ({"addresses": ()}, "addresses"),
        ({"addresses": ("nowhere",)}, "addresses"),
    ],
)
def test_what_can_not_be_announced_is_refused_by_field(change, field):
    good = {"cluster": "home", "fingerprint": "a" * 64, "addresses": HERE}
    with pytest.raises(InvalidArgumentError) as caught:
        Announced(**(good | change))
    assert caught.value.details["field"] == field


class Adapter:
    def __init__(self, *ips: object) -> None:
        self.ips = [type("IP", (), {"ip": ip}) for ip in ips]


def test_the_addresses_that_others_may_use_are_those_of_this_machines_interfaces(monkeypatch):
    adapters = [
        Adapter("127.0.0.1", ("::1", 0, 0)),
        Adapter("192.168.1.20", "169.254.9.9", ("fd00::2", 0, 0), ("fe80::1", 0, 4)),
    ]
    monkeypatch.setattr(ifaddr, "get_adapters", lambda: adapters)
    assert reachable_hosts("0.0.0.0") == ("169.254.9.9", "192.168.1.20")
    assert reachable_hosts("::") == ("169.254.9.9", "192.168.1.20", "fd00::2")
    assert reachable_hosts("192.168.1.20") == ("192.168.1.20",)
    assert reachable_hosts("127.0.0.1") == reachable_hosts("::1") == ()
