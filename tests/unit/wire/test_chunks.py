"""Cutting a prompt into chunks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshnet.domain.errors import InvalidArgumentError
from meshnet.wire.chunks import chunk_positions, plan_prefill_chunks
from tests.support.frames import unhurried


@unhurried
@given(st.integers(1, 3000), st.integers(1, 128), st.integers(0, 1000))
def test_chunks_cover_the_prompt_once_and_in_order(total: int, size: int, start: int) -> None:
    chunks = plan_prefill_chunks(total, size)
    expected = start
    for place, (chunk, position) in enumerate(
        zip(chunks, chunk_positions(chunks, start), strict=True)
    ):
        assert (chunk.index, chunk.count, chunk.total_tokens) == (place, len(chunks), total)
        assert position == expected
        assert 1 <= chunk.token_count <= size
        assert chunk.final == (place == len(chunks) - 1)
        assert chunk.final or chunk.token_count == size
        expected += chunk.token_count
    assert expected == start + total


def test_a_chunk_has_128_tokens_unless_said_otherwise() -> None:
    assert [chunk.token_count for chunk in plan_prefill_chunks(300)] == [128, 128, 44]


@pytest.mark.parametrize(("total", "size"), [(0, 128), (-1, 128), (10, 0), (10, 129)])
def test_a_plan_that_cannot_be_is_refused(total: int, size: int) -> None:
    with pytest.raises(InvalidArgumentError):
        plan_prefill_chunks(total, size)
