"""How fast weights are multiplied, and that it is measured once."""

import json

import pytest

from meshnet.domain.errors import EngineError
from meshnet.engine.llamacpp import calibration
from meshnet.engine.llamacpp.calibration import known_speed, measure_speed


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """A small matrix, for a moment, whatever else runs: the figure itself doesn't matter here."""
    monkeypatch.setattr(calibration, "UNDISTURBED", 0.0)
    monkeypatch.setattr(calibration, "MATRIX_BYTES", 8 << 20)
    monkeypatch.setattr(calibration, "SECONDS", 0.05)


def test_a_speed_is_one_that_a_machine_can_have():
    assert 1e7 < measure_speed(1, 0.05) < 1e13


def test_it_is_measured_once_for_the_same_threads_and_variables(tmp_path):
    first = known_speed(tmp_path, 1)
    (note,) = tmp_path.iterdir()
    assert json.loads(note.read_text()) == first
    note.write_text("123.5")
    assert known_speed(tmp_path, 1) == 123.5
    assert known_speed(tmp_path, 1, ["GGML_X=1"]) != 123.5
    assert known_speed(tmp_path, 2) != 123.5


def test_what_was_measured_while_something_else_had_the_processors_isnt_remembered(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(calibration, "UNDISTURBED", 100.0)
    assert known_speed(tmp_path, 1) > 1e6
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "{", "-1.0", '"fast"'])
def test_a_note_that_is_none_is_measured_anew(tmp_path, text):
    known_speed(tmp_path, 1)
    (note,) = tmp_path.iterdir()
    note.write_text(text)
    assert known_speed(tmp_path, 1) > 1e6


def test_a_folder_that_cannot_be_written_costs_time_alone(tmp_path):
    (tmp_path / "file").touch()
    assert known_speed(tmp_path / "file" / "notes", 1) > 1e6


def test_a_machine_without_room_is_told_so(monkeypatch):
    monkeypatch.setattr(calibration, "MATRIX_BYTES", 1 << 50)
    with pytest.raises(EngineError, match="no room"):
        measure_speed(1, 0.05)
