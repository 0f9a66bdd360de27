"""Contenders that take turns."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.contest import UNSPLIT, in_turns, meshnet, require_same_tokens
from bench.setup import Run


async def test_each_round_has_its_own_prompt_and_starts_with_another_contender() -> None:
    calls: list[tuple[str, tuple[int, ...]]] = []

    async def first(prompt: Sequence[int], count: int) -> Run:
        calls.append(("first", tuple(prompt)))
        return Run(1.0, 1.0, (0,) * count)

    async def second(prompt: Sequence[int], count: int) -> Run:
        calls.append(("second", tuple(prompt)))
        return Run(2.0, 1.0, (0,) * count)

    made = await in_turns({"first": first, "second": second}, [(1,), (2,)], 3)
    assert calls == [("first", (1,)), ("second", (1,)), ("second", (2,)), ("first", (2,))]
    assert [run.first for run in made["second"]] == [2.0, 2.0]


def test_other_tokens_than_the_unsplit_models_are_no_result() -> None:
    made = {UNSPLIT: [Run(1.0, 1.0, (1, 2))], meshnet(2): [Run(1.0, 1.0, (1, 2))]}
    require_same_tokens(made)
    made[meshnet(2)] = [Run(1.0, 1.0, (1, 3))]
    with pytest.raises(SystemExit, match="2 nodes: other tokens"):
        require_same_tokens(made)


def test_the_first_token_is_no_part_of_the_rate() -> None:
    assert Run(5.0, 2.0, (1, 2, 3, 4, 5)).decode_rate == 2.0
