"""How fast the links of a chain are, and what its seams had better carry over them."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.recipe import MAX_CHUNK_TOKENS
from meshnet.domain.tensors import DType
from meshnet.session.chain import ASK_SECONDS, Chain
from meshnet.transport.base import Peer
from meshnet.transport.channel import ChannelPool

PREFERRED: Final = (DType.FLOAT32, DType.BFLOAT16, DType.Q8_0)
"""Tried in this order. float16 isn't: some models' residuals leave its range."""
ROW_SECONDS: Final = 0.001
"""What a token's row may cost a seam without being noticed beside the engine's step."""
ROW_SHARE: Final = 0.1
"""Where the link's own delay is longer, a row may add so much of it."""
PROMPT_SECONDS: Final = 0.1
"""What 128 tokens of a prompt may take: about as long as to compute them, and both overlap."""
PINGS: Final = 3
PADDING: Final = (1 << 14, 1 << 17, 1 << 20)
"""Bytes sent to time a link, more each time, until one takes long enough to tell."""
LONG_ENOUGH_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Link:
    """What a connection can do."""

    bytes_per_second: float
    round_trip_seconds: float

    def __post_init__(self) -> None:
        if self.bytes_per_second <= 0:
            raise InvalidArgumentError(
                "bytes_per_second", f"{self.bytes_per_second} must be more than 0"
            )
        if self.round_trip_seconds < 0:
            raise InvalidArgumentError(
                "round_trip_seconds", f"{self.round_trip_seconds} can't be negative"
            )

    def carries(self, row_bytes: int) -> bool:
        """Whether rows of that size hold up neither a generated token nor a prompt."""
        row = row_bytes / self.bytes_per_second
        allowed = max(ROW_SECONDS, ROW_SHARE * self.round_trip_seconds)
        return row <= allowed and row * MAX_CHUNK_TOKENS <= PROMPT_SECONDS


def choose_boundary(links: Sequence[Link], n_embd: int, dtypes: Sequence[DType]) -> DType:
    """The most exact of ``dtypes`` that every link carries at a width of ``n_embd``.

    The smallest one if none does, and float32 where there is no link.
    """
    usable = [dtype for dtype in PREFERRED if dtype in dtypes]
    for dtype in usable:
        if all(link.carries(dtype.byte_length(n_embd)) for link in links):
            return dtype
    return usable[-1] if usable else DType.FLOAT32


async def measure_links(channels: ChannelPool, chain: Chain) -> tuple[Link, ...]:
    """The links from here to every node, none for a chain of one node.

    They stand for the links between the nodes, which only those could measure: as good as those
    where all machines are on one network. Raises ``NodeError`` if a node can't be asked.
    """
    if len(chain.hops) == 1:
        return ()
    # One after the other, since they may share a cable.
    return tuple([await measure(channels.peer(hop.address, hop.node_id)) for hop in chain.hops])


async def measure(peer: Peer) -> Link:
    """The link from here to a node; raises what its ``capability`` raises."""
    return await measure_by(partial(_ask, peer), PADDING)


async def round_trip(peer: Peer) -> Link:
    """The same, but for its rate, which is left at one byte a second."""
    return await measure_by(partial(_ask, peer), ())


async def measure_by(ask: Callable[[int], Awaitable[object]], paddings: Sequence[int]) -> Link:
    """The link to whoever answers ``ask``, which sends so many bytes; raises what that raises.

    ``paddings`` are how many are sent to learn the rate, which without any is left at one byte a
    second.
    """
    # The first answer also sets up the connection.
    await ask(0)
    trip = min([await _time(ask, 0) for _ in range(PINGS)])
    speed = 1.0
    for padding in paddings:
        taken = await _time(ask, padding)
        if taken - trip >= LONG_ENOUGH_SECONDS and padding < paddings[-1]:
            # So little may also have taken long because somebody was busy for a moment.
            taken = min(taken, await _time(ask, padding))
        speed = padding / max(taken - trip, 1e-6)
        if taken - trip >= LONG_ENOUGH_SECONDS:
            break
    return Link(speed, trip)


async def _ask(peer: Peer, padding: int) -> None:
    await peer.capability(ASK_SECONDS, padding)


async def _time(ask: Callable[[int], Awaitable[object]], padding: int) -> float:
    started = time.perf_counter()
    await ask(padding)
    return time.perf_counter() - started
