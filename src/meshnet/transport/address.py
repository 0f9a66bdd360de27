"""``host:port`` as text and in parts."""

from __future__ import annotations

import re

from meshnet.domain.errors import InvalidArgumentError

_FORM = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%a-z]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")


def parse_address(text: str, field: str) -> tuple[str, int]:
    """Host (IPv6 without its brackets) and port of ``host:port`` or ``[ipv6]:port``.

    Raises :class:`InvalidArgumentError` naming ``field`` for anything else.
    """
    match = _FORM.fullmatch(text)
    port = int(match["port"]) if match else -1
    if match is None or port > 65535:
        raise InvalidArgumentError(
            field, f"{text!r} is not host:port with a port of 0 to 65535; [..] goes round IPv6"
        )
    return match["host"].strip("[]"), port


def format_address(host: str, port: int) -> str:
    """The text of an address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
