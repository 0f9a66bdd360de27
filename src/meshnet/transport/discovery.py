"""Trackers say on the local network where they are, and machines that look for one hear it.

Multicast DNS (RFC 6762) with service discovery (RFC 6763). Anybody on the network can announce
anything: what is heard says where one may ask, and proves nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

import ifaddr
from zeroconf import (
    DNSQuestionType,
    Error,
    InterfaceChoice,
    IPVersion,
    ServiceInfo,
    ServiceStateChange,
    Zeroconf,
)
from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf

from meshnet.domain.errors import InvalidArgumentError, NodeUnreachableError
from meshnet.domain.ids import Address
from meshnet.domain.printable import printable
from meshnet.transport.address import format_address, parse_address

LOGGER: Final = logging.getLogger(__name__)
SERVICE: Final = "_meshnet._tcp.local."
PROTOCOL: Final = 1
"""Of joining, as announced. A machine that speaks another says so rather than try."""
MOST_FOUND: Final = 50
"""Announcements that are looked at; a network with more has other troubles."""
MOST_ADDRESSES: Final = 8
"""Of one tracker."""
DETAILS_SECONDS: Final = 2.0
"""How long an announced name has to say where it is."""
GOODBYE_SECONDS: Final = 2.0
_TO_ALL: Final = DNSQuestionType.QM
"""Answers come by multicast: one for this program alone may reach another that shares the port."""
_NAME_BYTES: Final = 200
"""An entry of such a record has 255 at most, its key included."""

Interfaces = Sequence[str] | None
"""Addresses of the interfaces to use; None: all."""


@dataclass(frozen=True, slots=True)
class Announced:
    """What a tracker says of itself; raises :class:`InvalidArgumentError` naming the field."""

    cluster: str
    """What the cluster is called."""
    fingerprint: str
    """Of its authority, 64 hexadecimal digits; a hint, which anybody can copy."""
    addresses: tuple[Address, ...]
    """``host:port`` with an IP address, one or several of the same machine."""
    protocol: int = PROTOCOL

    def __post_init__(self) -> None:
        if len(self.fingerprint) != 64 or not set(self.fingerprint) <= set("0123456789abcdef"):
            raise InvalidArgumentError("fingerprint", "it isn't 64 hexadecimal digits")
        if not self.addresses:
            raise InvalidArgumentError("addresses", "there is none")
        for address in self.addresses:
            parse_address(address, "addresses")


def reachable_hosts(listening: str) -> tuple[str, ...]:
    """The IP addresses at which other machines may reach what listens at this one.

    Those of all interfaces for ``0.0.0.0`` and ``::``, without loopback and IPv6's link-local
    ones; none for a loopback address.
    """
    host = ipaddress.ip_address(listening)
    if host.is_unspecified:
        # Those of IPv6 come with a flow and a scope.
        every = (ip.ip for adapter in ifaddr.get_adapters() for ip in adapter.ips)
        found = [
            it if isinstance(it, str) else it[0]
            for it in every
            if isinstance(it, str) or host.version == 6
        ]
    else:
        found = [listening]
    usable = {it for it in found if _is_usable(it) and not ipaddress.ip_address(it).is_loopback}
    return tuple(sorted(usable))


@asynccontextmanager
async def announced(what: Announced, interfaces: Interfaces = None) -> AsyncIterator[None]:
    """Announce a tracker for as long as the block runs, and say goodbye at its end.

    Takes about a second to begin. Raises :class:`NodeUnreachableError` where this machine can't
    speak multicast DNS.
    """
    zeroconf = _opened(interfaces)
    try:
        try:
            sent = await zeroconf.async_register_service(_service(what), allow_name_change=True)
            await sent
        except (OSError, Error) as error:
            raise _no_multicast(error) from error
        yield
    finally:
        await _closed(zeroconf)


async def browse(seconds: float, interfaces: Interfaces = None) -> tuple[Announced, ...]:
    """The trackers that are heard of within ``seconds``, sorted by name.

    Raises :class:`NodeUnreachableError` where this machine can't speak multicast DNS.
    """
    zeroconf = _opened(interfaces)
    names: set[str] = set()

    # The library passes these by name.
    def heard(
        zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        if state_change is ServiceStateChange.Removed:
            names.discard(name)
        elif len(names) < MOST_FOUND:
            names.add(name)

    try:
        browser = AsyncServiceBrowser(
            zeroconf.zeroconf, [SERVICE], handlers=[heard], question_type=_TO_ALL
        )
        try:
            await asyncio.sleep(seconds)
        finally:
            await browser.async_cancel()
        found = await asyncio.gather(*(_details(zeroconf, name) for name in sorted(names)))
    except (OSError, Error) as error:
        raise _no_multicast(error) from error
    finally:
        await _closed(zeroconf)
    unique = {(it.cluster, it.fingerprint, it.addresses): it for it in found if it is not None}
    return tuple(unique[key] for key in sorted(unique))


async def _details(zeroconf: AsyncZeroconf, name: str) -> Announced | None:
    """What is announced under a name; None for what no tracker says."""
    try:
        service = AsyncServiceInfo(SERVICE, name)
        wait = DETAILS_SECONDS * 1e3
        if not await service.async_request(zeroconf.zeroconf, wait, _TO_ALL):
            return None
        return _told_by(service)
    except (InvalidArgumentError, ValueError, Error) as error:
        LOGGER.debug("%r announces something else: %s", name, error)
        return None


def _told_by(service: AsyncServiceInfo) -> Announced:
    told = service.decoded_properties
    hosts = service.parsed_addresses(IPVersion.V4Only) + service.parsed_addresses(IPVersion.V6Only)
    port = service.port or 0
    return Announced(
        printable(told.get("cluster") or "", _NAME_BYTES),
        told.get("authority") or "",
        tuple(Address(format_address(it, port)) for it in hosts[:MOST_ADDRESSES] if _is_usable(it)),
        int(told.get("protocol") or 0),
    )


def _service(what: Announced) -> ServiceInfo:
    places = [parse_address(address, "addresses") for address in what.addresses]
    label = what.fingerprint[:16]
    return ServiceInfo(
        SERVICE,
        f"{label}.{SERVICE}",
        parsed_addresses=[host for host, _ in places],
        port=places[0][1],
        properties={
            "cluster": what.cluster.encode()[:_NAME_BYTES].decode(errors="ignore"),
            "authority": what.fingerprint,
            "protocol": str(what.protocol),
        },
        # A name of its own: the machine's may be announced by others, with other addresses.
        server=f"meshnet-{label}.local.",
    )


def _is_usable(host: str) -> bool:
    address = ipaddress.ip_address(host)
    unreachable = address.is_unspecified or address.is_multicast
    return not unreachable and not (address.version == 6 and address.is_link_local)


def _opened(interfaces: Interfaces) -> AsyncZeroconf:
    wanted = InterfaceChoice.All if interfaces is None else list(interfaces)
    try:
        return AsyncZeroconf(interfaces=wanted, ip_version=IPVersion.V4Only)
    except (OSError, RuntimeError, Error) as error:
        # The library's word for a machine without a network is a RuntimeError.
        raise _no_multicast(error) from error


async def _closed(zeroconf: AsyncZeroconf) -> None:
    try:
        async with asyncio.timeout(GOODBYE_SECONDS):
            await zeroconf.async_unregister_all_services()
            await zeroconf.async_close()
    except TimeoutError:
        LOGGER.warning("multicast DNS didn't end within %g s", GOODBYE_SECONDS)


def _no_multicast(error: Exception) -> NodeUnreachableError:
    return NodeUnreachableError(
        f"this machine can't use multicast DNS: {str(error) or type(error).__name__}"
    )
