"""Receipts for tests, and members who sign them."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from meshnet.domain.ids import Digest, RouteSessionId, SessionKey
from meshnet.domain.layers import LayerRange
from meshnet.domain.receipts import Receipt, Seam, SeamEnd, SeamWork, Side
from meshnet.transport.certificates import Role
from meshnet.transport.receipts import Signer
from tests.support.identities import member

GATEWAY, HEAD, TAIL, STRANGER = (
    Signer(member(role=role)) for role in (Role.GATEWAY, Role.NODE, Role.NODE, Role.NODE)
)
LAYERS = {HEAD.node_id: LayerRange(0, 8), TAIL.node_id: LayerRange(8, 30)}
WORK = SeamWork(20, 9, 0, 29, 66_816, 40, 3_000_000, 10**18, 10**18 + 10**9)


def seam(
    upstream: Signer = HEAD, downstream: Signer = TAIL, session: str = "gen-1", epoch: int = 0
) -> Seam:
    """The seam between two of the members."""
    return Seam(
        SessionKey(RouteSessionId(session), epoch),
        "0af7651916cd43dd8448eb211c80319c",
        Digest("sha256:" + "0" * 64),
        Digest("sha256:" + "1" * 64),
        SeamEnd(
            upstream.node_id,
            None if upstream is GATEWAY else LAYERS.get(upstream.node_id, LayerRange(0, 8)),
        ),
        SeamEnd(downstream.node_id, LAYERS.get(downstream.node_id, LayerRange(0, 1))),
    )


def signed(
    work: SeamWork = WORK,
    other: SeamWork | None = None,
    upstream: Signer = HEAD,
    downstream: Signer = TAIL,
    session: str = "gen-1",
) -> Receipt:
    """A receipt that both signed; the upstream has ``other`` numbers if there are any."""
    place = seam(upstream, downstream, session)
    return Receipt(
        place,
        downstream.sign(place, work, Side.DOWNSTREAM),
        upstream.sign(place, other or work, Side.UPSTREAM),
    )


def one_sided(side: Side, receipt: Receipt | None = None) -> Receipt:
    """What one side alone says."""
    whole = receipt or signed()
    if side is Side.UPSTREAM:
        return replace(whole, downstream=None)
    return replace(whole, upstream=None)


_small = st.integers(0, 9999)


@st.composite
def works(draw: st.DrawFn) -> SeamWork:
    """Numbers of a receipt, of a size that there is."""
    first, engine = draw(_small), draw(st.integers(0, 10**12))
    end, ended = first + draw(_small), 10**18 + engine + draw(st.integers(0, 10**12))
    rows, down, up = draw(st.tuples(_small, st.integers(0, 2**40), st.integers(0, 2**20)))
    return SeamWork(rows, draw(_small), first, end, down, up, engine, 10**18, ended)
