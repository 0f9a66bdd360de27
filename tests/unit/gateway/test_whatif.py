import json
from typing import Any

import pytest

from meshnet.domain.errors import InputError
from meshnet.gateway.whatif import MAX_MACHINES, plan_of, question_object, read_question
from meshnet.tracker.placement import ModelShape, Objective

SHAPE = ModelShape((1 << 30,) * 8, 1 << 20, 1 << 20, 0, 0, 4096, tuple(range(1, 8)))
MACHINE = {"name": "pc", "memory_bytes": 8 << 30, "bytes_per_second": 10e9}
QUESTION: dict[str, Any] = {
    "machines": [MACHINE, MACHINE],
    "link": {"latency_seconds": 0.001, "bytes_per_second": 125e6},
    "context_tokens": 2048,
    "sessions": 2,
    "objective": "latency",
}


def read(**changes: Any) -> Any:
    return read_question(json.dumps(QUESTION | changes).encode())


def test_a_question_is_read_and_told_again() -> None:
    question = read()
    assert question.demand.objective is Objective.LATENCY
    assert question_object(question) == QUESTION


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"machines": []}, "machines"),
        ({"machines": [MACHINE] * (MAX_MACHINES + 1)}, "machines"),
        ({"machines": [MACHINE | {"bytes_per_second": 0}]}, "machines[0].bytes_per_second"),
        ({"machines": [MACHINE | {"memory_bytes": -1}]}, "machines[0].memory_bytes"),
        ({"machines": [MACHINE | {"name": ""}]}, "machines[0].name"),
        ({"context_tokens": 0}, "context_tokens"),
        ({"objective": "beauty"}, "objective"),
        ({"link": {"latency_seconds": -1, "bytes_per_second": 1}}, "link.latency_seconds"),
    ],
)
def test_a_question_that_cant_be_names_its_field(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError) as refused:
        read(**changes)
    assert refused.value.message.startswith(field)


def test_another_machine_makes_a_model_fit_that_didnt() -> None:
    small = plan_of(SHAPE, read(machines=[MACHINE]))
    assert small.stages == ()
    assert "1 more like pc would be enough" in small.problem
    larger = plan_of(SHAPE, read())
    assert larger.problem == ""
    assert [stage.shard_end for stage in larger.stages][-1] == 8
    assert larger.tokens_per_second == pytest.approx(
        1 / (sum(stage.seconds for stage in larger.stages) + larger.link_seconds)
    )
