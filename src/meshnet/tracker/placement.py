"""Which machine should hold which layers of a model, and how fast that would be. Pure.

What a step takes on a machine is said by ``speeds``; a hop's time is what a boundary row takes on
the link. Latency is the sum around the chain, throughput the slowest stage. ``search`` does the
looking for.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from meshnet.domain.errors import InvalidArgumentError, LayerRangeError
from meshnet.domain.layers import LayerRange, require_chain
from meshnet.tracker.speeds import Speed

Matrix = NDArray[np.float64]
_UNKNOWN: Final = Speed()


@functools.lru_cache(maxsize=1024)
def _unmeasured(bytes_per_second: float) -> Speed:
    # Kept, since every plan makes its machines anew.
    return Speed(bytes_per_second, bytes_per_second)


class Objective(StrEnum):
    """What a model is placed for."""

    LATENCY = "latency"
    """One reader's tokens: the sum of all stages and links."""
    THROUGHPUT = "throughput"
    """Many readers' tokens: the slowest stage or link; among equals, the least latency."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A model's sizes in bytes, and the layers before which it may be cut."""

    layer_bytes: tuple[int, ...]
    embedding_bytes: int
    """The head holds these; a step looks up one row of them."""
    output_bytes: int
    """The tail holds these, and multiplies by them at every token."""
    shared_bytes: int
    """What every shard holds besides."""
    kv_token_bytes: int
    """The cache of one token in one layer."""
    boundary_bytes: int
    """One token's row on a link."""
    cuts: tuple[int, ...]
    tied: bool = False
    """Whether embeddings and output are one matrix, which a lone machine holds once."""

    def __post_init__(self) -> None:
        if not self.layer_bytes:
            raise InvalidArgumentError("layer_bytes", "a model has at least one layer")
        if any(not 0 < cut < len(self.layer_bytes) for cut in self.cuts):
            raise LayerRangeError(
                f"cuts {self.cuts} must lie inside {len(self.layer_bytes)} layers"
            )

    @property
    def edges(self) -> tuple[int, ...]:
        """Where ranges may begin or end."""
        return (0, *sorted(set(self.cuts)), len(self.layer_bytes))


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine offers. ``name`` is for people; two may have the same."""

    name: str
    memory_bytes: int
    """Free for the model and its cache."""
    bytes_per_second: float
    """Of any weights, multiplied by one row."""
    measured: tuple[tuple[str, Speed], ...] = ()
    """How fast it computes the models, by their digests, that it was measured with."""
    speed: Speed = _UNKNOWN
    """With the model that is placed; one that wasn't measured follows ``bytes_per_second``."""

    def __post_init__(self) -> None:
        if self.memory_bytes < 0:
            raise InvalidArgumentError("memory", f"{self.memory_bytes} bytes can't be negative")
        if not 0 < self.bytes_per_second < math.inf:
            raise InvalidArgumentError("speed", f"{self.bytes_per_second} must be more than 0")
        if not self.speed.is_measured:
            object.__setattr__(self, "speed", _unmeasured(self.bytes_per_second))

    def speed_with(self, model: str) -> Speed:
        """How fast it computes a model: as measured, else by ``bytes_per_second``."""
        return next((speed for digest, speed in self.measured if digest == model), self.speed)

    def placing(self, model: str) -> Machine:
        """The same machine, where nothing but that model is placed."""
        return replace(self, measured=(), speed=self.speed_with(model))


@dataclass(frozen=True, slots=True)
class Demand:
    """What the placement must carry."""

    context_tokens: int = 4096
    sessions: int = 1
    objective: Objective = Objective.LATENCY
    headroom: float = 0.2
    """Share of a shard's need that must stay free beyond it."""
    overhead_bytes: int = 256 << 20
    """A node's own memory: the process, and buffers of a step."""

    def __post_init__(self) -> None:
        for name in ("context_tokens", "sessions"):
            if getattr(self, name) < 1:
                raise InvalidArgumentError(name, f"{getattr(self, name)} must be at least 1")


@dataclass(frozen=True, slots=True)
class Stage:
    """One shard of a placement."""

    machine: int
    """Index into the machines that were given."""
    layers: LayerRange
    need_bytes: int
    seconds: float
    """Of one decode step."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A chain, head first."""

    stages: tuple[Stage, ...]
    hop_seconds: tuple[float, ...]
    """From each stage to the next one, and from the tail back to the head."""
    optimal: bool
    """Whether no better one exists; else only that none was found."""

    @property
    def token_seconds(self) -> float:
        """One token's way around the chain."""
        return sum(stage.seconds for stage in self.stages) + sum(self.hop_seconds)

    @property
    def bottleneck_seconds(self) -> float:
        """What the slowest stage or link takes for a token."""
        return max(*(stage.seconds for stage in self.stages), *self.hop_seconds)


@dataclass(frozen=True, slots=True)
class Costs:
    """Needs and work of every range between two edges; ``[a, b]`` with a >= b is infinite."""

    edges: tuple[int, ...]
    need: Matrix
    """Bytes, headroom included, shape (edges, edges)."""
    work: Matrix
    """Bytes of layers read in a decode step, shape (edges, edges)."""
    output_bytes: int
    """What a range that ends with the model reads besides."""

    def seconds(self, speed: Speed) -> Matrix:
        """A decode step of every range on a machine of that speed, shape (edges, edges)."""
        seconds = self.work / speed.bytes_per_second + speed.step_seconds
        seconds[:, -1] += self.output_bytes / speed.output_bytes_per_second
        whole = float(seconds[0, -1]) * speed.alone + speed.lone_seconds
        seconds += speed.node_seconds
        seconds[0, -1] = whole
        return seconds

    def seconds_from(self, edge: int, speeds: Speeds) -> Matrix:
        """The same of the ranges that begin at an edge, shape (machines, edges)."""
        seconds: Matrix = self.work[edge][None, :] / speeds.layers[:, None] + speeds.step[:, None]
        seconds[:, -1] += self.output_bytes / speeds.output
        whole = seconds[:, -1] * speeds.alone + speeds.lone
        seconds += speeds.node[:, None]
        if edge == 0:
            seconds[:, -1] = whole
        return seconds


@dataclass(frozen=True, slots=True)
class Speeds:
    """Machines' speeds by figure, each of shape (machines,)."""

    layers: Matrix
    output: Matrix
    step: Matrix
    alone: Matrix
    node: Matrix
    lone: Matrix

    @staticmethod
    def of(machines: Sequence[Machine]) -> Speeds:
        """Those of some machines, in order."""
        speeds = [machine.speed for machine in machines]
        return Speeds(
            np.array([speed.bytes_per_second for speed in speeds]),
            np.array([speed.output_bytes_per_second for speed in speeds]),
            np.array([speed.step_seconds for speed in speeds]),
            np.array([speed.alone for speed in speeds]),
            np.array([speed.node_seconds for speed in speeds]),
            np.array([speed.lone_seconds for speed in speeds]),
        )

    def merits(self) -> Matrix:
        """Figures of which more is better, in every one; shape (figures, machines)."""
        takes = np.array([self.step, self.alone, self.node, self.lone])
        return np.concatenate([[self.layers, self.output], -takes])


def costs_of(shape: ModelShape, demand: Demand) -> Costs:
    """What each range needs and takes."""
    edges = np.array(shape.edges)
    before = np.concatenate([[0], np.cumsum(np.array(shape.layer_bytes, dtype=np.float64))])
    weights = before[edges][None, :] - before[edges][:, None]
    count = edges[None, :] - edges[:, None]
    work = weights.copy()
    cache = shape.kv_token_bytes * demand.context_tokens * demand.sessions
    need = weights + count * float(cache) + shape.shared_bytes + demand.overhead_bytes
    need[0, :] += shape.embedding_bytes
    need[:, -1] += shape.output_bytes
    if shape.tied:
        need[0, -1] -= shape.output_bytes
    impossible = count <= 0
    need[impossible] = work[impossible] = np.inf
    return Costs(shape.edges, need * (1 + demand.headroom), work, shape.output_bytes)


def uniform_links(machines: int, seconds: float) -> Matrix:
    """Links that all take the same time for a row; a machine reaches itself in none."""
    links = np.full((machines, machines), seconds)
    np.fill_diagonal(links, 0.0)
    return links


def placement_of(
    costs: Costs,
    machines: Sequence[Machine],
    links: Matrix,
    chosen: Sequence[tuple[int, int, int]],
    *,
    optimal: bool,
) -> Placement:
    """The placement that gives machine ``m`` the layers from edge ``a`` to ``b``, in order."""
    stages = tuple(
        Stage(
            machine,
            LayerRange(costs.edges[a], costs.edges[b]),
            int(costs.need[a, b]),
            float(costs.seconds(machines[machine].speed)[a, b]),
        )
        for machine, a, b in chosen
    )
    require_chain([stage.layers for stage in stages], costs.edges[-1])
    ring = [*(stage.machine for stage in stages), stages[0].machine]
    hops = tuple(float(links[a, b]) for a, b in itertools.pairwise(ring))
    return Placement(stages, hops, optimal)
