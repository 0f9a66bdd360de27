"""``meshnet join``: lend this machine to a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.cluster import StateFolder, own_address
from meshnet.cli.joining import identity_for
from meshnet.cli.local import slice_cache
from meshnet.cli.machine import Lent, MachineAgent
from meshnet.cli.output import print_line
from meshnet.cli.runtime import run_async
from meshnet.cli.settings import Settings, default_threads
from meshnet.cli.slices import TrackerSlices
from meshnet.cli.speed import calibrate
from meshnet.tracker.client import TrackerClient


def join(
    token: Annotated[
        str | None,
        typer.Argument(help="What `meshnet up` printed; not needed again once joined."),
    ] = None,
    name: opt.MachineName = None,
    host: Annotated[
        str | None,
        typer.Option(
            help="Address at which other machines reach this one; default: the one that it "
            "reaches the tracker from."
        ),
    ] = None,
    memory: opt.Memory = None,
    hours: opt.LentHours = "",
    threads: opt.Threads = None,
    gpu_layers: opt.GpuLayers = 0,
    mlock: opt.Mlock = False,
    no_mmap: opt.NoMmap = False,
    cache_size: opt.CacheSize = None,
) -> None:
    """Join the cluster of TOKEN: hold the layers that its tracker chooses, until Ctrl-C.

    Example:

      meshnet join mesh1_... --memory 12GiB
    """
    settings = Settings.from_environment(cache_size)
    options = opt.NodeOptions(
        1,
        threads or default_threads(1),
        context_length=1,
        sessions=1,
        gpu_layers=gpu_layers,
        mlock=mlock,
        mmap=not no_mmap,
    )
    limit = None if memory is None else opt.parse_size("memory", memory)
    asked = _Asked(token, name, host, options, limit, hours)
    run_async(_run(asked, settings))


@dataclass(frozen=True, slots=True)
class _Asked:
    token: str | None
    name: str | None
    host: str | None
    options: opt.NodeOptions
    memory_bytes: int | None
    hours: str


async def _run(asked: _Asked, settings: Settings) -> None:
    state = StateFolder(settings.state)
    tracker, folder, identity = await identity_for(state, asked.token, asked.name)
    host = asked.host or own_address(tracker)
    speed = await calibrate(settings, asked.options.threads)
    membership = state.membership()
    name = None if membership is None else membership.name
    print_line(f"joined as {name} ({identity.node_id}); tracker at {tracker}")
    lent = Lent(host, asked.options, asked.memory_bytes, asked.hours, name)
    async with TrackerClient(tracker, identity) as client:
        slices = TrackerSlices(tracker, folder.files, slice_cache(settings))
        agent = MachineAgent(client, folder, settings, lent, speed, slices)
        await agent.run()
