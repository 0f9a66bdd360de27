"""What came of playing a model, and how it is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Outcome = Literal["exact", "differs", "refused", "died", "failed"]


@dataclass(frozen=True, slots=True)
class Result:
    """One model's record."""

    architecture: str
    variant: str
    quantization: str
    layers: int
    outcome: Outcome
    detail: str = ""
    """Why it was refused, where it differs and by how much, a process's last words."""
    cuts: int = 0
    """Chains whose every logit was compared with the unsplit model's."""
    impossible_cuts: int = 0
    """Places between two layers where the model mustn't be cut."""
    nulls: int = 0
    """The most layers of zeros that a step of one slice computes."""

    @property
    def name(self) -> str:
        """Tells it from all others."""
        return f"{self.architecture}/{self.variant}/{self.quantization}"

    @property
    def place(self) -> tuple[str, str, str]:
        """Where it comes in a list."""
        return self.architecture, self.variant, self.quantization


def dump(results: Iterable[Result], path: Path) -> None:
    """Write records, one a line, sorted."""
    lines = [json.dumps(asdict(result)) for result in sorted(results, key=lambda r: r.place)]
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def load(path: Path) -> list[Result]:
    """Read what :func:`dump` wrote."""
    return [Result(**entry) for entry in json.loads(path.read_text())]
