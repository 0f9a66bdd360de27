"""``meshnet logs``: what this machine's processes, or another machine's, did."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Final

import typer

from meshnet.cli import options as opt
from meshnet.cli.cluster import StateFolder
from meshnet.cli.clusterwide import machine_id
from meshnet.cli.logfiles import newest, shown
from meshnet.cli.output import print_json, print_line
from meshnet.cli.runtime import run_async
from meshnet.cli.settings import Settings
from meshnet.domain.errors import NodeNotReadyError
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.logmessages import MAX_LINES, LogLine
from meshnet.tracker.messages import MachineState

LOOK_SECONDS: Final = 0.5
ANSWER_SECONDS: Final = 15.0
"""How long a machine may take to send its lines: a few of its heartbeats."""


def logs(
    machine: Annotated[
        str | None,
        typer.Argument(
            help="Name or id of another machine, on the first one; default: this machine."
        ),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int,
        typer.Option("--lines", "-n", min=0, max=100_000, help="Show so many of those before."),
    ] = 100,
    json: opt.Json = False,
) -> None:
    """Show the log of this machine's processes, or of another MACHINE's.

    Of another machine, at most its last 200 lines are to be had.

    Example: meshnet logs second --follow
    """
    state = StateFolder(Settings.from_environment().state)
    run_async(_show(_lines(state, machine, lines, follow=follow), json=json))


async def _show(lines: AsyncIterator[LogLine], *, json: bool) -> None:
    async for line in lines:
        if json:
            print_json(line.model_dump())
        else:
            print_line(shown(line))


async def _lines(
    state: StateFolder, machine: str | None, count: int, *, follow: bool
) -> AsyncGenerator[LogLine, None]:
    membership = state.membership()
    if machine is None or (membership is not None and machine == membership.name):
        source = _own(state, count, follow=follow)
    else:
        source = _others(state, machine, min(count, MAX_LINES), follow=follow)
    async for line in source:
        yield line


async def _own(state: StateFolder, count: int, *, follow: bool) -> AsyncGenerator[LogLine, None]:
    last = int(time.time() * 1e6)
    found = await asyncio.to_thread(newest, state.root, 0, count)
    while True:
        for line in found:
            yield line
            last = line.at
        if not follow:
            return
        await asyncio.sleep(LOOK_SECONDS)
        found = await asyncio.to_thread(newest, state.root, last, 100_000)


async def _others(
    state: StateFolder, machine: str, count: int, *, follow: bool
) -> AsyncGenerator[LogLine, None]:
    address, identity = state.credentials()
    async with TrackerClient(address, identity) as client:
        machines = (await client.status()).machines
        node_id = machine_id(machines, machine)
        if any(it.node_id == node_id and it.state is MachineState.DOWN for it in machines):
            raise NodeNotReadyError(f"{machine} isn't there: it sends no heartbeats")
        last = 0
        heard = (await client.logs(node_id, last)).chunks
        until = time.monotonic() + ANSWER_SECONDS
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            reply = await client.logs(node_id, last)
            if reply.chunks == heard:
                if time.monotonic() > until:
                    raise NodeNotReadyError(
                        f"{machine} sends no lines; `meshnet status` says whether it is there"
                    )
                continue
            heard, until = reply.chunks, time.monotonic() + ANSWER_SECONDS
            for line in reply.lines if last else reply.lines[len(reply.lines) - count :]:
                yield line
            last = reply.lines[-1].at if reply.lines else last
            if not follow:
                return
