"""CRC32C (Castagnoli, RFC 3720 appendix B.4) over uncompressed data."""

from __future__ import annotations

import google_crc32c


def crc32c(data: bytes, start: int = 0) -> int:
    """The 32-bit sum of ``data``, going on from ``start``, the sum of what came before it."""
    return int(google_crc32c.extend(start, data))
