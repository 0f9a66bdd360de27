"""What the zoo found, an architecture a row, and the document made of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

from meshnet.model.architectures import REFUSED, VERIFIED
from meshnet.model.rules import Architecture
from tests.support.zoo.results import Result
from tests.support.zoo.without_rules import UNNOTICED, WeakResult

ROOT: Final = Path(__file__).resolve().parents[3]
FINDINGS: Final = Path(__file__).with_name("findings.json")
DOCUMENT: Final = ROOT / "docs" / "architectures.md"

_IN_WORDS: Final = {
    "window": "windows",
    "recurrence": "recurrent layers",
    "needs": "kinds",
    "first": "first layer",
    "last": "last layer",
    "period": "phase",
    "recognise": "count",
    "whole_vocabulary": "vocabulary",
    "heads_everywhere": "heads",
    "scaled_input": "scale",
    "rewrite": "keys",
    "dropped_keys": "keys",
    "only_head": "positions",
    "stands_in": "stand-ins",
    "may_cut": "cuts",
    "variant": "variants",
    "tensors": "tensors",
    "refused_keys": "variants",
    "tap": "tap",
    "last_tap": "tap",
}
"""What the document calls the rules that the table's fields are."""
_TYPES: Final = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q8_0", "Q4_K")
"""The order in which the document names them."""


@dataclass(frozen=True, slots=True)
class Row:
    """All that was found of one architecture."""

    architecture: str
    outcome: str
    """``exact``: every compared chain of every model that isn't refused gave equal bits."""
    models: tuple[str, ...]
    """Those that are exact."""
    refused: tuple[str, ...]
    """Those that the package doesn't cut."""
    quantizations: tuple[str, ...]
    cuts: int
    """Chains compared, over all models."""
    impossible_cuts: int
    """The most places of a model at which it can't be cut."""
    nulls: int
    """The most layers of zeros that one slice computes."""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class WeakRow:
    """What came of slices of all models without one rule."""

    rule: str
    architectures: int
    notices: dict[str, int]


@dataclass(frozen=True, slots=True)
class Findings:
    """Everything that is kept."""

    rows: tuple[Row, ...]
    weak: tuple[WeakRow, ...]


def rows_of(results: Iterable[Result]) -> tuple[Row, ...]:
    """One row for each architecture, sorted by name."""
    by_name: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: result.place):
        by_name.setdefault(result.architecture, []).append(result)
    return tuple(_row(name, found) for name, found in sorted(by_name.items()))


def _row(name: str, results: Sequence[Result]) -> Row:
    exact = [result for result in results if result.outcome == "exact"]
    wrong = [result for result in results if result.outcome not in {"exact", "refused"}]
    outcome = "exact" if exact else "refused"
    return Row(
        name,
        wrong[0].outcome if wrong else outcome,
        tuple(dict.fromkeys(result.variant for result in exact)),
        tuple(dict.fromkeys(result.variant for result in results if result.outcome == "refused")),
        tuple(dict.fromkeys(result.quantization for result in exact)),
        sum(result.cuts for result in exact),
        max((result.impossible_cuts for result in exact), default=0),
        max((result.nulls for result in exact), default=0),
        "; ".join(f"{result.name}: {result.detail}" for result in wrong),
    )


def weak_rows_of(results: Iterable[WeakResult]) -> tuple[WeakRow, ...]:
    """One row for each rule, sorted by name."""
    by_rule: dict[str, list[WeakResult]] = {}
    for result in results:
        by_rule.setdefault(result.rule, []).append(result)
    return tuple(_weak_row(rule, found) for rule, found in sorted(by_rule.items()))


def _weak_row(rule: str, results: Sequence[WeakResult]) -> WeakRow:
    notices: dict[str, int] = {}
    for result in results:
        for notice, count in result.notices.items():
            notices[notice] = notices.get(notice, 0) + count
    return WeakRow(
        rule, len({result.architecture for result in results}), dict(sorted(notices.items()))
    )


def save(findings: Findings, path: Path = FINDINGS) -> None:
    """Write the findings, a row a line."""
    parts = [
        f'"{name}": [\n' + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]"
        for name, rows in (("rows", findings.rows), ("weak", findings.weak))
    ]
    path.write_text("{" + ",\n".join(parts) + "}\n")


def load(path: Path = FINDINGS) -> Findings:
    """Read what :func:`save` wrote."""
    read = json.loads(path.read_text())
    return Findings(tuple(map(_read_row, read["rows"])), tuple(WeakRow(**r) for r in read["weak"]))


def _read_row(row: dict[str, Any]) -> Row:
    lists = {key: tuple(value) for key, value in row.items() if isinstance(value, list)}
    return Row(**{**row, **lists})


def rules_in_words(entry: Architecture) -> list[str]:
    """The names of the rules that an architecture's slices obey besides those of all."""
    none = Architecture("none")
    found = [
        _IN_WORDS[field.name]
        for field in fields(entry)
        if field.name in _IN_WORDS and getattr(entry, field.name) != getattr(none, field.name)
    ]
    return list(dict.fromkeys(found))


def document(findings: Findings) -> str:
    """The text of ``docs/architectures.md``."""
    exact = [row for row in findings.rows if row.outcome == "exact"]
    played = {row.architecture for row in findings.rows}
    figures = {
        "exact": len(exact),
        "refused": len(REFUSED),
        "cuts": f"{sum(row.cuts for row in exact):,}",
        "table": "\n".join(map(_line, exact)),
        "reasons": "\n".join(
            f"| {name} | {reason} | {'yes' if name in played else ''} |"
            for name, reason in sorted(REFUSED.items())
        ),
        "weak": "\n".join(map(_weak_line, findings.weak)),
    }
    text = Path(__file__).with_name("document.md").read_text()
    for name, value in figures.items():
        text = text.replace("{" + name + "}", str(value))
    return text


def _line(row: Row) -> str:
    rules = ", ".join(rules_in_words(VERIFIED[row.architecture]))
    where = f"all but {row.impossible_cuts}" if row.impossible_cuts else "all"
    models = ", ".join(sorted((m for m in row.models if "," not in m), key=_plain_first))
    if row.refused:
        models += f" (refused: {', '.join(row.refused)})"
    types = " ".join(kind for kind in _TYPES if kind in row.quantizations)
    nulls = row.nulls or ""
    return f"| {row.architecture} | {rules} | {models} | {types} | {row.cuts} | {where} | {nulls} |"


def _plain_first(model: str) -> tuple[bool, str]:
    return model != "plain", model


def _weak_line(row: WeakRow) -> str:
    count = row.notices
    caught = [count.get(notice, 0) for notice in ("slicer", "check", "libllama", "trial")]
    harmless = count.get("same", 0) + count.get("exact", 0)
    unnoticed = sum(count.get(notice, 0) for notice in UNNOTICED)
    cells = [row.rule, row.architectures, *caught, harmless, unnoticed]
    return "| " + " | ".join(map(str, cells)) + " |"
