"""Tensor bundles: to the wire and back, cut into fragments and put together again.

Nothing here trusts what it decodes: every size is compared with what was declared, and what was
declared with a bound, before memory is taken for it.
"""

from __future__ import annotations

import math

from meshnet.domain.errors import InputError, InvalidArgumentError, MalformedFrameError
from meshnet.domain.tensors import BoundaryBundle, DType, EngineTensor
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.checksum import crc32c
from meshnet.wire.compression import Compression, compress, decompress

BUNDLE_VERSION = 1
FRAGMENT_BYTES = 4 * 2**20
"""Tensors up to this size are one fragment: 128 rows of 8192 float32 values."""
MAX_RANK = 8

DTYPE_TO_PROTO = {
    DType.FLOAT32: pb.TENSOR_DTYPE_FLOAT32,
    DType.FLOAT16: pb.TENSOR_DTYPE_FLOAT16,
    DType.BFLOAT16: pb.TENSOR_DTYPE_BFLOAT16,
    DType.Q8_0: pb.TENSOR_DTYPE_Q8_0,
}
DTYPE_FROM_PROTO = {number: dtype for dtype, number in DTYPE_TO_PROTO.items()}


def encode_bundle(
    bundle: BoundaryBundle,
    compression: Compression = Compression.NONE,
    fragment_bytes: int = FRAGMENT_BYTES,
) -> pb.TensorBundle:
    """The bundle's wire form, each fragment at most ``fragment_bytes`` before compression."""
    message = pb.TensorBundle()
    write_bundle(message, bundle, compression, fragment_bytes)
    return message


def write_bundle(
    message: pb.TensorBundle,
    bundle: BoundaryBundle,
    compression: Compression = Compression.NONE,
    fragment_bytes: int = FRAGMENT_BYTES,
) -> int:
    """Fill an empty message in place, and give the CRC32C of all tensors' data together."""
    if fragment_bytes < 1:
        raise InvalidArgumentError("fragment_bytes", f"{fragment_bytes} must be at least 1")
    message.version = BUNDLE_VERSION
    message.token_id_sideband.extend(bundle.token_id_sideband)
    for tensor in bundle.tensors:
        _write_tensor(message.tensors.add(), tensor, compression, fragment_bytes)
    return payload_checksum(bundle, message)


def payload_checksum(bundle: BoundaryBundle, message: pb.TensorBundle) -> int:
    """CRC32C of all tensors' data, one after the other.

    For a single tensor that is the tensor's own sum, which needn't be computed again.
    """
    if len(bundle.tensors) == 1:
        return message.tensors[0].checksum
    total = 0
    for tensor in bundle.tensors:
        total = crc32c(as_bytes(tensor.data), total)
    return total


def decode_bundle(
    message: pb.TensorBundle,
    *,
    max_bytes: int,
    compression: Compression = Compression.NONE,
) -> BoundaryBundle:
    """The bundle a message holds; takes no more than ``max_bytes`` for its tensors' data.

    Raises :class:`MalformedFrameError`, naming the field, for whatever contradicts itself.
    """
    if message.version > BUNDLE_VERSION:
        raise MalformedFrameError(
            "bundle.version", f"{message.version} is newer than {BUNDLE_VERSION}, the newest known"
        )
    declared = sum(tensor.total_bytes for tensor in message.tensors)
    if declared > max_bytes:
        raise MalformedFrameError(
            "bundle.total_bytes", f"{declared} bytes are over the bound of {max_bytes}"
        )
    tensors = tuple(
        _read_tensor(tensor, f"tensors[{index}]", compression)
        for index, tensor in enumerate(message.tensors)
    )
    try:
        return BoundaryBundle(tensors, tuple(message.token_id_sideband))
    except InvalidArgumentError as error:
        raise malformed(error) from error


def malformed(error: InputError) -> MalformedFrameError:
    """The error for a value that came in, where an :class:`InputError` blames the caller."""
    field = error.details.get("field", "layers")
    return MalformedFrameError(field, error.message.removeprefix(f"{field}: "))


def as_bytes(data: bytes | bytearray | memoryview) -> bytes:
    """Protobuf and the checksum take ``bytes`` alone; other buffers are copied once."""
    return data if isinstance(data, bytes) else bytes(data)


def _write_tensor(
    message: pb.NamedTensor, tensor: EngineTensor, compression: Compression, fragment_bytes: int
) -> None:
    data = as_bytes(tensor.data)
    message.name = tensor.name
    message.shape.extend(tensor.shape)
    message.dtype = DTYPE_TO_PROTO[tensor.dtype]
    message.byte_order = pb.BYTE_ORDER_LITTLE_ENDIAN
    message.total_bytes = len(data)
    message.checksum = crc32c(data)
    if len(data) <= fragment_bytes:
        if data:
            message.fragments.add(data=compress(data, compression))
        return
    view = memoryview(data)
    for index, offset in enumerate(range(0, len(data), fragment_bytes)):
        piece = compress(view[offset : offset + fragment_bytes], compression)
        message.fragments.add(index=index, offset=offset, data=piece)


def _read_tensor(message: pb.NamedTensor, field: str, compression: Compression) -> EngineTensor:
    dtype = DTYPE_FROM_PROTO.get(message.dtype)
    if dtype is None:
        raise MalformedFrameError(f"{field}.dtype", f"no known element type: {message.dtype}")
    if message.byte_order != pb.BYTE_ORDER_LITTLE_ENDIAN:
        raise MalformedFrameError(
            f"{field}.byte_order", f"{message.byte_order} isn't little-endian, the only one taken"
        )
    shape = tuple(message.shape)
    _check_size(message, field, dtype, shape)
    data = _reassemble(message, field, compression)
    if crc32c(data) != message.checksum:
        raise MalformedFrameError(f"{field}.checksum", "the data has another sum")
    try:
        return EngineTensor(message.name, dtype, shape, data)
    except InvalidArgumentError as error:
        raise MalformedFrameError(f"{field}.{error.details['field']}", error.message) from error


def _check_size(message: pb.NamedTensor, field: str, dtype: DType, shape: tuple[int, ...]) -> None:
    """Compare shape and declared size. Python's integers don't overflow, so that none can pass."""
    if len(shape) > MAX_RANK:
        raise MalformedFrameError(f"{field}.shape", f"{len(shape)} extents are over {MAX_RANK}")
    if any(extent < 0 for extent in shape):
        raise MalformedFrameError(f"{field}.shape", f"a negative extent: {shape}")
    try:
        expected = dtype.byte_length(math.prod(shape))
    except InvalidArgumentError as error:
        raise MalformedFrameError(f"{field}.shape", error.message) from error
    if expected != message.total_bytes:
        raise MalformedFrameError(
            f"{field}.total_bytes",
            f"{message.total_bytes} declared, but {shape} of {dtype.value} takes {expected}",
        )


def _reassemble(message: pb.NamedTensor, field: str, compression: Compression) -> bytes:
    """Join the fragments, which may come in any order; each must begin where the last one ended."""
    total = message.total_bytes
    fragments = sorted(message.fragments, key=lambda fragment: fragment.index)
    if not fragments:
        if total:
            raise MalformedFrameError(f"{field}.fragments", f"none, but {total} bytes declared")
        return b""
    for place, fragment in enumerate(fragments):
        if fragment.index != place:
            kind = "repeated" if fragment.index < place else "missing"
            raise MalformedFrameError(
                f"{field}.fragments[{place}].index", f"a fragment is {kind}: {fragment.index}"
            )
    pieces = []
    ends = [fragment.offset for fragment in fragments[1:]] + [total]
    done = 0
    for place, (fragment, end) in enumerate(zip(fragments, ends, strict=True)):
        where = f"{field}.fragments[{place}]"
        if fragment.offset != done or not done < end <= total:
            raise MalformedFrameError(
                f"{where}.offset",
                f"a piece [{fragment.offset}, {end}) can't follow byte {done} of {total}",
            )
        pieces.append(decompress(fragment.data, compression, end - done, f"{where}.data"))
        done = end
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)
