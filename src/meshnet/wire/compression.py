"""Packing of tensor data for one hop. Checksums never see it."""

from __future__ import annotations

from enum import Enum

import zstandard

from meshnet.domain.errors import MalformedFrameError
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb

_ZSTD_LEVEL = 1
"""Activations hardly shrink more at higher levels, which take several times as long."""


class Compression(Enum):
    """How the data of tensor fragments is packed."""

    NONE = "none"
    ZSTD = "zstd"


COMPRESSION_TO_PROTO = {
    Compression.NONE: pb.COMPRESSION_NONE,
    Compression.ZSTD: pb.COMPRESSION_ZSTD,
}


def compression_from_proto(number: int) -> Compression:
    """The packing an envelope names; unspecified is none."""
    for how, candidate in COMPRESSION_TO_PROTO.items():
        if candidate == number:
            return how
    if number == pb.COMPRESSION_UNSPECIFIED:
        return Compression.NONE
    raise MalformedFrameError("compression", f"{number} is no known packing")


def compress(data: bytes | memoryview, how: Compression) -> bytes:
    """Pack ``data``; a Zstandard frame states its content size."""
    if how is Compression.NONE:
        return bytes(data)
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compress(data)


def decompress(data: bytes, how: Compression, size: int, field: str) -> bytes:
    """Unpack ``data``, which must give exactly ``size`` bytes.

    Raises :class:`MalformedFrameError` naming ``field`` otherwise; allocates no more than ``size``.
    """
    if how is Compression.NONE:
        if len(data) != size:
            raise MalformedFrameError(field, f"{len(data)} bytes where {size} belong")
        return data
    try:
        stated = zstandard.frame_content_size(data)
        if stated != size:
            raise MalformedFrameError(field, f"a frame of {stated} bytes where {size} belong")
        # The decompressor allocates what the frame's header states, which was compared just now.
        content = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise MalformedFrameError(field, f"not a Zstandard frame: {error}") from error
    if len(content) != size:
        raise MalformedFrameError(field, f"{len(content)} bytes where {size} belong")
    return content
