"""What passes over a seam, counted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshnet.domain.frames import GenerationDone, SessionOpened, TokenReply
from meshnet.domain.generation import FinishReason, GeneratedToken
from meshnet.domain.nodes import FlowControl
from meshnet.domain.receipts import SeamWork
from meshnet.domain.seamcounts import GatewaySeamCounts, NodeSeamCounts
from tests.support.frames import decode_step, prefill_chunk, residual

TOKEN = TokenReply(1, 0, GeneratedToken(1, 1))


def read(counts: NodeSeamCounts | GatewaySeamCounts) -> SeamWork:
    return counts.read(0, 0, 0)


def test_rows_and_bytes_are_counted_as_often_as_they_pass_but_positions_once() -> None:
    counts = NodeSeamCounts()
    assert read(counts).tokens == 0
    counts.request(prefill_chunk(rows=3))
    guessed = replace(decode_step(1, 259), tensor=residual(3, 8), proposed=(7, 9))
    counts.request(guessed)
    counts.request(replace(decode_step(1, 260), truncate=True))
    counts.reply(TOKEN)
    assert not counts.empty
    work = read(counts)
    assert (work.prefill_rows, work.decode_rows) == (3, 4)
    assert (work.first_position, work.end_position, work.tokens) == (256, 262, 6)
    assert (work.bytes_down, work.bytes_up) == (7 * 8 * 4, 4)


def test_a_prompt_that_is_computed_anew_begins_where_it_did_then() -> None:
    counts = NodeSeamCounts()
    counts.request(prefill_chunk(rows=3))
    counts.request(replace(prefill_chunk(rows=3), position=0))
    assert (read(counts).first_position, read(counts).tokens) == (0, 259)


@pytest.mark.parametrize(
    ("tokens", "end", "rows"),
    [
        (0, None, 0),
        (1, None, 0),
        (5, FinishReason.LENGTH, 4),
        (5, FinishReason.STOP, 5),
        (0, FinishReason.STOP, 0),
    ],
)
def test_an_answers_last_token_is_not_computed_unless_the_model_ended_behind_it(
    tokens: int, end: FinishReason | None, rows: int
) -> None:
    counts = GatewaySeamCounts(10)
    assert counts.empty
    counts.reply(SessionOpened(1, FlowControl(), cached_tokens=4))
    for _ in range(tokens):
        counts.reply(TOKEN)
    if end is not None:
        counts.reply(GenerationDone(1, end, ()))
    work = read(counts)
    assert (work.prefill_rows, work.decode_rows) == (6, rows)
    assert (work.first_position, work.end_position) == (4, 10 + rows)
    assert (work.bytes_down, work.bytes_up) == (40, 4 * tokens)
