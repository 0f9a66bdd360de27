"""What a measurement prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.report import (
    Column,
    Report,
    Table,
    finish,
    output_parser,
    ratio,
    replaced_section,
)

TABLE = Table(
    "Speeds:",
    (Column(""), Column("tokens/s"), Column("ratio", 3)),
    (("one", 71.26, 1.0), ("two", 70, None)),
)
REPORT = Report("speed", ("A command.", "A machine."), (TABLE,))
DOCUMENT = "# Title\n\n<!-- bench:speed -->\nold\n<!-- /bench:speed -->\n\nthe end\n"


def test_floats_are_rounded_for_people_and_kept_for_programs() -> None:
    assert "| one | 71.3 | 1.000 |\n| two | 70 | - |" in REPORT.markdown()
    rows = json.loads(REPORT.json())["tables"][0]["rows"]
    assert rows == [
        {"": "one", "tokens/s": 71.26, "ratio": 1.0},
        {"": "two", "tokens/s": 70, "ratio": None},
    ]


def test_a_row_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="3 cells"):
        Table("", TABLE.columns, (("one", 1.0),))


def test_only_its_own_section_of_a_file_is_replaced() -> None:
    changed = replaced_section(DOCUMENT, "speed", r"new \1 text")
    assert changed == DOCUMENT.replace("old", r"new \1 text")
    assert replaced_section(changed, "speed", "old") == DOCUMENT


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "<!-- bench:speed -->",
        "<!-- /bench:speed -->\n<!-- bench:speed -->",
        DOCUMENT + DOCUMENT,
        DOCUMENT.replace("bench:speed", "bench:other"),
    ],
)
def test_a_file_without_one_pair_of_marks_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="bench:speed"):
        replaced_section(text, "speed", "new")


def test_a_wrong_file_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain.md").write_text("no marks", encoding="utf-8")
    with pytest.raises(SystemExit):
        output_parser("speed", "").parse_args(["--write", str(tmp_path / "plain.md")])
    assert "bench:speed" in capsys.readouterr().err


def test_the_result_is_printed_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "performance.md"
    path.write_text(DOCUMENT, encoding="utf-8")
    finish(REPORT, output_parser("speed", "").parse_args(["--write", str(path)]))
    assert capsys.readouterr().out == REPORT.markdown() + "\n"
    assert path.read_text(encoding="utf-8") == DOCUMENT.replace("old", REPORT.markdown())
    finish(REPORT, output_parser("speed", "").parse_args(["--json"]))
    assert capsys.readouterr().out == REPORT.json() + "\n"


def test_a_ratio_compares_the_two_sides_of_each_run() -> None:
    # The machine was half as fast in the second run, for both.
    assert ratio([10.0, 5.0, 10.0], [20.0, 10.0, 20.0]) == 0.5
