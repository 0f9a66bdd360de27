"""What the hops' timings of one generation mean: where its time went, as numbers for people.

Pure. Times of different nodes are only ever subtracted where one contains the other; no clocks of
two machines are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from meshnet.domain.nodes import HopTimings

MILLI = 1e-6
"""Milliseconds in a nanosecond."""


@dataclass(frozen=True, slots=True)
class Share:
    """How one node's part of a phase divides, in milliseconds."""

    queue: float
    """Waiting for the engine, which works for others."""
    engine: float
    codec: float
    """Packing results and handing them on."""
    wait: float
    """Prefill: until the node before has the next chunk, or the next one takes it, and what is not
    accounted for. Decode: on the way to the next node and back."""

    @property
    def total(self) -> float:
        """All of it."""
        return self.queue + self.engine + self.codec + self.wait


@dataclass(frozen=True, slots=True)
class HopTimes:
    """One node's part of one generation."""

    node: str
    layers: str
    prefill_tokens: int
    prefill_start: float
    """From accepting the session to the first chunk's arrival, in milliseconds."""
    prefill: Share
    decode_steps: int
    decode: Share
    """A step."""

    def fields(self) -> dict[str, str | int | float]:
        """For JSON; units are in the names."""
        return {
            "node": self.node,
            "layers": self.layers,
            "prefill_tokens": self.prefill_tokens,
            "prefill_start_ms": round(self.prefill_start, 2),
            "prefill_queue_ms": round(self.prefill.queue, 2),
            "prefill_engine_ms": round(self.prefill.engine, 2),
            "prefill_codec_ms": round(self.prefill.codec, 2),
            "prefill_wait_ms": round(self.prefill.wait, 2),
            "decode_steps": self.decode_steps,
            "queue_ms_per_token": round(self.decode.queue, 3),
            "engine_ms_per_token": round(self.decode.engine, 3),
            "codec_ms_per_token": round(self.decode.codec, 3),
            "link_ms_per_token": round(self.decode.wait, 3),
        }


def hop_times(timings: Sequence[HopTimings]) -> tuple[HopTimes, ...]:
    """Each hop's part, head first. Nothing is negative, also where measurements disagree."""
    return tuple(_times(hop, timings[index + 1 :]) for index, hop in enumerate(timings))


def _times(hop: HopTimings, later: Sequence[HopTimings]) -> HopTimes:
    steps = max(hop.decode_steps, 1)
    link = max(hop.decode_downstream_nanos - _behind(later), 0)
    worked = hop.prefill_queue_nanos + hop.prefill_engine_nanos + hop.prefill_codec_nanos
    return HopTimes(
        hop.node_id,
        str(hop.layers),
        hop.prefill_tokens,
        hop.prefill_began_nanos * MILLI,
        Share(
            hop.prefill_queue_nanos * MILLI,
            hop.prefill_engine_nanos * MILLI,
            hop.prefill_codec_nanos * MILLI,
            max(hop.prefill_span_nanos - worked, 0) * MILLI,
        ),
        hop.decode_steps,
        Share(
            hop.decode_queue_nanos * MILLI / steps,
            hop.decode_engine_nanos * MILLI / steps,
            hop.decode_codec_nanos * MILLI / steps,
            link * MILLI / steps,
        ),
    )


def _behind(later: Sequence[HopTimings]) -> int:
    """The decode time that later hops account for.

    A node that tokens don't come back through can't tell its link from the work behind it; its
    link then counts with the nearest link before it that was measured.
    """
    if not later:
        return 0
    first, rest = later[0], later[1:]
    busy = first.decode_queue_nanos + first.decode_engine_nanos + first.decode_codec_nanos
    return busy + (first.decode_downstream_nanos or _behind(rest))
