"""How a prompt is cut into the chunks that travel down the chain one behind the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from meshnet.domain.errors import InvalidArgumentError
from meshnet.domain.frames import ChunkInfo
from meshnet.domain.recipe import MAX_CHUNK_TOKENS


def plan_prefill_chunks(
    total_tokens: int, chunk_tokens: int = MAX_CHUNK_TOKENS, start: int = 0
) -> tuple[ChunkInfo, ...]:
    """Chunks of ``chunk_tokens`` tokens, the last with what remains; see :func:`chunk_positions`.

    Those from position ``start`` on have the same borders as if they began at 0. Raises
    :class:`InvalidArgumentError` unless there is a token behind it and a chunk has 1 to 128.
    """
    if total_tokens < start + 1:
        raise InvalidArgumentError("total_tokens", f"{total_tokens} must be at least {start + 1}")
    if not 1 <= chunk_tokens <= MAX_CHUNK_TOKENS:
        raise InvalidArgumentError(
            "chunk_tokens", f"{chunk_tokens} must be 1 to {MAX_CHUNK_TOKENS}"
        )
    first = start // chunk_tokens * chunk_tokens
    borders = [start, *range(first + chunk_tokens, total_tokens, chunk_tokens), total_tokens]
    return tuple(
        ChunkInfo(
            index=index,
            count=len(borders) - 1,
            token_count=end - begin,
            total_tokens=total_tokens - start,
        )
        for index, (begin, end) in enumerate(itertools.pairwise(borders))
    )


def chunk_positions(chunks: Iterable[ChunkInfo], start: int = 0) -> tuple[int, ...]:
    """The position of each chunk's first token, when the first chunk begins at ``start``."""
    sizes = (chunk.token_count for chunk in chunks)
    return tuple(itertools.accumulate(sizes, initial=start))[:-1]
