"""Which receipts are good, and what they are worth: the pure part of paying nodes for their work.

A node earns a credit for each position that passed to it, once, times its layers, if it and who
passed them signed the same numbers. The house pays; what the gateway charges a key goes to the
house. So no work is paid for twice, however often and in whatever order receipts come.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Final

from meshnet.domain.errors import InvalidArgumentError, UnauthenticatedError
from meshnet.domain.ids import NodeId
from meshnet.domain.receipts import Receipt, ReceiptState, SeamEnd
from meshnet.tracker.ledger import Entry, entry_of, node_account
from meshnet.transport.receipts import require_statement

KEPT_DAYS: Final = 90
"""Receipts of sessions that began earlier aren't taken, and those that are kept go."""
MAX_RECEIPTS_KEPT: Final = 1_000_000
"""Of more, those that began first go."""
SKEW_SECONDS: Final = 3600.0
"""How far ahead a member's clock may be."""
MAX_TOKENS: Final = 2**31
MAX_LAYERS: Final = 2**16
NANO: Final = 10**9
_RANKS: Final = {
    ReceiptState.UPSTREAM_ONLY: 0,
    ReceiptState.DOWNSTREAM_ONLY: 1,
    ReceiptState.DISPUTED: 2,
    ReceiptState.SIGNED: 3,
}


@dataclass(frozen=True, slots=True)
class Roster:
    """Whose signature counts."""

    nodes: Container[NodeId]
    gateways: Container[NodeId]
    removed: Mapping[NodeId, int]
    """Nodes that are members no more, and when that came, in Unix seconds."""

    def knows(self, end: SeamEnd, ended_unix: float) -> bool:
        """Whether somebody was a member when a session ended."""
        if end.layers is None:
            return end.node_id in self.gateways
        left = self.removed.get(end.node_id)
        return end.node_id in self.nodes or (left is not None and ended_unix <= left)


def require_good(receipt: Receipt, reporter: NodeId, roster: Roster, now: float) -> None:
    """Raise unless a receipt is one that may be kept.

    That is :class:`UnauthenticatedError` for signatures that aren't good, for ends that aren't
    members, and for one that somebody else reports; :class:`InvalidArgumentError` for times and
    numbers that can't be.
    """
    seam, work = receipt.seam, receipt.work
    ends = (seam.upstream, seam.downstream)
    if reporter not in {end.node_id for end in ends}:
        raise UnauthenticatedError(f"{reporter} reports a receipt of others")
    if not now - KEPT_DAYS * 86_400 <= work.began_unix_nanos / NANO:
        raise InvalidArgumentError("began_unix_nanos", "it is too long ago")
    if work.ended_unix_nanos / NANO > now + SKEW_SECONDS:
        raise InvalidArgumentError("ended_unix_nanos", "it is yet to come")
    if work.tokens >= MAX_TOKENS:
        raise InvalidArgumentError("end_position", f"{work.tokens} positions can't be")
    if seam.layers >= MAX_LAYERS:
        raise InvalidArgumentError("downstream", f"{seam.layers} layers can't be")
    for end in ends:
        if not roster.knows(end, work.ended_unix_nanos / NANO):
            raise UnauthenticatedError(f"{end.node_id} is no member that may sign this")
    for side, statement in receipt.statements:
        require_statement(seam, statement, side)


def replaces(new: Receipt, known: ReceiptState | None) -> bool:
    """Whether a receipt says more than what is kept of the same work; None: nothing is."""
    return known is None or _RANKS[new.state] > _RANKS[known]


def earned(receipt: Receipt) -> int:
    """Tokens times layers, whether or not both signed."""
    return receipt.work.tokens * receipt.seam.layers


def entry_id_of(receipt: Receipt) -> str:
    """Of the entry that pays for it: one for each session and epoch of a node."""
    key = receipt.seam.key
    return f"receipt:{key.session_id}@{key.route_epoch}>{receipt.seam.downstream.node_id}"


def payment_of(receipt: Receipt) -> Entry | None:
    """What the downstream earns; None unless both signed the same numbers."""
    if receipt.state is not ReceiptState.SIGNED:
        return None
    return entry_of(
        entry_id_of(receipt),
        receipt.work.began_unix_nanos // NANO,
        {node_account(receipt.seam.downstream.node_id): earned(receipt)},
    )
