"""``meshnet join``: lend this machine to a cluster."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.cluster import StateFolder, own_address
from meshnet.cli.giving import giving
from meshnet.cli.joining import identity_for
from meshnet.cli.local import slice_cache
from meshnet.cli.logfiles import log_to_files
from meshnet.cli.machine import Lent, MachineAgent
from meshnet.cli.measuring import Computing, Measuring
from meshnet.cli.output import print_step
from meshnet.cli.pairing import token_for
from meshnet.cli.runtime import alongside, interruptible, run_async
from meshnet.cli.settings import Settings, default_threads
from meshnet.cli.slices import TrackerSlices
from meshnet.cli.speed import calibrate
from meshnet.tracker.client import TrackerClient


def join(
    token: Annotated[
        str | None,
        typer.Argument(
            help="What `meshnet up` printed. Without it: as the member that this machine is, or by "
            "a code to a cluster of this network."
        ),
    ] = None,
    tracker: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Join this tracker by its code, rather than look for one."
        ),
    ] = None,
    code: Annotated[
        str | None,
        typer.Option(help="The pairing code, such as 7F4-K2Q; default: it is asked for."),
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
    upload_limit: Annotated[
        str,
        typer.Option(
            metavar="SIZE",
            help="Give other machines so much of this one's layers a second at most; 0: nothing.",
        ),
    ] = "64MiB",
) -> None:
    """Join a cluster and hold the layers that its tracker chooses, until Ctrl-C.

    Of TOKEN, or without one of the local network, by the code that `meshnet up` shows there.

    Examples:

      meshnet join mesh1_... --memory 12GiB

      meshnet join

      meshnet join --tracker 192.168.1.20:7700 --code 7F4-K2Q
    """
    settings = Settings.from_environment(cache_size)
    log_to_files(settings.state, "agent")
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
    upload = opt.parse_size("upload-limit", upload_limit)
    with interruptible():
        word = token_for(StateFolder(settings.state), token, tracker, code)
    asked = _Asked(word, name, host, options, limit, hours, upload)
    run_async(_run(asked, settings))


@dataclass(frozen=True, slots=True)
class _Asked:
    token: str | None
    name: str | None
    host: str | None
    options: opt.NodeOptions
    memory_bytes: int | None
    hours: str
    upload_limit: int
    """Bytes a second; 0: nothing is given to others."""


async def _run(asked: _Asked, settings: Settings) -> None:
    state = StateFolder(settings.state)
    tracker, folder, identity = await identity_for(state, asked.token, asked.name)
    host = asked.host or own_address(tracker)
    speed = await calibrate(settings, asked.options.threads)
    membership = state.membership()
    name = None if membership is None else membership.name
    print_step(f"joined as {name} ({identity.node_id}); tracker at {tracker}")
    lent = Lent(host, asked.options, asked.memory_bytes, asked.hours, name)
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(TrackerClient(tracker, identity))
        cache, given = slice_cache(settings), None
        if asked.upload_limit:
            serving = giving(cache.store, folder.files, host, asked.upload_limit)
            given = await stack.enter_async_context(serving)
        slices = TrackerSlices(tracker, folder.files, cache, given)
        computing = Computing(settings, asked.options, slices)
        measuring = Measuring(tracker, folder.files, computing)
        await measuring.begin(client)
        await stack.enter_async_context(alongside(measuring.run(), "measuring"))
        agent = MachineAgent(client, folder, settings, lent, speed, slices, measuring)
        await agent.run()
