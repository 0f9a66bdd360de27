"""Metrics and traces: what a command tells about itself, and to whom."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager

from meshnet.cli.options import parse_address
from meshnet.cli.output import print_note
from meshnet.domain.errors import MeshnetError
from meshnet.domain.metrics import Sample
from meshnet.gateway.config import is_loopback
from meshnet.gateway.exposition import metrics_app
from meshnet.gateway.server import open_listener, serve_on, url_of
from meshnet.node.keeper import NodeKeeper
from meshnet.node.metrics import NodeReading, node_samples

FIGURES_SECONDS = 2.0
"""How long a worker may take to tell its figures; one that doesn't counts as down."""


@contextmanager
def metrics_listener(text: str | None) -> Iterator[socket.socket | None]:
    """Listen at ``PORT`` or ``HOST:PORT``; a port alone is one of the loopback address.

    None for None. Raises ``InvalidArgumentError`` if the address can't be had.
    """
    if text is None:
        yield None
        return
    address = parse_address("metrics", text if ":" in text else f"127.0.0.1:{text}")
    host, _, port = address.rpartition(":")
    with open_listener(host.strip("[]"), int(port)) as listener:
        if not is_loopback(listener.getsockname()[0]):
            print_note("anybody who reaches the metrics' port can read them")
        yield listener


def node_reader(keepers: Sequence[NodeKeeper]) -> Callable[[], Awaitable[list[Sample]]]:
    """What reads the samples of the nodes of this command; a node that is down is one of them."""

    async def read() -> list[Sample]:
        readings = await node_readings(keepers)
        return [sample for reading in readings for sample in node_samples(reading)]

    return read


async def node_readings(keepers: Sequence[NodeKeeper]) -> Sequence[NodeReading]:
    """The figures of the nodes of this command; one that is down has none."""
    return await asyncio.gather(*map(_read, keepers))


async def _read(keeper: NodeKeeper) -> NodeReading:
    process = keeper.process
    try:
        snapshot = await process.figures(FIGURES_SECONDS)
    except MeshnetError:
        # Told by the sample that says the node is down; why it is, its death has said.
        snapshot = None
    return NodeReading(process.node_id, keeper.deaths, snapshot)


@asynccontextmanager
async def metrics_served(
    listener: socket.socket, keepers: Sequence[NodeKeeper]
) -> AsyncIterator[str]:
    """Offer the nodes' figures on ``listener`` under ``/metrics``; yields the URL."""
    stop = asyncio.Event()
    app = metrics_app(node_reader(keepers), listener.getsockname()[0])
    serving = asyncio.create_task(serve_on(app, listener, on_ready=_ignore, stop=stop))
    try:
        yield f"{url_of(listener)}/metrics"
    finally:
        stop.set()
        await serving


def _ignore(_url: str) -> None:
    """The command itself says where the metrics are, once its node serves."""
