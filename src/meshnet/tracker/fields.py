"""What fields of the messages between machines and the tracker may hold."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from meshnet.domain.errors import InvalidArgumentError
from meshnet.transport.address import parse_address


def _address(text: str) -> str:
    try:
        _, port = parse_address(text, "address")
    except InvalidArgumentError as error:
        raise ValueError(error.message) from None
    if port == 0:
        raise ValueError(f"{text!r} has port 0, which nobody can connect to")
    return text


Count = Annotated[int, Field(ge=0, lt=2**53)]
Seconds = Annotated[float, Field(ge=0, lt=1e9, allow_inf_nan=False)]
Rate = Annotated[float, Field(gt=0, lt=1e18, allow_inf_nan=False)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$")]
DigestText = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
AddressText = Annotated[str, StringConstraints(max_length=261), AfterValidator(_address)]
"""``host:port`` or ``[ipv6]:port`` that others can connect to."""
NodeIdText = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{16}$")]
Problem = Annotated[str, StringConstraints(max_length=1000)]
DeviceName = Annotated[str, StringConstraints(max_length=200)]
Pem = Annotated[str, StringConstraints(min_length=1, max_length=16_384)]


class Message(BaseModel):
    """Frozen; a field that isn't known, or of another type, is refused by its name."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)
