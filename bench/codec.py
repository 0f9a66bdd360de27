"""How long does a boundary take to encode and decode?

    python -m bench.codec

A boundary of 128 tokens with 4096 values each, as in a full prefill chunk of an 8B model, through
the codec alone: bundle to bytes (with checksum) and back (checked). Median of 50.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from bench.setup import median, table
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType
from meshnet.wire.codec import decode_bundle, encode_bundle
from meshnet.wire.compression import Compression
from meshnet.wire.narrow import rows_of, tensor_of

TOKENS, WIDTH, RUNS = 128, 4096, 50


def milliseconds(work: Callable[[], object]) -> float:
    """Median over the runs."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times)


def line(rows: NDArray[np.float32], dtype: DType, compression: Compression) -> tuple[object, ...]:
    """One line of the table."""
    tensor = tensor_of(RESIDUAL, rows, dtype)
    bundle = BoundaryBundle((tensor,))
    message = encode_bundle(bundle, compression)
    data, kind, bound = message.SerializeToString(), type(message), bundle.byte_length

    def decode() -> BoundaryBundle:
        return decode_bundle(kind.FromString(data), max_bytes=bound, compression=compression)

    times = (
        milliseconds(lambda: encode_bundle(bundle, compression).SerializeToString()),
        milliseconds(decode),
        milliseconds(lambda: tensor_of(RESIDUAL, rows, dtype)),
        milliseconds(lambda: rows_of(tensor)),
    )
    return (dtype.value, compression.value, len(data), *(f"{value:.2f}" for value in times))


def main() -> None:
    rows = np.random.default_rng(0).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    lines = [line(rows, dtype, compression) for dtype in DType for compression in Compression]
    print(f"{TOKENS} by {WIDTH} values, milliseconds, median of {RUNS}\n")
    columns = ("type", "packed", "bytes", "encode", "decode", "from float32", "to float32")
    print(table(columns, lines))


if __name__ == "__main__":
    main()
