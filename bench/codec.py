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

from bench.report import Cell, Column, Report, Table, conditions, finish, output_parser
from bench.setup import median
from meshnet.domain.tensors import RESIDUAL, BoundaryBundle, DType
from meshnet.wire.codec import decode_bundle, encode_bundle
from meshnet.wire.compression import Compression
from meshnet.wire.narrow import rows_of, tensor_of

NAME = "codec"
TOKENS, WIDTH, RUNS = 128, 4096, 50
COLUMNS = (
    *(Column(heading) for heading in ("type", "packed", "bytes")),
    *(Column(heading, 2) for heading in ("encode", "decode", "from float32", "to float32")),
)


def milliseconds(work: Callable[[], object]) -> float:
    """Median over the runs."""
    times = []
    for _ in range(RUNS):
        started = time.perf_counter()
        work()
        times.append((time.perf_counter() - started) * 1e3)
    return median(times)


def line(rows: NDArray[np.float32], dtype: DType, compression: Compression) -> tuple[Cell, ...]:
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
    return (dtype.value, compression.value, len(data), *times)


def main() -> None:
    options = output_parser(NAME, __doc__).parse_args()
    values = np.random.default_rng(0).normal(size=(TOKENS, WIDTH)).astype(np.float32)
    lines = [line(values, dtype, compression) for dtype in DType for compression in Compression]
    about = (
        conditions("bench.codec"),
        f"A boundary of {TOKENS} tokens of width {WIDTH}, milliseconds, median of {RUNS}.",
    )
    finish(Report(NAME, about, (Table("", COLUMNS, tuple(lines)),)), options)


if __name__ == "__main__":
    main()
