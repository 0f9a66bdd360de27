"""Receipts of seams, and their messages, in pairs.

See :mod:`meshnet.wire.convert_values` for what is raised.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

from meshnet.domain.errors import MalformedFrameError
from meshnet.domain.frames import SignedWork
from meshnet.domain.ids import NodeId
from meshnet.domain.receipts import SeamEnd, SeamWork, Statement
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.convert_values import layers_from_proto, layers_to_proto, named, require

MAX_SIGNATURE_BYTES: Final = 256
"""Of a key and of a signature: those of P-256 take about 91 and 72."""


def opener_to_proto(value: SeamEnd | None) -> pb.SeamEnd | None:
    """See :class:`SeamEnd`."""
    if value is None:
        return None
    layers = None if value.layers is None else layers_to_proto(value.layers)
    return pb.SeamEnd(node_id=value.node_id, layers=layers)


def opener_from_proto(message: pb.Generate | pb.OpenSession) -> SeamEnd | None:
    """The opener that a message names; see :class:`SeamEnd`."""
    if not message.HasField("opener"):
        return None
    opener = message.opener
    layers = layers_from_proto(opener.layers) if opener.HasField("layers") else None
    return SeamEnd(NodeId(named(opener.node_id, "opener.node_id")), layers)


def signed_to_proto(value: SignedWork) -> pb.SignedWork:
    """See :class:`SignedWork`."""
    statement = value.statement
    return pb.SignedWork(
        handle=value.handle,
        work=pb.SeamWork(**asdict(statement.work)),
        public_key=bytes.fromhex(statement.public_key),
        signature=bytes.fromhex(statement.signature),
    )


def signed_from_proto(message: pb.SignedWork) -> SignedWork:
    """See :class:`SignedWork`."""
    require(message, "work")
    for field in ("public_key", "signature"):
        size = len(getattr(message, field))
        if not 1 <= size <= MAX_SIGNATURE_BYTES:
            raise MalformedFrameError(
                f"receipt.{field}", f"{size} bytes aren't 1 to {MAX_SIGNATURE_BYTES}"
            )
    work = SeamWork.of(message.work)
    signed = Statement(work, message.public_key.hex(), message.signature.hex())
    return SignedWork(message.handle, signed)
