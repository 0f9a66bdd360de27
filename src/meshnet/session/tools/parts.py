"""The parts of a model's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of the answer itself."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """A piece of what the model thought before it answered."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A whole call. ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


Part = Text | Reasoning | ToolCall

Tools = Mapping[str, Mapping[str, object]]
"""The functions that were offered: their names with the JSON schemas of their parameters."""
