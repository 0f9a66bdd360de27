"""Tables on a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from meshnet.cli import output


def test_brackets_in_names_are_shown_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(output, "out", Console(file=shown, force_terminal=True, width=60))
    output.print_table("cluster [/home]", ("name", "layers"), [("[/x]", "[0, 15)"), ("[red]b", 3)])
    for text in ("cluster [/home]", "[/x]", "[0, 15)", "[red]b"):
        assert text in shown.getvalue()
