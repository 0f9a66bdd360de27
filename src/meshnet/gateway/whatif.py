"""What-if questions about a model's placement: read from JSON, answered by ``tracker.forecast``."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.gateway.schema import Body, parse
from meshnet.tracker.forecast import Link, forecast, smallest_addition
from meshnet.tracker.placement import Demand, Machine, ModelShape, Objective

MAX_MACHINES = 64
"""Of one question: its answer is searched for while others wait for a processor."""
_MOST_ADDED = 16


@dataclass(frozen=True, slots=True)
class WhatIf:
    """Machines that may be, the network between them, and what they are to carry."""

    machines: tuple[Machine, ...]
    link: Link
    demand: Demand

    def __post_init__(self) -> None:
        if not 1 <= len(self.machines) <= MAX_MACHINES:
            raise InvalidArgumentError(
                "machines", f"{len(self.machines)} of them; give 1 to {MAX_MACHINES}"
            )


@dataclass(frozen=True, slots=True)
class StageView:
    """What one machine would hold, and what it would take."""

    machine: str
    shard_start: int
    shard_end: int
    need_bytes: int
    memory_bytes: int
    seconds: float
    """Of one decode step."""


@dataclass(frozen=True, slots=True)
class OneMoreView:
    """What another machine like ``machine`` would bring."""

    machine: str
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class PlanView:
    """An answer. If the model doesn't fit, ``problem`` says why and there is no stage."""

    stages: tuple[StageView, ...] = ()
    tokens_per_second: float = 0.0
    """Of one reader, at most."""
    bottleneck_seconds: float = 0.0
    """What the slowest stage or link takes for a token; a batch comes so often."""
    link_seconds: float = 0.0
    """All hops of a token together."""
    limit: str = ""
    limit_share: float = 0.0
    optimal: bool = False
    one_more: tuple[OneMoreView, ...] = ()
    problem: str = ""


class _MachineBody(Body):
    name: str = Field(min_length=1, max_length=64)
    memory_bytes: int = Field(ge=0, le=2**53)
    bytes_per_second: float = Field(gt=0, le=1e18)


class _LinkBody(Body):
    latency_seconds: float = Field(ge=0, le=3600)
    bytes_per_second: float = Field(gt=0, le=1e18)


class WhatIfBody(Body):
    """The body of ``POST /dashboard/plan``."""

    machines: list[_MachineBody] = Field(min_length=1, max_length=MAX_MACHINES)
    link: _LinkBody
    context_tokens: int = Field(ge=1, le=2**31)
    sessions: int = Field(ge=1, le=4096)
    objective: Objective


def read_question(body: bytes) -> WhatIf:
    """Read the body of ``POST /dashboard/plan``; raises :class:`InputError` naming the field."""
    asked = parse(WhatIfBody, body)
    return WhatIf(
        tuple(Machine(it.name, it.memory_bytes, it.bytes_per_second) for it in asked.machines),
        Link(asked.link.latency_seconds, asked.link.bytes_per_second),
        Demand(asked.context_tokens, asked.sessions, asked.objective),
    )


def question_object(question: WhatIf) -> dict[str, object]:
    """The JSON that :func:`read_question` reads."""
    return {
        "machines": [
            {
                "name": machine.name,
                "memory_bytes": machine.memory_bytes,
                "bytes_per_second": machine.bytes_per_second,
            }
            for machine in question.machines
        ],
        "link": {
            "latency_seconds": question.link.latency_seconds,
            "bytes_per_second": question.link.bytes_per_second,
        },
        "context_tokens": question.demand.context_tokens,
        "sessions": question.demand.sessions,
        "objective": question.demand.objective.value,
    }


def plan_of(shape: ModelShape, question: WhatIf) -> PlanView:
    """Place a model. Pure, and takes up to some seconds of a processor."""
    machines, link, demand = question.machines, question.link, question.demand
    try:
        made = forecast(shape, machines, link, demand)
    except ResourceExhaustedError as error:
        more = smallest_addition(shape, machines, link, demand, _MOST_ADDED)
        advice = f". {more[1]} more like {more[0].name} would be enough" if more else ""
        return PlanView(problem=f"{error.message}{advice}")
    placement = made.placement
    return PlanView(
        tuple(
            StageView(
                machines[stage.machine].name,
                stage.layers.start,
                stage.layers.end,
                stage.need_bytes,
                machines[stage.machine].memory_bytes,
                stage.seconds,
            )
            for stage in placement.stages
        ),
        1 / placement.token_seconds,
        placement.bottleneck_seconds,
        sum(placement.hop_seconds),
        made.limit,
        made.limit_share,
        placement.optimal,
        tuple(OneMoreView(more.machine.name, 1 / more.token_seconds) for more in made.one_more),
    )
