"""How fast a machine computes a model, and what a prompt takes around a chain. Pure.

A step reads all of a shard's weights. With one row it waits for the memory, with a chunk of a
prompt for arithmetic, so both have a rate of their own; the output matrix has one too, since its
weights are often of another type. What a step takes besides doesn't depend on how many layers there
are. All five are fitted to steps of the model's own layers, measured on the machine itself
(``engine/llamacpp/rehearsal``); what our own process adds to a step is :data:`NODE_SECONDS`.

What attention takes grows with the context and isn't counted: the figures are those of the first
few hundred positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.layers import LayerRange

CHUNK_ROWS: Final = 32
"""Tokens of a prompt that a node computes at once (``node.config.CHUNK_TOKENS``)."""
NODE_SECONDS: Final = 0.0012
"""What a node takes for a step outside the engine's library, in a chain: unpacking a frame, to the
engine's thread and back, the engine's own bookkeeping, packing the next. The rows of
``bench.profile_step`` but those of libllama and of the way to the next node, 1.3 ms, of which the
measured steps have 0.1 themselves."""
LONE_SECONDS: Final = 0.0009
"""The same of a node that is the whole chain, which packs and unpacks nothing: 0.6 ms, which
``bench.decode`` finds outside the engine, and the engine's bookkeeping."""


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a machine computes a model. A rate of 0 isn't known."""

    bytes_per_second: float = 0.0
    """Of layers' weights, with one row, after a pause as long as the step: a node of a chain waits
    for the others in between."""
    output_bytes_per_second: float = 0.0
    """Of the output matrix, with one row."""
    step_seconds: float = 0.0
    """What a step takes besides, however many layers."""
    alone: float = 1.0
    """What a step takes that follows the one before at once, as a share of one after a pause: an
    idle processor comes back slow."""
    chunk_bytes_per_second: float = 0.0
    """Of layers' weights, with :data:`CHUNK_ROWS` rows."""
    chunk_step_seconds: float = 0.0
    node_seconds: float = 0.0
    """What the node's process adds to every step where there are others in the chain."""
    lone_seconds: float = 0.0
    """What it adds where it is the whole chain."""

    def __post_init__(self) -> None:
        for name in (
            "bytes_per_second",
            "output_bytes_per_second",
            "step_seconds",
            "chunk_bytes_per_second",
            "chunk_step_seconds",
            "node_seconds",
            "lone_seconds",
        ):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InvalidArgumentError(name, f"{getattr(self, name)} must be 0 or more")
        if bool(self.bytes_per_second) != bool(self.output_bytes_per_second):
            raise InvalidArgumentError("output_bytes_per_second", "a speed has both rates or none")
        if not 0 < self.alone < float("inf"):
            raise InvalidArgumentError("alone", f"{self.alone} must be more than 0")

    @property
    def is_measured(self) -> bool:
        """Whether what a token takes is known."""
        return self.bytes_per_second > 0

    @property
    def knows_prompts(self) -> bool:
        """Whether what a prompt's chunk takes is known."""
        return self.chunk_bytes_per_second > 0

    def token_seconds(self, layer_bytes: float, output_bytes: float, *, lone: bool) -> float:
        """A decode step with one row; ``lone``: the machine is the whole chain."""
        inside = (
            self.step_seconds
            + layer_bytes / self.bytes_per_second
            + output_bytes / self.output_bytes_per_second
        )
        return inside * self.alone + self.lone_seconds if lone else inside + self.node_seconds

    def prompt_seconds(self, rows: int, layer_bytes: int, output_bytes: int) -> float:
        """A chunk of up to :data:`CHUNK_ROWS` rows. Also a tail's has one row of output."""
        one = self.step_seconds + layer_bytes / self.bytes_per_second
        all_rows = self.chunk_step_seconds + layer_bytes / self.chunk_bytes_per_second
        share = (rows - 1) / (CHUNK_ROWS - 1)
        inside = one + max(all_rows - one, 0.0) * share
        return inside + output_bytes / self.output_bytes_per_second + self.node_seconds


@dataclass(frozen=True, slots=True)
class Measured:
    """What steps of one range took on a machine, in seconds, and what they read."""

    layer_bytes: int
    rested: float
    """One row, after a pause as long as the step."""
    busy: float
    """One row, right after another."""
    chunk: float
    """:data:`CHUNK_ROWS` rows."""
    output_bytes: int = 0


def fitted(short: Measured, long: Measured, tail: Measured) -> Speed:
    """The speed by which two ranges of unequal length and a tail take what they took.

    Raises :class:`InvalidArgumentError` for times that are none.
    """
    rate, step = _line(short.layer_bytes, short.rested, long.layer_bytes, long.rested)
    chunk_rate, chunk_step = _line(short.layer_bytes, short.chunk, long.layer_bytes, long.chunk)
    output = tail.rested - step - tail.layer_bytes / rate
    return Speed(
        rate,
        tail.output_bytes / output if output > 0 and tail.output_bytes else rate,
        step,
        min(long.busy / long.rested, 1.0),
        chunk_rate,
        chunk_step,
        NODE_SECONDS,
        LONE_SECONDS,
    )


def _line(short: int, short_seconds: float, long: int, long_seconds: float) -> tuple[float, float]:
    """Bytes a second and seconds besides; where they can't be told apart, all is the bytes'."""
    if min(short_seconds, long_seconds) <= 0:
        raise InvalidArgumentError("seconds", "a step that takes no time can't be")
    if long > short and long_seconds > short_seconds:
        rate = (long - short) / (long_seconds - short_seconds)
        step = short_seconds - short / rate
        if step >= 0:
            return rate, step
    return long / long_seconds, 0.0


@dataclass(frozen=True, slots=True)
class Hop:
    """What connects two machines of a chain."""

    latency_seconds: float
    """One way, our own transport included."""
    bytes_per_second: float

    def seconds(self, size: int) -> float:
        """How long ``size`` bytes take."""
        return self.latency_seconds + size / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Part:
    """One machine's part of a chain."""

    speed: Speed
    layer_bytes: int
    output_bytes: int = 0
    """Of a tail; 0 on others."""

    def engine_seconds(self, *, lone: bool) -> float:
        """A decode step without what the node's process adds."""
        bare = replace(self.speed, node_seconds=0.0, lone_seconds=0.0)
        return bare.token_seconds(self.layer_bytes, self.output_bytes, lone=lone)


def first_token_seconds(
    parts: Sequence[Part], hops: Sequence[Hop], row_bytes: int, tokens: int
) -> float | None:
    """From a prompt's start to its first token; None if a machine wasn't measured with prompts.

    ``hops[i]`` leads from part i to the next, the last one back to the head. Every machine computes
    a chunk while the next one computes the one before. The session is opened first, by a message
    around the chain, and the token comes back in the end.
    """
    if not all(part.speed.knows_prompts for part in parts):
        return None
    forward = hops[:-1] if len(parts) > 1 else ()
    around = 0.0 if len(parts) == 1 else sum(hop.latency_seconds for hop in hops)
    done = [around] * len(parts)
    """When each machine has computed the chunks so far."""
    whole, rest = divmod(tokens, CHUNK_ROWS)
    for rows, chunks in ((CHUNK_ROWS, whole), (rest, min(rest, 1))):
        if not chunks:
            continue
        arrives, slowest = done[0], 0.0
        for number, part in enumerate(parts):
            takes = part.speed.prompt_seconds(rows, part.layer_bytes, part.output_bytes)
            slowest = max(slowest, takes)
            first = max(done[number], arrives) + takes
            # Equal chunks come out as far apart as the slowest so far takes for one.
            done[number] = first + (chunks - 1) * slowest
            if number < len(forward):
                arrives = first + forward[number].seconds(rows * row_bytes)
    return done[-1] + (hops[-1].latency_seconds if len(parts) > 1 else 0.0)


def parts_of(
    layer_bytes: Sequence[int], output_bytes: int, held: Sequence[tuple[LayerRange, Speed]]
) -> tuple[Part, ...]:
    """The parts of a chain whose machines hold these layers of a model, head first."""
    return tuple(
        Part(
            speed,
            sum(layer_bytes[layers.start : layers.end]),
            output_bytes if layers.is_tail(len(layer_bytes)) else 0,
        )
        for layers, speed in held
    )


def token_seconds(parts: Sequence[Part], hops: Sequence[Hop], row_bytes: int) -> float:
    """One token's way around a chain; ``hops`` as in :func:`first_token_seconds`."""
    lone = len(parts) == 1
    computing = sum(
        part.speed.token_seconds(part.layer_bytes, part.output_bytes, lone=lone) for part in parts
    )
    if lone:
        return computing
    forward = sum(hop.seconds(row_bytes) for hop in hops[:-1])
    return computing + forward + hops[-1].latency_seconds
