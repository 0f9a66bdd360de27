"""The machines of this one's cluster, as a plan takes them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from meshnet.cli.cluster import StateFolder
from meshnet.cli.local import find_model, slice_cache
from meshnet.cli.settings import Settings
from meshnet.cli.slices import TrackerSlices
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Digest
from meshnet.model.gguf import GgufIndex, read_index
from meshnet.tracker import messages as msg
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.forecast import Link, Network
from meshnet.tracker.placement import Machine
from meshnet.tracker.speeds import Hop


@dataclass(frozen=True, slots=True)
class Cluster:
    """What a plan needs of a cluster."""

    index: GgufIndex
    """The model's header."""
    machines: list[Machine]
    """Those that are there, as fast as they measured themselves with the model."""
    network: Network
    status: msg.ModelStatus | None
    """Of the model, if the cluster serves it."""


async def cluster_of(model: str, settings: Settings, others: Link) -> Cluster:
    """The cluster that this machine belongs to; ``others``: links that nobody has measured.

    ``model`` is a file, an address, or the name of a model that the cluster serves. Raises
    ``InvalidArgumentError`` ("machine") where this machine belongs to none, or no machine is there.
    """
    folder = StateFolder(settings.state)
    if folder.membership() is None:
        raise InvalidArgumentError(
            "machine", "this machine belongs to no cluster; name machines with --machine"
        )
    address, identity = folder.credentials()
    async with TrackerClient(address, identity) as tracker:
        status = await tracker.status()
    served = next((it for it in status.models if model in (it.name, it.digest)), None)
    if served is None:
        found = await asyncio.to_thread(find_model, model, settings)
        index = read_index(found.path)
        served = next((it for it in status.models if it.name == found.name), None)
    else:
        slices = TrackerSlices(address, identity, slice_cache(settings))
        digest, stop = Digest(served.digest), threading.Event()
        try:
            index = await asyncio.to_thread(slices.header, digest, stop)
        finally:
            # Who interrupts the command needn't wait for the rest of it.
            stop.set()
    there = [
        it
        for it in status.machines
        if it.machine is not None and it.state is not msg.MachineState.DOWN
    ]
    if not there:
        raise InvalidArgumentError("machine", "no machine of the cluster is there now")
    digest_text = "" if served is None else served.digest
    machines = [_machine(it, digest_text) for it in there]
    return Cluster(index, machines, network_of(there, others), served)


def network_of(machines: list[msg.MachineStatus], others: Link) -> Network:
    """The links that these machines measured to one another, by their indices."""
    places = {it.node_id: number for number, it in enumerate(machines)}
    measured = {
        (number, places[link.node_id]): Hop(
            link.round_trip_seconds / 2, link.bytes_per_second or others.bytes_per_second
        )
        for number, it in enumerate(machines)
        for link in it.links
        if link.node_id in places
    }
    return Network(others, measured)


def _machine(it: msg.MachineStatus, model: str) -> Machine:
    lent = it.machine
    if lent is None:
        raise InvalidArgumentError("machine", f"{it.name} hasn't said yet what it lends")
    measured = tuple((each.model, each.speed()) for each in lent.speeds)
    return Machine(it.name, lent.memory_bytes, lent.bytes_per_second, measured).placing(model)
