"""Commands about the cluster that this machine belongs to: status, drain, remove, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, TypeVar

import typer
from pydantic import ValidationError

from meshnet.cli import options as opt
from meshnet.cli.cluster import StateFolder
from meshnet.cli.forecasts import print_links, print_predictions, step_cell
from meshnet.cli.output import human_size, print_json, print_line, print_note, print_table
from meshnet.cli.runtime import run_async
from meshnet.cli.settings import Settings
from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.ids import Address, NodeId
from meshnet.tracker import messages as msg
from meshnet.tracker.client import TrackerClient
from meshnet.tracker.fields import Message
from meshnet.tracker.pairing_messages import CodeReply, CodeRequest
from meshnet.transport.certificates import fingerprint_of
from meshnet.transport.jointoken import JoinToken
from meshnet.transport.tls import Identity

RequestT = TypeVar("RequestT", bound=Message)
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
    pair: Annotated[
        bool,
        typer.Option("--pair", help="A short code to type, in place of the one that is shown now."),
    ] = False,
    seconds: Annotated[
        int | None,
        typer.Option(min=1, help="How long it is good; default: a day, a code 10 minutes."),
    ] = None,
    uses: Annotated[
        int | None,
        typer.Option(min=1, help="How many machines may join with it; default: 100, a code 5."),
    ] = None,
    revoke: Annotated[
        str | None, typer.Option("--revoke", metavar="ID", help="Let nobody join with it any more.")
    ] = None,
) -> None:
    """Print a new line or code to join with, or take a token back. On the tracker's machine only.

    Examples:

      meshnet token --uses 1 --seconds 600

      meshnet token --pair

      meshnet token --revoke 3f2a90cc1d7e
    """

    limits = {"seconds": seconds, "uses": uses}

    async def work() -> None:
        address, identity = _credentials()
        async with TrackerClient(address, identity) as tracker:
            if revoke is not None:
                await tracker.revoke_token(revoke)
                print_line(f"nobody can join with {revoke} any more")
                return
            if pair:
                code = await tracker.new_code(limited(CodeRequest, limits))
                print_line(code.code)
                print_note(good_for(code))
                return
            made = await tracker.issue_token(limited(msg.TokenRequest, limits))
        fingerprint = fingerprint_of(identity.authority_pem)
        word = JoinToken(address, fingerprint, made.secret, made.expires_unix).encode()
        print_line(f"meshnet join {word}")

    run_async(work())


def good_for(code: CodeReply) -> str:
    """How far a code can be used."""
    seconds = f"{code.seconds} s" if code.seconds % 60 else f"{code.seconds // 60} min"
    return f"good for {seconds} and {code.uses} {'machine' if code.uses == 1 else 'machines'}"


def limited(kind: type[RequestT], limits: Mapping[str, int | None]) -> RequestT:
    """A request with the limits that were given, and its own for the others.

    Raises ``InvalidArgumentError`` for one that is more than may be.
    """
    try:
        return kind.model_validate({name: it for name, it in limits.items() if it is not None})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidArgumentError(str(first["loc"][0]), first["msg"]) from None


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
            print_predictions(model)
        else:
            print_line(f"{model.name}: not ready: {model.problem or 'no chain'}")
    # Which model's the layers are has to be said only where there are several.
    names = {it.digest: it.name for it in found.models} if len(found.models) > 1 else {}
    rows = [_row(it, names) for it in found.machines]
    columns = (
        "machine",
        "id",
        "state",
        "layers",
        "fetched",
        "free",
        "step, ms",
        "sessions",
        "note",
    )
    print_table(f"cluster {found.cluster}", columns, rows)
    print_links(found.machines)
    for good in found.tokens:
        print_line(f"token {good.token_id}: {good.uses} more may join with it")


def _row(it: msg.MachineStatus, names: Mapping[str, str]) -> tuple[str, ...]:
    machine, load = it.machine, it.load
    return (
        it.name,
        it.node_id,
        f"{it.state.value}, drained" if it.drained else it.state.value,
        _layers(it, names),
        fetched(it.weights),
        "" if machine is None else human_size(machine.memory_bytes),
        step_cell(it),
        "" if load is None else f"{load.open_sessions}/{load.max_sessions}",
        _note(it),
    )


def _layers(it: msg.MachineStatus, names: Mapping[str, str]) -> str:
    if it.told is None:
        return ""
    layers = f"{it.told.start}:{it.told.end}"
    name = names.get(it.told_model or "")
    return layers if name is None else f"{layers} of {name}"


def fetched(weights: msg.WeightsReport | None) -> str:
    """Where a machine's layers came from since its agent's start; empty where none did."""
    if weights is None or not (weights.first_bytes or weights.peer_bytes):
        return ""
    told = human_size(weights.first_bytes + weights.peer_bytes)
    share = human_size(weights.peer_bytes)
    return f"{told}, {share} of it from peers" if weights.peer_bytes else told


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
