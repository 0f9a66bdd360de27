import pytest

from meshnet.cli.plan import parse_link, parse_machine
from meshnet.domain.errors import InvalidArgumentError
from meshnet.tracker.placement import Machine


def test_a_machine_is_read_with_units_and_a_count():
    assert parse_machine("pi:6GiB:12GB/s*2") == [Machine("pi", 6 << 30, 12e9)] * 2
    assert parse_machine("old pc:0.5GiB:800MB/s") == [Machine("old pc", 1 << 29, 8e8)]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "pi",
        "pi:6GiB",
        "pi:6GiB:12GB",
        "pi:lots:12GB/s",
        "pi:6GiB:fast/s",
        "pi:6GiB:12GB/s*0",
        "pi:6GiB:12GB/s*x",
        "pi:6GiB:0GB/s",
        "pi:-1GiB:1GB/s",
    ],
)
def test_a_machine_that_cant_be_read_is_named(text):
    with pytest.raises(InvalidArgumentError, match=r"machine|speed|memory"):
        parse_machine(text)


def test_a_link_is_read_in_bits_or_bytes():
    link = parse_link("1Gbit/s,0.3ms")
    assert link.bytes_per_second == 125e6
    assert link.latency_seconds == pytest.approx(0.0003)
    assert parse_link("10MB/s, 250us").seconds(10_000_000) == pytest.approx(1.00025)


@pytest.mark.parametrize(
    "text", ["", "1Gbit/s", "1Gbit/s,", "1Gbit,1ms", "0bit/s,1ms", "1Gbit/s,1.2.3ms"]
)
def test_a_link_that_cant_be_read_is_named(text):
    with pytest.raises(InvalidArgumentError, match="link"):
        parse_link(text)
