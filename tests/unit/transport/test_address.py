"""Reading ``host:port``."""

from __future__ import annotations

import pytest

from meshnet.domain.errors import InvalidArgumentError
from meshnet.transport.address import format_address, parse_address


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:50051", "localhost", 50051),
        ("10.0.0.1:0", "10.0.0.1", 0),
        ("[::1]:65535", "::1", 65535),
        ("[fe80::1%eth0]:1", "fe80::1%eth0", 1),
        ("node-1.lan:80", "node-1.lan", 80),
    ],
)
def test_an_address_has_a_host_and_a_port(text: str, host: str, port: int) -> None:
    assert parse_address(text, "listen") == (host, port)
    assert format_address(host, port) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "localhost",
        "localhost:",
        ":1",
        "a:b",
        "a:65536",
        "a:-1",
        "::1:5",
        "unix:/tmp/x",
        "a b:1",
    ],
)
def test_anything_else_is_refused_by_the_name_of_its_field(text: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_address(text, "listen")
    assert caught.value.details["field"] == "listen"
