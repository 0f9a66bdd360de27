"""Commands about the cluster that this machine belongs to: status, drain, remove, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from meshnet.cli import options as opt
from meshnet.cli.cluster import StateFolder
from meshnet.cli.output import human_size, print_json, print_line, print_table
from meshnet.cli.runtime import run_async
from meshnet.cli.settings import Settings
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.client import TrackerClient
from meshnet.transport.certificates import fingerprint_of
from meshnet.transport.jointoken import JoinToken
from meshnet.transport.tls import Identity

Machine = Annotated[str, typer.Argument(help="A machine's name or id, as `meshnet status` shows.")]


def status(json: opt.Json = False) -> None:
    """Show the cluster: its machines, their layers, and whether the models can be used."""

    async def work() -> None:
        address, identity = _credentials()
        async with TrackerClient(address, identity) as tracker:
            found = await tracker.status()
        if json:
            print_json(found.model_dump(mode="json"))
        else:
            _print(found)

    run_async(work())


def drain(machine: Machine) -> None:
    """Let MACHINE finish what it has, while others take over its layers."""
    _tell(machine, "drain")


def undrain(machine: Machine) -> None:
    """Use MACHINE again after a drain."""
    _tell(machine, "undrain")


def remove(machine: Machine) -> None:
    """Take MACHINE out of the cluster: seconds later nobody takes its certificate."""
    _tell(machine, "remove")


def token(
    seconds: Annotated[int, typer.Option(min=1, help="How long it is good.")] = 86_400,
    uses: Annotated[int, typer.Option(min=1, help="How many machines may join with it.")] = 100,
    revoke: Annotated[
        str | None, typer.Option("--revoke", metavar="ID", help="Let nobody join with it any more.")
    ] = None,
) -> None:
    """Print a new line to join with, or take a token back. On the tracker's machine only.

    Examples:

      meshnet token --uses 1 --seconds 600

      meshnet token --revoke 3f2a90cc1d7e
    """

    async def work() -> None:
        address, identity = _credentials()
        async with TrackerClient(address, identity) as tracker:
            if revoke is not None:
                await tracker.revoke_token(revoke)
                print_line(f"nobody can join with {revoke} any more")
                return
            made = await tracker.issue_token(msg.TokenRequest(seconds=seconds, uses=uses))
        fingerprint = fingerprint_of(identity.authority_pem)
        word = JoinToken(address, fingerprint, made.secret, made.expires_unix).encode()
        print_line(f"meshnet join {word}")

    run_async(work())


def _credentials() -> tuple[Address, Identity]:
    return StateFolder(Settings.from_environment().state).credentials()


def _tell(machine: str, verb: str) -> None:
    async def work() -> None:
        address, identity = _credentials()
        async with TrackerClient(address, identity) as tracker:
            found = await tracker.status()
            node_id = machine_id(found.machines, machine)
            _print(await tracker.tell(node_id, verb))

    run_async(work())


def machine_id(machines: Sequence[msg.MachineStatus], text: str) -> NodeId:
    """The id that a name, an id or the beginning of an id means.

    Raises ``InvalidArgumentError`` if that is none of the machines, or several.
    """
    named = [it for it in machines if text in (it.name, it.node_id)]
    found = named or [it for it in machines if it.node_id.startswith(text)]
    if len(found) == 1:
        return NodeId(found[0].node_id)
    known = ", ".join(f"{it.name} ({it.node_id})" for it in machines) or "none"
    problem = "is the name of several; give an id" if found else "is none of the machines"
    raise InvalidArgumentError("machine", f"{text!r} {problem}: {known}")


def _print(found: msg.StatusReply) -> None:
    for model in found.models:
        if model.ready:
            ids = {it.node_id: it.name for it in found.machines}
            route = " → ".join(ids.get(node, node) for node in model.route)
            print_line(f"{model.name}: ready, {route}")
        else:
            print_line(f"{model.name}: not ready: {model.problem or 'no chain'}")
    # Which model's the layers are has to be said only where there are several.
    names = {it.digest: it.name for it in found.models} if len(found.models) > 1 else {}
    rows = [_row(it, names) for it in found.machines]
    columns = ("machine", "id", "state", "layers", "free", "speed", "sessions", "note")
    print_table(f"cluster {found.cluster}", columns, rows)
    for good in found.tokens:
        print_line(f"token {good.token_id}: {good.uses} more may join with it")


def _row(it: msg.MachineStatus, names: Mapping[str, str]) -> tuple[str, ...]:
    machine, load = it.machine, it.load
    return (
        it.name,
        it.node_id,
        f"{it.state.value}, drained" if it.drained else it.state.value,
        _layers(it, names),
        "" if machine is None else human_size(machine.memory_bytes),
        "" if machine is None else f"{human_size(int(machine.bytes_per_second))}/s",
        "" if load is None else f"{load.open_sessions}/{load.max_sessions}",
        _note(it),
    )


def _layers(it: msg.MachineStatus, names: Mapping[str, str]) -> str:
    if it.told is None:
        return ""
    layers = f"{it.told.start}:{it.told.end}"
    name = names.get(it.told_model or "")
    return layers if name is None else f"{layers} of {name}"


def _note(it: msg.MachineStatus) -> str:
    if it.state is msg.MachineState.DOWN:
        silent = it.silent_seconds
        return "not heard of since the tracker started" if silent is None else f"{silent:.0f} s ago"
    if it.way is msg.Way.NONE:
        return "others can't reach it; does it reach the relay?"
    for work in it.work:
        if work.problem:
            return work.problem
        if work.phase is msg.Phase.FETCHING and work.total_bytes:
            return f"{human_size(work.done_bytes)} of {human_size(work.total_bytes)}"
    return "relayed" if it.way is msg.Way.RELAYED else ""
