"""Fields that this version doesn't know: kept as bytes, so that a node can hand them on."""

from __future__ import annotations

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from meshnet.domain.frames import NOTHING_UNKNOWN, Unknown


def unknown_of(message: Message, envelope: Message | None = None) -> Unknown:
    """What a message, and the envelope in it, hold besides the fields of this schema."""
    if not len(UnknownFieldSet(message)) and (
        envelope is None or not len(UnknownFieldSet(envelope))
    ):
        return NOTHING_UNKNOWN
    return Unknown(_rest(message), b"" if envelope is None else _rest(envelope))


def put_unknown(unknown: Unknown, message: Message, envelope: Message | None = None) -> None:
    """Add such fields to a message, and to the envelope in it."""
    if unknown.message:
        message.MergeFromString(unknown.message)
    if unknown.envelope and envelope is not None:
        envelope.MergeFromString(unknown.envelope)


def _rest(message: Message) -> bytes:
    copy = type(message)()
    copy.CopyFrom(message)
    for field, _ in copy.ListFields():
        copy.ClearField(field.name)
    # Unknown fields of the known ones' messages went with them; only this level's are left.
    return copy.SerializeToString()
