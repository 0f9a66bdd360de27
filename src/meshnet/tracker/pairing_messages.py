"""What a machine that has a short code, and no token, says to the tracker."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from meshnet.tracker.fields import Message
from meshnet.transport.pairing import MESSAGE_BYTES, PROOF_BYTES

PATH_PAIR = "/pair"
PATH_PROVE = "/pair/prove"
PATH_CODE = "/pair/code"
MAX_BODY_BYTES = 1024
"""Of a request."""
MAX_REPLY_BYTES = 8192
"""Of an answer, which may come from anybody."""

ExchangeId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
PairText = Annotated[str, StringConstraints(pattern=f"^[0-9a-f]{{{2 * MESSAGE_BYTES}}}$")]
"""A :class:`~meshnet.transport.pairing.PairingSide`'s message, hexadecimal."""
ProofText = Annotated[str, StringConstraints(pattern=f"^[0-9a-f]{{{2 * PROOF_BYTES}}}$")]


class PairRequest(Message):
    """A machine that was told the code begins an exchange."""

    message: PairText


class PairReply(Message):
    """The tracker's half of the exchange."""

    exchange: ExchangeId
    """To be named with the proof."""
    message: PairText


class ProofRequest(Message):
    """The machine shows that it has the code."""

    exchange: ExchangeId
    proof: ProofText


class ProofReply(Message):
    """The tracker shows it too, and hands over a join token's secret part."""

    proof: ProofText
    sealed: Annotated[str, StringConstraints(pattern=r"^([0-9a-f]{2}){1,1024}$")]
    """A :class:`~meshnet.tracker.messages.TokenReply` in JSON, sealed; hexadecimal."""


class CodeRequest(Message):
    """An admin wants a new pairing code; the one before isn't good any more."""

    seconds: Annotated[int, Field(ge=1, le=3600)] = 600
    """How long it is good."""
    uses: Annotated[int, Field(ge=1, le=50)] = 5
    """How many machines may join with it."""


class CodeReply(Message):
    """A code for people to type, and how long and for how many it is good."""

    code: Annotated[str, StringConstraints(pattern=r"^[0-9A-Z]{3}-[0-9A-Z]{3}$")]
    seconds: int
    uses: int
