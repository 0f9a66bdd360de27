"""Fuzz the decoders: bytes from a peer give frames or a MalformedFrameError, nothing else.

Usage: python scripts/fuzz_wire.py [SECONDS] [CORPUS]

Coverage-guided (atheris) from the conformance vectors on, for a bounded time. A frame that decodes
must encode to bytes that decode and encode to the same. What is found is written to the working
folder and belongs, once mended, into ``conformance/malformed``.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["meshnet.wire", "meshnet.domain"]):
    from meshnet.domain.errors import MalformedFrameError
    from meshnet.wire.compression import Compression
    from meshnet.wire.convert import decode_replies, decode_request, encode_reply, encode_request

VECTORS = Path(__file__).resolve().parent.parent / "conformance"
BOUND = 2**20
"""Largest bundle taken; nothing larger may be allocated for one."""
MEMORY_MIB = 1024
SLOWEST_SECONDS = 5


def check_request(data: bytes) -> None:
    """A request decodes to itself again, or is refused."""
    try:
        request = decode_request(data, BOUND)
    except MalformedFrameError:
        return
    encoded = encode_request(request, Compression.NONE)
    if encode_request(decode_request(encoded, BOUND), Compression.NONE) != encoded:
        raise AssertionError(f"{request} doesn't survive")


def check_replies(data: bytes) -> None:
    """Replies decode to themselves again, or are refused."""
    try:
        replies = decode_replies(data)
    except MalformedFrameError:
        return
    for reply in replies:
        encoded = encode_reply(reply)
        (again,) = decode_replies(encoded)
        if encode_reply(again) != encoded:
            raise AssertionError(f"{reply} doesn't survive")


CHECKS: tuple[Callable[[bytes], None], ...] = (check_request, check_replies)


def check(data: bytes) -> None:
    """The first byte chooses the decoder."""
    if data:
        CHECKS[data[0] % len(CHECKS)](data[1:])


def main() -> None:
    seconds = int(sys.argv[1]) if len(sys.argv) > 1 else 60
    with tempfile.TemporaryDirectory() as scratch:
        corpus = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(scratch)
        corpus.mkdir(parents=True, exist_ok=True)
        for number, vector in enumerate(sorted(VECTORS.glob("*/*.bin"))):
            for decoder in range(len(CHECKS)):
                seed = bytes([decoder]) + vector.read_bytes()
                (corpus / f"vector-{number}-{decoder}").write_bytes(seed)
        options = [
            f"-max_total_time={seconds}",
            f"-rss_limit_mb={MEMORY_MIB}",
            f"-timeout={SLOWEST_SECONDS}",
            f"-max_len={64 * 1024}",
            "-print_final_stats=1",
        ]
        atheris.Setup([sys.argv[0], *options, str(corpus)], check)
        try:
            atheris.Fuzz()
        finally:
            if len(sys.argv) <= 2:
                shutil.rmtree(corpus, ignore_errors=True)


if __name__ == "__main__":
    main()
