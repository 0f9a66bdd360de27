"""``meshnet join`` without a token: finds a tracker on the local network, and asks for its code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from rich.prompt import Prompt

from meshnet.cli.cluster import StateFolder
from meshnet.cli.options import parse_address
from meshnet.cli.output import err, print_error, print_note, print_table, waiting
from meshnet.cli.runtime import run_async
from meshnet.domain.errors import (
    InvalidArgumentError,
    NodeUnreachableError,
    UnauthenticatedError,
)
from meshnet.domain.ids import Address
from meshnet.tracker.client import pair
from meshnet.transport.discovery import PROTOCOL, Announced, browse
from meshnet.transport.jointoken import JoinToken
from meshnet.transport.pairing import PairingCode

BROWSE_SECONDS: Final = 3.0
CONTACT_SECONDS: Final = 4.0
"""For each of a tracker's addresses, of which some may lead nowhere from here."""
ASKED_TIMES: Final = 3
QUESTION: Final = "pairing code (`meshnet up` shows it, `meshnet token --pair` a new one)"
INSTEAD: Final = "paste the line that `meshnet up` printed, or give --tracker HOST:PORT"


def token_for(
    state: StateFolder, token: str | None, tracker: str | None, code: str | None
) -> str | None:
    """The token to join with, got by pairing where it takes that; None: as the member it is.

    ``tracker``: ``HOST:PORT``; None: whatever is found. Asks on the terminal for what is missing.
    Raises ``InvalidArgumentError`` for what contradicts itself or can't be asked for, and what
    :func:`meshnet.tracker.client.pair` raises.
    """
    if token is not None:
        if tracker is not None or code is not None:
            raise InvalidArgumentError(
                "token", "it says where the tracker is, and needs no code; leave out the options"
            )
        return token
    if tracker is None and code is None and is_member(state):
        return None
    known = None if code is None else PairingCode.parse(code)
    if known is None and not _can_ask():
        raise InvalidArgumentError(
            "code",
            "this machine belongs to no cluster yet, and here is no terminal to ask for the code; "
            "give --code, or the token that `meshnet up` printed",
        )
    if tracker is None:
        return _paired(_choice(_found()).addresses, known).encode()
    return _paired((parse_address("tracker", tracker),), known).encode()


def is_member(state: StateFolder) -> bool:
    """Whether this machine has joined a cluster."""
    return state.membership() is not None and state.node().identity() is not None


def _can_ask() -> bool:
    return sys.stdin.isatty() and err.is_terminal


def _found() -> tuple[Announced, ...]:
    found: list[Announced] = []

    async def look() -> None:
        found.extend(await browse(BROWSE_SECONDS))

    try:
        with waiting("looking for clusters on this network"):
            run_async(look())
    except NodeUnreachableError as error:
        raise NodeUnreachableError(f"{error.message}; {INSTEAD}") from error
    return tuple(found)


def _choice(found: Sequence[Announced]) -> Announced:
    """The one tracker, or the one that is chosen."""
    if not found:
        raise NodeUnreachableError(
            "no cluster was found on this network; does `meshnet up` run there, without "
            "--no-announce? Networks that keep machines apart or drop multicast (UDP 5353) hide "
            f"it: then {INSTEAD}"
        )
    spoken = [it for it in found if it.protocol == PROTOCOL]
    if not spoken:
        raise NodeUnreachableError(
            f"{found[0].cluster} at {found[0].addresses[0]} pairs by another version of the "
            "protocol; do both machines run the same meshnet?"
        )
    if len(spoken) == 1:
        print_note(f"found {spoken[0].cluster} at {spoken[0].addresses[0]}")
        return spoken[0]
    if not _can_ask():
        named = ", ".join(f"{it.cluster} at {it.addresses[0]}" for it in spoken)
        raise InvalidArgumentError(
            "tracker", f"there are several clusters: {named}; choose one with --tracker HOST:PORT"
        )
    rows = [
        (number, it.cluster, it.addresses[0], it.fingerprint[:16])
        for number, it in enumerate(spoken, 1)
    ]
    print_table("clusters on this network", ("", "cluster", "tracker", "authority"), rows)
    numbers = [str(row[0]) for row in rows]
    return spoken[int(_ask("which one", numbers)) - 1]


def _paired(places: Sequence[Address], known: PairingCode | None) -> JoinToken:
    """A token for the code; one that is typed wrong may be typed again."""
    if known is not None:
        return _token_at(places, known)
    for _ in range(ASKED_TIMES - 1):
        try:
            return _token_at(places, PairingCode.parse(_ask(QUESTION)))
        except (InvalidArgumentError, UnauthenticatedError) as error:
            # Not one that is over: another try wouldn't help.
            mistyped = "code" if isinstance(error, InvalidArgumentError) else "proof"
            if error.details.get("field") != mistyped:
                raise
            print_error(error.message)
    return _token_at(places, PairingCode.parse(_ask(QUESTION)))


def _token_at(places: Sequence[Address], code: PairingCode) -> JoinToken:
    """The token, from the tracker that has these addresses."""
    got: list[JoinToken] = []

    async def ask() -> None:
        got.append(await pair(places, code, CONTACT_SECONDS))

    with waiting(f"pairing with {places[0]}"):
        run_async(ask())
    return got[0]


def _ask(question: str, choices: list[str] | None = None) -> str:
    try:
        return Prompt.ask(question, console=err, choices=choices)
    except EOFError:
        raise InvalidArgumentError("input", "it ended before an answer was given") from None
