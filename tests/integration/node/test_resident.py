"""How much memory a process has, from a file as the kernel writes it."""

import mmap
from pathlib import Path

from meshnet.node.resident import resident_bytes


def test_the_second_number_is_in_pages(tmp_path: Path) -> None:
    report = tmp_path / "statm"
    report.write_text("5000 321 100 1 0 40 0\n")
    assert resident_bytes(report) == 321 * mmap.PAGESIZE


def test_a_system_that_doesnt_say_has_none(tmp_path: Path) -> None:
    assert resident_bytes(tmp_path / "statm") is None
