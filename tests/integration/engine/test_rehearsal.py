"""What is remembered of a rehearsal; what it measures is in ``integration/cli/test_measuring``."""

from dataclasses import replace

import pytest

from meshnet.engine.llamacpp import rehearsal
from meshnet.engine.llamacpp.rehearsal import Answer, Question, StepTimes, known


class Machine:
    """Takes longer each time."""

    def __init__(self) -> None:
        self.runs = 0
        self.undisturbed = 1.0

    def measure(self, _: Question) -> Answer:
        self.runs += 1
        return Answer((StepTimes(self.runs, self.runs, self.runs),), self.undisturbed)


@pytest.fixture
def machine(monkeypatch):
    made = Machine()
    monkeypatch.setattr(rehearsal, "measure", made.measure)
    return made


@pytest.fixture
def question(tmp_path):
    return Question((), "shapes", tmp_path / "notes", 4, 1, 32)


def test_it_is_measured_once_for_the_same_shapes_and_the_way_they_are_computed(machine, question):
    first = known(question)
    assert known(question) == first
    assert machine.runs == 1
    for other in ({"shapes": "others"}, {"threads": 2}, {"variables": ("GGML_X=1",)}):
        assert known(replace(question, **other)) != first


def test_asked_anew_it_is_measured_and_remembered_again(machine, question):
    known(question)
    again = known(replace(question, anew=True))
    assert machine.runs == 2
    assert known(question) == again


def test_what_was_disturbed_isnt_remembered_except_on_an_accelerator(machine, question):
    machine.undisturbed = 0.5
    known(question)
    known(question)
    assert machine.runs == 2
    # There the processors wait anyway.
    offloaded = replace(question, gpu_layers=4)
    assert known(offloaded) == known(offloaded)
    assert machine.runs == 3
