"""Measurements as plain values: counted where the work is done, rendered where they are asked for.

Counting is adding to an integer, so that it may be done at every token. Names and units follow
Prometheus' conventions (https://prometheus.io/docs/practices/naming/): base units, and ``_total``
at a counter's end.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

from meshnet.domain.errors import InvalidArgumentError

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Upper bounds for times of steps and gaps."""
LONG_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""Upper bounds for times of whole requests."""
SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0)
"""Upper bounds for numbers of things."""


class MetricKind(Enum):
    """How a metric's values are to be read."""

    COUNTER = "counter"
    """Only grows, from 0 at the process's start."""
    GAUGE = "gauge"
    """How much there is now."""
    HISTOGRAM = "histogram"
    """How many observations fell below each bound, and their sum."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric's name, how it is told apart, and what it means in one sentence."""

    name: str
    kind: MetricKind
    labels: tuple[str, ...]
    meaning: str

    def __post_init__(self) -> None:
        if (self.kind is MetricKind.COUNTER) != self.name.endswith("_total"):
            raise InvalidArgumentError("name", f"{self.name}: counters end in _total, no others")


@dataclass(frozen=True, slots=True)
class Distribution:
    """A histogram at one moment; ``counts`` has one more than ``bounds``, for what exceeds them."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    def __post_init__(self) -> None:
        if len(self.counts) != len(self.bounds) + 1:
            raise InvalidArgumentError(
                "counts", f"{len(self.counts)} of them for {len(self.bounds)} bounds"
            )

    @property
    def count(self) -> int:
        """Observations in all."""
        return sum(self.counts)

    def cumulative(self) -> tuple[int, ...]:
        """How many observations were at most each bound, and last, how many there were."""
        return tuple(accumulate(self.counts))


class Histogram:
    """Counts observations by size; about half a microsecond each."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        """``bounds`` ascend; an observation counts at the first one that isn't below it."""
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise InvalidArgumentError("bounds", f"{bounds} must ascend")
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> Distribution:
        """What was observed so far."""
        return Distribution(self._bounds, tuple(self._counts), self._total)


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric; ``labels`` are values in the order of the metric's label names."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Distribution

    def __post_init__(self) -> None:
        if len(self.labels) != len(self.metric.labels):
            raise InvalidArgumentError(
                "labels", f"{self.labels} for {self.metric.name}{self.metric.labels}"
            )
        if isinstance(self.value, Distribution) != (self.metric.kind is MetricKind.HISTOGRAM):
            raise InvalidArgumentError("value", f"{self.metric.name} is a {self.metric.kind.value}")
