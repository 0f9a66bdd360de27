"""What machines say of their speed and their links, and what that is held against."""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from meshnet.tracker.fields import (
    AddressText,
    Count,
    DigestText,
    Message,
    NodeIdText,
    Rate,
    Seconds,
)
from meshnet.tracker.speeds import Speed

PATH_PROBE: Final = "/probe"
MAX_PROBE_BYTES: Final = 1 << 20
MAX_RUNS: Final = 64
"""In one message."""
MAX_RUN_NODES: Final = 1000
MOST_PREDICTED_SECONDS: Final = 9e8
Share = Annotated[float, Field(gt=0, le=1)]


def _within(seconds: object) -> object:
    # Also of what isn't even a number: figures that a machine states may amount to anything.
    if isinstance(seconds, float) and not seconds < MOST_PREDICTED_SECONDS:
        return MOST_PREDICTED_SECONDS
    return seconds


Predicted = Annotated[Seconds, BeforeValidator(_within)]
"""At most :data:`MOST_PREDICTED_SECONDS`, lest one machine's odd figures spoil the whole status."""


class SpeedReport(Message):
    """How fast a machine computes a model: :class:`~meshnet.tracker.speeds.Speed`."""

    model: DigestText
    bytes_per_second: Rate
    output_bytes_per_second: Rate
    step_seconds: Seconds
    alone: Share
    chunk_bytes_per_second: Rate
    chunk_step_seconds: Seconds
    node_seconds: Seconds
    lone_seconds: Seconds

    @staticmethod
    def of(model: str, speed: Speed) -> SpeedReport:
        """A measured speed as a message."""
        return SpeedReport(
            model=model,
            bytes_per_second=speed.bytes_per_second,
            output_bytes_per_second=speed.output_bytes_per_second,
            step_seconds=speed.step_seconds,
            alone=speed.alone,
            chunk_bytes_per_second=speed.chunk_bytes_per_second,
            chunk_step_seconds=speed.chunk_step_seconds,
            node_seconds=speed.node_seconds,
            lone_seconds=speed.lone_seconds,
        )

    def speed(self) -> Speed:
        """The same as a value."""
        return Speed(
            self.bytes_per_second,
            self.output_bytes_per_second,
            self.step_seconds,
            self.alone,
            self.chunk_bytes_per_second,
            self.chunk_step_seconds,
            self.node_seconds,
            self.lone_seconds,
        )


class LinkReport(Message):
    """What a machine measured of its link to another one, or to the tracker.

    Over the relay where that is the way: then it is what the relay gives.
    """

    node_id: NodeIdText | None = None
    """None: the tracker."""
    round_trip_seconds: Seconds
    """Of a question that carries nothing, both ends' programs included."""
    bytes_per_second: Count = 0
    """0: not measured yet."""


class Probe(Message):
    """A question that only takes its time, and the answer to it."""

    padding: Annotated[str, Field(max_length=MAX_PROBE_BYTES)] = ""


class Neighbour(Message):
    """A machine to which another one is to measure its link."""

    node_id: NodeIdText
    address: AddressText


class RunReport(Message):
    """A generation that has come to its end."""

    model: DigestText
    nodes: Annotated[tuple[NodeIdText, ...], Field(min_length=1, max_length=MAX_RUN_NODES)]
    """Its chain, head first."""
    prompt_tokens: Count
    cached_tokens: Count = 0
    """Of those, how many needn't be computed."""
    tokens: Count
    """Generated."""
    first_seconds: Seconds
    """Until the first of them."""
    rest_seconds: Seconds
    """From the first to the last."""


class RunsStatus(Message):
    """The last generations of a model, medians; 0 where nothing is known."""

    runs: Count
    token_seconds: Seconds
    predicted_token_seconds: Predicted
    first_seconds: Seconds = 0.0
    predicted_first_seconds: Predicted = 0.0


class Told(Message):
    """What was predicted, and what was measured; 0 where it isn't known."""

    predicted_seconds: Predicted = 0.0
    measured_seconds: Seconds = 0.0
