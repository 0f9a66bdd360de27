"""``meshnet plan``: would a model fit on some machines, on which, and how fast would it be?"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.clusterplan import cluster_of
from meshnet.cli.forecasts import ran_line
from meshnet.cli.local import context_within, find_model
from meshnet.cli.output import human_size, print_json, print_line, print_table
from meshnet.cli.settings import Settings
from meshnet.domain.errors import InvalidArgumentError, ResourceExhaustedError
from meshnet.model.description import describe, legal_cuts
from meshnet.model.gguf import GgufIndex, read_index
from meshnet.tracker.forecast import (
    Forecast,
    Link,
    Network,
    forecast,
    shape_of,
    smallest_addition,
)
from meshnet.tracker.messages import PROMPT_TOKENS, ModelStatus
from meshnet.tracker.placement import Demand, Machine, ModelShape, Objective

_MACHINE = re.compile(r"(?P<name>[^:]+):(?P<memory>[^:]+):(?P<speed>[^:*]+)(\*(?P<count>\d+))?")
_MOST_MACHINES = 10_000


def plan(
    model: opt.Model,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            "-m",
            help="NAME:MEMORY:SPEED[*COUNT]: memory that is free for the model, and the speed of "
            "that memory, which is what generating a token waits for. Default: the machines of "
            "this one's cluster, as they measured themselves.",
        ),
    ] = None,
    link: Annotated[
        str, typer.Option(help="SPEED,DELAY of the network between any two machines.")
    ] = "1Gbit/s,0.3ms",
    ctx: opt.Context = 4096,
    sessions: opt.Sessions = 1,
    optimise: opt.OptimiseOption = opt.Optimise.LATENCY,
    json: opt.Json = False,
    allow_unverified: opt.AllowUnverified = False,
) -> None:
    """Show which of some machines would hold which layers of MODEL, and how fast that would be.

    Reads the file's header alone. Of machines that you state the speed is an upper bound: of the
    time a token takes it counts reading the weights once, at the memory speed you state, and the
    network. Of a cluster's machines it is a prediction from measured steps and links, and what the
    last generations took stands beside it.

    Examples:

      meshnet plan model.gguf

      meshnet plan model.gguf -m laptop:12GiB:40GB/s -m desktop:28GiB:60GB/s

      meshnet plan hf://org/repository/model.gguf -m laptop:12GiB:40GB/s*3

      meshnet plan model.gguf -m pi:6GiB:12GB/s*4 --link 100Mbit/s,1ms --ctx 2048 --json
    """
    settings, default = Settings.from_environment(), parse_link(link)
    if machine:
        given = _Given(read_index(find_model(model, settings).path), _machines(machine), default)
    else:
        held = asyncio.run(cluster_of(model, settings, default))
        given = _Given(held.index, held.machines, held.network, held.status)
    info, machines, network = describe(given.index), given.machines, given.network
    shape = shape_of(info, allow_unverified=allow_unverified)
    demand = Demand(context_within(info, ctx), sessions, Objective(optimise.value))
    try:
        made = forecast(shape, machines, network, demand)
    except ResourceExhaustedError:
        # Cuts that cost layers of zeros may be the only ones whose pieces are small enough.
        shape = replace(shape, cuts=legal_cuts(info, allow_unverified=allow_unverified))
        try:
            made = forecast(shape, machines, network, demand)
        except ResourceExhaustedError as error:
            raise _with_advice(error, shape, machines, network, demand) from error
    if json:
        print_json(_document(made, given))
    else:
        _print(made, given)


@dataclass(frozen=True, slots=True)
class _Given:
    """What a plan is made of."""

    index: GgufIndex
    machines: list[Machine]
    network: Link | Network
    status: ModelStatus | None = None
    """Of a model that the cluster serves."""

    @property
    def is_measured(self) -> bool:
        """Whether every machine was measured with the model."""
        return all(machine.speed.knows_prompts for machine in self.machines)


def _machines(given: Sequence[str]) -> list[Machine]:
    machines = [each for text in given for each in parse_machine(text)]
    if len(machines) > _MOST_MACHINES:
        raise InvalidArgumentError(
            "machine", f"{len(machines)} are too many; give {_MOST_MACHINES} at most"
        )
    return machines


def parse_machine(text: str) -> list[Machine]:
    """Read ``NAME:MEMORY:SPEED[*COUNT]``; raises ``InvalidArgumentError`` saying what is wrong."""
    match = _MACHINE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgumentError(
            "machine", f"{text!r} isn't of the form NAME:MEMORY:SPEED[*COUNT]"
        )
    count = int(match["count"] or 1)
    if not 1 <= count <= _MOST_MACHINES:
        raise InvalidArgumentError("machine", f"{text!r}: give 1 to {_MOST_MACHINES} of it")
    one = Machine(
        match["name"], opt.parse_size("machine", match["memory"]), _rate("machine", match["speed"])
    )
    return [one] * count


def parse_link(text: str) -> Link:
    """Read ``SPEED,DELAY``; raises ``InvalidArgumentError`` saying what is wrong."""
    speed, comma, delay = text.partition(",")
    match = re.fullmatch(r"([0-9.]+)\s*(us|ms|s)", delay.strip())
    if not comma or match is None:
        raise InvalidArgumentError(
            "link", f"{text!r} isn't of the form SPEED,DELAY, such as 1Gbit/s,0.3ms"
        )
    unit = {"us": 1e-6, "ms": 1e-3, "s": 1.0}[match[2]]
    try:
        seconds = float(match[1]) * unit
    except ValueError:
        raise InvalidArgumentError("link", f"{delay.strip()!r} is no delay") from None
    return Link(seconds, _rate("link", speed))


def _rate(field: str, text: str) -> float:
    number, slash, per = text.strip().rpartition("/")
    if not slash or per != "s":
        raise InvalidArgumentError(field, f"{text.strip()!r} is no speed, such as 40GB/s")
    return float(opt.parse_size(field, number))


def _with_advice(
    error: ResourceExhaustedError,
    shape: ModelShape,
    machines: list[Machine],
    link: Link | Network,
    demand: Demand,
) -> ResourceExhaustedError:
    added = smallest_addition(shape, machines, link, demand)
    advice = (
        f"{added[1]} more like {added[0].name} would be enough"
        if added is not None
        else "more machines like these don't help: a layer is too large for each of them"
    )
    return ResourceExhaustedError(f"{error.message}. {advice}; so may a smaller --ctx")


def _print(made: Forecast, given: _Given) -> None:
    placement, machines = made.placement, given.machines
    rows = [
        (
            machines[stage.machine].name,
            f"{stage.layers.start}:{stage.layers.end}",
            human_size(stage.need_bytes),
            human_size(machines[stage.machine].memory_bytes),
            f"{stage.seconds * 1e3:.2f}",
        )
        for stage in placement.stages
    ]
    print_table("placement", ("machine", "layers", "needs", "has", "ms a token"), rows)
    bound = "" if given.is_measured else "at most "
    print_line(f"one reader        {bound}{1 / placement.token_seconds:.1f} tokens/s")
    if made.first_token_seconds is not None:
        print_line(f"first token       {made.first_token_seconds:.2f} s for {PROMPT_TOKENS} tokens")
    if given.status is not None and given.status.ran is not None:
        print_line(f"measured          {ran_line(given.status.ran)}")
    print_line(f"many readers      a batch every {placement.bottleneck_seconds * 1e3:.2f} ms")
    print_line(f"limited by        {made.limit}, {made.limit_share:.0%} of a token's time")
    print_line(f"search            {'exact' if placement.optimal else 'close to the best'}")
    for more in made.one_more:
        print_line(
            f"one more {more.machine.name}: {1 / more.token_seconds:.1f} tokens/s, a batch every "
            f"{more.bottleneck_seconds * 1e3:.2f} ms"
        )


def _document(made: Forecast, given: _Given) -> dict[str, object]:
    placement, machines, status = made.placement, given.machines, given.status
    ran = None if status is None else status.ran
    return {
        "stages": [
            {
                "machine": machines[stage.machine].name,
                "shard_start": stage.layers.start,
                "shard_end": stage.layers.end,
                "need_bytes": stage.need_bytes,
                "memory_bytes": machines[stage.machine].memory_bytes,
                "seconds": stage.seconds,
            }
            for stage in placement.stages
        ],
        "hop_seconds": placement.hop_seconds,
        "token_seconds": placement.token_seconds,
        "first_token_seconds": made.first_token_seconds,
        "measured": None if ran is None else ran.model_dump(mode="json"),
        "bottleneck_seconds": placement.bottleneck_seconds,
        "optimal": placement.optimal,
        "limit": made.limit,
        "limit_share": made.limit_share,
        "one_more": [
            {
                "machine": more.machine.name,
                "token_seconds": more.token_seconds,
                "bottleneck_seconds": more.bottleneck_seconds,
            }
            for more in made.one_more
        ],
    }
