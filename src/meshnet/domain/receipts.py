"""What one session took on one seam, as each side counted it, and the bytes that they sign.

A seam has two sides: the upstream opened the session there (a gateway at the head, a node at the
next one), the downstream accepted it. Each counts for itself; a receipt is what one or both say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest, NodeId, SessionKey
from meshnet.domain.layers import LayerRange

MAX_SESSION_ID: Final = 64
"""Characters of a session's name."""
MAX_DIGEST: Final = 100
"""Characters of a digest."""
MOST: Final = 2**63
"""Every number is less, so that databases hold it."""
_DOMAIN: Final = b"meshnet receipt 1\n"


class Side(StrEnum):
    """Who says it."""

    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"


class ReceiptState(StrEnum):
    """What a receipt is worth: only one that both signed alike proves work."""

    SIGNED = "signed"
    """Both signed the same numbers."""
    DISPUTED = "disputed"
    """Both signed, but not the same numbers."""
    DOWNSTREAM_ONLY = "downstream_only"
    UPSTREAM_ONLY = "upstream_only"


@dataclass(frozen=True, slots=True)
class SeamEnd:
    """Who is at one end of a seam."""

    node_id: NodeId
    layers: LayerRange | None = None
    """Those that it gives to the session; None for a gateway, which computes none."""

    def __post_init__(self) -> None:
        if not self.node_id:
            raise InvalidArgumentError("node_id", "it is empty")


@dataclass(frozen=True, slots=True)
class Seam:
    """Which session passed where: what both sides know without being told."""

    key: SessionKey
    trace_id: str
    """32 hexadecimal digits; empty if the session belongs to no trace."""
    model: Digest
    """Of the model's file, as the session's fingerprint has it; may be empty."""
    recipe: Digest
    """Of what its numbers depend on; likewise."""
    upstream: SeamEnd
    downstream: SeamEnd

    def __post_init__(self) -> None:
        # Strangers choose these; a message must hold them, a database take, and a terminal show.
        _require_text("session_id", self.key.session_id, 1, MAX_SESSION_ID)
        _require_text("model", self.model, 0, MAX_DIGEST)
        _require_text("recipe", self.recipe, 0, MAX_DIGEST)
        if not 0 <= self.key.route_epoch < MOST:
            raise InvalidArgumentError("route_epoch", f"{self.key.route_epoch} can't be")
        if self.downstream.layers is None:
            raise InvalidArgumentError("downstream.layers", "who accepts a session holds layers")
        if self.upstream.node_id == self.downstream.node_id:
            raise InvalidArgumentError("downstream.node_id", "a seam lies between two members")

    @property
    def layers(self) -> int:
        """How many layers the downstream gives to the session."""
        return 0 if self.downstream.layers is None else len(self.downstream.layers)


@dataclass(frozen=True, slots=True)
class SeamWork:
    """The numbers of a receipt, in the order in which they are signed.

    Raises :class:`InvalidArgumentError` naming one that can't be.
    """

    prefill_rows: int
    """Positions of a prompt's chunks that passed; at a gateway's seam, those of the prompt that no
    kept cache stood for."""
    decode_rows: int
    """Positions of decode steps, guesses at tokens included; at a gateway's seam, the tokens of the
    answer whose own positions had to be computed."""
    first_position: int
    """Of all that passed, the lowest position."""
    end_position: int
    """One past the highest."""
    bytes_down: int
    """Of boundaries, before any compression; at a gateway's seam, 4 for each prompt token."""
    bytes_up: int
    """4 for each token that came back over this seam."""
    engine_nanos: int
    """The downstream's engine, by its own account, and never longer than the session."""
    began_unix_nanos: int
    ended_unix_nanos: int

    @classmethod
    def of(cls, holder: object) -> SeamWork:
        """The numbers that a message has in fields of the same names."""
        return cls(*(getattr(holder, each.name) for each in fields(cls)))

    def __post_init__(self) -> None:
        for each in fields(self):
            if not 0 <= getattr(self, each.name) < MOST:
                raise InvalidArgumentError(each.name, f"{getattr(self, each.name)} can't be")
        if self.end_position < self.first_position:
            raise InvalidArgumentError("end_position", "it is before the first position")
        if self.ended_unix_nanos < self.began_unix_nanos:
            raise InvalidArgumentError("ended_unix_nanos", "it is before the beginning")
        if self.engine_nanos > self.wall_nanos:
            raise InvalidArgumentError("engine_nanos", "it is longer than the session")

    @property
    def tokens(self) -> int:
        """Positions that passed, each counted once however often it did: what is paid for."""
        return self.end_position - self.first_position

    @property
    def wall_nanos(self) -> int:
        """From beginning to end."""
        return self.ended_unix_nanos - self.began_unix_nanos

    def differences(self, other: SeamWork) -> tuple[str, ...]:
        """The names of the numbers that aren't equal."""
        return tuple(
            each.name
            for each in fields(self)
            if getattr(self, each.name) != getattr(other, each.name)
        )


@dataclass(frozen=True, slots=True)
class Statement:
    """What one side says, signed: see :func:`signed_bytes`."""

    work: SeamWork
    public_key: str
    """SubjectPublicKeyInfo in DER of the signer's key, from which its node id is made; in
    hexadecimal, like the signature."""
    signature: str
    """ECDSA with SHA-256 in DER."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one or both sides of a seam say about a session. Whether signatures are good is checked
    elsewhere; raises :class:`InvalidArgumentError` if nobody says anything."""

    seam: Seam
    downstream: Statement | None = None
    upstream: Statement | None = None

    def __post_init__(self) -> None:
        if self.downstream is None and self.upstream is None:
            raise InvalidArgumentError("downstream", "nobody says anything")

    @property
    def state(self) -> ReceiptState:
        """What it is worth."""
        if self.upstream is None:
            return ReceiptState.DOWNSTREAM_ONLY
        if self.downstream is None:
            return ReceiptState.UPSTREAM_ONLY
        same = self.downstream.work == self.upstream.work
        return ReceiptState.SIGNED if same else ReceiptState.DISPUTED

    @property
    def differences(self) -> tuple[str, ...]:
        """The numbers about which the sides don't agree; none unless both say something."""
        if self.downstream is None or self.upstream is None:
            return ()
        return self.downstream.work.differences(self.upstream.work)

    @property
    def work(self) -> SeamWork:
        """What the downstream says; the upstream's word where it says nothing."""
        stated = self.downstream or self.upstream
        if stated is None:
            raise InvalidArgumentError("downstream", "nobody says anything")
        return stated.work

    @property
    def statements(self) -> tuple[tuple[Side, Statement], ...]:
        """Those there are, with who says them."""
        both = ((Side.DOWNSTREAM, self.downstream), (Side.UPSTREAM, self.upstream))
        return tuple((side, each) for side, each in both if each is not None)


def signed_bytes(seam: Seam, work: SeamWork, side: Side) -> bytes:
    """What one side signs: every field in a fixed order, in one way only.

    A line that names the form, then texts as their length in UTF-8 (4 bytes) and themselves, and
    numbers in 8 bytes, all big-endian, as ``docs/protocol.md`` lists them.
    """
    up = seam.upstream.layers
    down = seam.downstream.layers
    texts = (side.value, seam.key.session_id)
    parts = [
        _DOMAIN,
        *map(_text, texts),
        _number(seam.key.route_epoch),
        *map(_text, (seam.trace_id, seam.model, seam.recipe)),
        _text(seam.upstream.node_id),
        *map(_number, (0, 0) if up is None else (up.start, up.end)),
        _text(seam.downstream.node_id),
        *map(_number, (0, 0) if down is None else (down.start, down.end)),
        *(_number(getattr(work, each.name)) for each in fields(work)),
    ]
    return b"".join(parts)


def _require_text(field: str, text: str, least: int, most: int) -> None:
    if not (least <= len(text) <= most and text.isprintable()):
        raise InvalidArgumentError(field, f"it must have {least} to {most} printable characters")


def _text(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(4, "big") + data


def _number(number: int) -> bytes:
    return number.to_bytes(8, "big")
