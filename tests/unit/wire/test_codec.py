"""Bundles to the wire and back, and every way in which one can contradict itself."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError, MalformedFrameError
from meshnet.domain.tensors import BoundaryBundle, DType, EngineTensor
from meshnet.wire._generated.v1 import shard_runtime_pb2 as pb
from meshnet.wire.checksum import crc32c
from meshnet.wire.codec import decode_bundle, encode_bundle, write_bundle
from meshnet.wire.compression import Compression
from tests.support.frames import bundles, residual, unhurried

BOUND = 2**20


def test_crc32c_is_castagnoli() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of RFC 3720's polynomial
    assert crc32c(b"456789", crc32c(b"123")) == 0xE3069283
    assert crc32c(b"") == 0


@unhurried
@given(bundles(), st.sampled_from(Compression), st.integers(1, 64))
def test_a_bundle_survives_the_wire(
    bundle: BoundaryBundle, compression: Compression, fragment_bytes: int
) -> None:
    data = encode_bundle(bundle, compression, fragment_bytes).SerializeToString()
    back = decode_bundle(
        pb.TensorBundle.FromString(data), max_bytes=bundle.byte_length, compression=compression
    )
    assert back == bundle


@unhurried
@given(bundles(), st.sampled_from(Compression), st.randoms(use_true_random=False))
def test_fragments_may_come_in_any_order(
    bundle: BoundaryBundle, compression: Compression, random: object
) -> None:
    message = encode_bundle(bundle, compression, fragment_bytes=5)
    for tensor in message.tensors:
        fragments = list(tensor.fragments)
        random.shuffle(fragments)  # type: ignore[attr-defined]
        del tensor.fragments[:]
        tensor.fragments.extend(fragments)
    assert decode_bundle(message, max_bytes=BOUND, compression=compression) == bundle


@unhurried
@given(bundles())
def test_the_sum_of_all_data_does_not_depend_on_how_it_is_packed(bundle: BoundaryBundle) -> None:
    everything = b"".join(tensor.data for tensor in bundle.tensors)
    for compression in Compression:
        assert write_bundle(pb.TensorBundle(), bundle, compression, 7) == crc32c(everything)


def test_a_buffer_that_is_not_bytes_is_taken() -> None:
    data = memoryview(bytearray(range(16)))
    bundle = BoundaryBundle((EngineTensor("t", DType.FLOAT32, (2, 2), data),))  # type: ignore[arg-type]
    back = decode_bundle(encode_bundle(bundle), max_bytes=16)
    assert back.tensors[0].data == bytes(range(16))


def test_a_fragment_without_bytes_cannot_be_asked_for() -> None:
    with pytest.raises(InvalidArgumentError, match="fragment_bytes"):
        encode_bundle(BoundaryBundle((residual(1, 4),)), fragment_bytes=0)


def _first(change: Callable[[pb.NamedTensor], None]) -> Callable[[pb.TensorBundle], None]:
    return lambda bundle: change(bundle.tensors[0])


def _set(**fields: object) -> Callable[[pb.TensorBundle], None]:
    def change(tensor: pb.NamedTensor) -> None:
        for name, value in fields.items():
            setattr(tensor, name, value)

    return _first(change)


def _shape(*extents: int) -> Callable[[pb.TensorBundle], None]:
    def change(tensor: pb.NamedTensor) -> None:
        del tensor.shape[:]
        tensor.shape.extend(extents)

    return _first(change)


def _fragment(place: int, **fields: object) -> Callable[[pb.TensorBundle], None]:
    def change(tensor: pb.NamedTensor) -> None:
        for name, value in fields.items():
            setattr(tensor.fragments[place], name, value)

    return _first(change)


def _drop(place: int) -> Callable[[pb.TensorBundle], None]:
    return _first(lambda tensor: tensor.fragments.__delitem__(place))


def _twice(place: int) -> Callable[[pb.TensorBundle], None]:
    return _first(lambda tensor: tensor.fragments.append(tensor.fragments[place]))


# The bundle that is changed: two tensors of 2 x 8 float32, 64 bytes each, in fragments of 24, 24
# and 16 bytes.
MALFORMED: dict[str, tuple[Callable[[pb.TensorBundle], None], str]] = {
    "newer version": (lambda bundle: setattr(bundle, "version", 2), "bundle.version"),
    "no tensors": (lambda bundle: bundle.tensors.__delitem__(slice(None)), "tensors"),
    "name twice": (_set(name="b"), "tensors"),
    "no name": (_set(name=""), "tensors[0].name"),
    "no dtype": (_set(dtype=0), "tensors[0].dtype"),
    "unknown dtype": (_set(dtype=99), "tensors[0].dtype"),
    "no byte order": (_set(byte_order=0), "tensors[0].byte_order"),
    "big-endian": (_set(byte_order=pb.BYTE_ORDER_BIG_ENDIAN), "tensors[0].byte_order"),
    "negative extent": (_shape(-2, -8), "tensors[0].shape"),
    "product over 64 bits": (_shape(2**62, 2**62, 16), "tensors[0].total_bytes"),
    "product that wraps round to the right one": (
        _shape(2**32, 2**32, 1),
        "tensors[0].total_bytes",
    ),
    "too many extents": (_shape(2, 8, *[1] * 7), "tensors[0].shape"),
    "other shape": (_shape(2, 7), "tensors[0].total_bytes"),
    "no whole q8_0 block": (_set(dtype=pb.TENSOR_DTYPE_Q8_0), "tensors[0].shape"),
    "total too small": (_set(total_bytes=60), "tensors[0].total_bytes"),
    "total over the bound": (_set(total_bytes=2**63), "bundle.total_bytes"),
    "wrong sum": (_set(checksum=1), "tensors[0].checksum"),
    "changed data": (_fragment(1, data=b"x" * 24), "tensors[0].checksum"),
    "no fragments": (
        _first(lambda tensor: tensor.fragments.__delitem__(slice(None))),
        "tensors[0].fragments",
    ),
    "first fragment missing": (_drop(0), "tensors[0].fragments[0].index"),
    "middle fragment missing": (_drop(1), "tensors[0].fragments[1].index"),
    "last fragment missing": (_drop(2), "tensors[0].fragments[1].data"),
    "fragment twice": (_twice(1), "tensors[0].fragments[2].index"),
    "index twice": (_fragment(2, index=1), "tensors[0].fragments[2].index"),
    "index skipped": (_fragment(2, index=3), "tensors[0].fragments[2].index"),
    "does not begin at 0": (_fragment(0, offset=1), "tensors[0].fragments[0].offset"),
    "overlap": (_fragment(1, offset=20), "tensors[0].fragments[0].data"),
    "gap": (_fragment(1, offset=28), "tensors[0].fragments[0].data"),
    "offset past the end": (_fragment(2, offset=2**63), "tensors[0].fragments[1].offset"),
    "short data": (_fragment(2, data=b"\1" * 15), "tensors[0].fragments[2].data"),
    "long data": (_fragment(2, data=b"\1" * 17), "tensors[0].fragments[2].data"),
    "empty data": (_fragment(0, data=b""), "tensors[0].fragments[0].data"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_what_contradicts_itself_is_refused_by_name(case: str) -> None:
    change, field = MALFORMED[case]
    second = EngineTensor("b", DType.FLOAT32, (2, 8), bytes(64))
    message = encode_bundle(BoundaryBundle((residual(2, 8), second)), fragment_bytes=24)
    assert len(message.tensors[0].fragments) == 3
    change(message)
    with pytest.raises(MalformedFrameError) as caught:
        decode_bundle(message, max_bytes=BOUND)
    assert caught.value.details["field"] == field


def test_an_empty_tensor_has_no_fragment() -> None:
    message = encode_bundle(BoundaryBundle((residual(0, 8),)))
    assert not message.tensors[0].fragments
    message.tensors[0].fragments.add(data=b"")
    with pytest.raises(MalformedFrameError, match="fragments"):
        decode_bundle(message, max_bytes=BOUND)


def test_all_tensors_together_are_held_to_the_bound() -> None:
    second = EngineTensor("b", DType.FLOAT32, (2, 8), bytes(64))
    message = encode_bundle(BoundaryBundle((residual(2, 8), second)))
    assert decode_bundle(message, max_bytes=128).byte_length == 128
    with pytest.raises(MalformedFrameError, match="128 bytes are over the bound of 127"):
        decode_bundle(message, max_bytes=127)


def _zstd(data: bytes, **options: bool) -> bytes:
    return zstandard.ZstdCompressor(level=1, **options).compress(data)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "packed",
    [
        b"not zstd at all",
        _zstd(b"\1" * 63),
        _zstd(b"\1" * 65),
        _zstd(b"\1" * 64)[:-3],
        _zstd(b"\1" * 64) + b"more",
        _zstd(b"\1" * 64) + _zstd(b"\1" * 64),
        _zstd(b"\1" * 64, write_content_size=False),
        _zstd(b""),
    ],
    ids=["noise", "short", "long", "cut", "tail", "two frames", "no content size", "nothing"],
)
def test_a_zstandard_frame_that_is_not_the_fragment_is_refused(packed: bytes) -> None:
    message = encode_bundle(BoundaryBundle((residual(2, 8),)), Compression.ZSTD)
    message.tensors[0].fragments[0].data = packed
    with pytest.raises(MalformedFrameError) as caught:
        decode_bundle(message, max_bytes=BOUND, compression=Compression.ZSTD)
    assert caught.value.details["field"] == "tensors[0].fragments[0].data"


def test_a_bomb_takes_no_memory() -> None:
    bomb = _zstd(bytes(64 * 2**20))
    message = encode_bundle(BoundaryBundle((residual(2, 8),)), Compression.ZSTD)
    message.tensors[0].fragments[0].data = bomb
    tracemalloc.start()
    try:
        with pytest.raises(MalformedFrameError):
            decode_bundle(message, max_bytes=BOUND, compression=Compression.ZSTD)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()


def test_zstandard_makes_repeating_data_smaller() -> None:
    bundle = BoundaryBundle((residual(128, 64),))
    plain = encode_bundle(bundle).ByteSize()
    assert encode_bundle(bundle, Compression.ZSTD).ByteSize() < plain / 10
