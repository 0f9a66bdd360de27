"""The wire contract in Python: frames and tensor bundles as bytes, checked on the way in.

The schema is ``proto/meshnet/wire/v1/shard_runtime.proto``. Flow-control bounds are negotiated by
:meth:`meshnet.domain.nodes.FlowControl.strictest`.
"""

from __future__ import annotations

from meshnet.wire.checksum import crc32c
from meshnet.wire.chunks import chunk_positions, plan_prefill_chunks
from meshnet.wire.codec import decode_bundle, encode_bundle
from meshnet.wire.compression import Compression
from meshnet.wire.convert import decode_replies, decode_request, encode_reply, encode_request
from meshnet.wire.status import (
    CODE_FROM_GRPC,
    CODE_TO_PROTO,
    GRPC_FROM_CODE,
    error_trailer,
    status_from_proto,
    status_from_trailer,
    status_to_proto,
)

__all__ = [
    "CODE_FROM_GRPC",
    "CODE_TO_PROTO",
    "GRPC_FROM_CODE",
    "Compression",
    "chunk_positions",
    "crc32c",
    "decode_bundle",
    "decode_replies",
    "decode_request",
    "encode_bundle",
    "encode_reply",
    "encode_request",
    "error_trailer",
    "plan_prefill_chunks",
    "status_from_proto",
    "status_from_trailer",
    "status_to_proto",
]
