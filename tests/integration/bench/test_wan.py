"""The router does what it says: twice the delay there and back, no more than the rate."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.wan.network import Link, Network, network, obstacle
from bench.wan.probe import rate_mbit, round_trips_ms

pytestmark = pytest.mark.skipif(obstacle() is not None, reason=f"needs {obstacle()}")


@pytest.fixture
def net() -> Iterator[Network]:
    with network(2) as made:
        yield made


@pytest.mark.parametrize("delay_ms", [1.0, 20.0])
def test_a_round_trip_takes_twice_the_delay(net: Network, delay_ms: float) -> None:
    net.set(Link(delay_ms))
    times = round_trips_ms(net)
    assert min(times) >= 2 * delay_ms
    assert statistics.median(times) < 2 * delay_ms + 5.0


def test_a_transfer_is_as_fast_as_the_link(net: Network) -> None:
    net.set(Link(1.0, 40.0))
    assert 30.0 < rate_mbit(net, 4.0) < 40.0
    traffic = net.set(Link(0.0))
    # In packets of 1,500 bytes at most, and their acknowledgements.
    assert traffic.bytes > 4_000_000
    assert traffic.packets > 4_000_000 / 1500


def test_a_shorter_delay_holds_from_the_next_packet_on(net: Network) -> None:
    net.set(Link(50.0))
    assert min(round_trips_ms(net, 2)) >= 100.0
    net.set(Link(0.0))
    assert statistics.median(round_trips_ms(net)) < 20.0


def test_the_machines_are_gone_afterwards() -> None:
    with network(3) as made:
        names = made.namespaces
        assert all(Path("/var/run/netns", name).exists() for name in names)
    assert not any(Path("/var/run/netns", name).exists() for name in names)
