"""Identifiers, each its own type so that one can't be handed in where another is meant."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import NewType

NodeId = NewType("NodeId", str)
"""Names a node in messages to people; unique within one route."""

RouteSessionId = NewType("RouteSessionId", str)
"""Names one generation along the whole chain; with the route's epoch it names its cache."""

Address = NewType("Address", str)
"""``host:port`` of a node's gRPC server, or the name of a node on the loopback transport."""

Digest = NewType("Digest", str)
"""``sha256:`` followed by 64 hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class SessionKey:
    """Names a session's state on every node: a newer epoch of the same session is another cache."""

    session_id: RouteSessionId
    route_epoch: int

    def __str__(self) -> str:
        return f"{self.session_id}@{self.route_epoch}"


def new_route_session_id() -> RouteSessionId:
    """A fresh identifier that can't be guessed (96 random bits)."""
    return RouteSessionId(f"gen-{secrets.token_hex(12)}")
