"""What a measurement prints: ruled tables on a terminal, Markdown in a pipe or file, or JSON."""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from bench.setup import table as markdown_table

Cell = str | int | float | None
ABSENT = "-"


@dataclass(frozen=True, slots=True)
class Column:
    """A column's heading, and the decimals that its numbers are shown with."""

    heading: str
    decimals: int = 1

    def show(self, cell: Cell) -> str:
        """A cell as text."""
        if cell is None:
            return ABSENT
        return f"{cell:.{self.decimals}f}" if isinstance(cell, float) else str(cell)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of numbers and words under a caption."""

    caption: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise ValueError(f"{row} doesn't have {len(self.columns)} cells")

    def texts(self) -> list[list[str]]:
        """The rows as they are shown."""
        pairs = [zip(self.columns, row, strict=True) for row in self.rows]
        return [[column.show(cell) for column, cell in row] for row in pairs]


@dataclass(frozen=True, slots=True)
class Report:
    """What one measurement found."""

    name: str
    """The script's: ``decode`` for ``bench.decode``."""
    lines: tuple[str, ...]
    """What was measured, in sentences."""
    tables: tuple[Table, ...]

    def markdown(self) -> str:
        """The report as a section of a document, without a heading."""
        parts = [" ".join(self.lines)]
        for table in self.tables:
            columns = [column.heading for column in table.columns]
            parts += [table.caption, markdown_table(columns, table.texts())]
        return "\n\n".join(part for part in parts if part)

    def json(self) -> str:
        """The report for a program, with unrounded numbers."""
        tables = [
            {
                "caption": table.caption,
                "rows": [
                    {column.heading: cell for column, cell in zip(table.columns, row, strict=True)}
                    for row in table.rows
                ],
            }
            for table in self.tables
        ]
        content = {"name": self.name, "about": self.lines, "tables": tables}
        return json.dumps(content, ensure_ascii=False)


def output_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every measurement has: where its result goes."""
    parser = argparse.ArgumentParser(
        prog=f"python -m bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    start, end = _marks(name)
    parser.add_argument("--json", action="store_true", help="print JSON for a program to read")
    parser.add_argument(
        "--write",
        type=writable(name),
        metavar="FILE",
        help=f"also put the result between the lines {start} and {end} there",
    )
    return parser


def contest_parser(name: str, description: str | None) -> argparse.ArgumentParser:
    """A parser with the options that every measurement against peers has."""
    parser = output_parser(name, description)
    parser.add_argument("--model", default="smollm2", help="smollm2, gemma3, or a GGUF file")
    parser.add_argument("--runs", type=int, default=3, help="runs of each, interleaved")
    parser.add_argument(
        "--peer-args",
        type=lambda text: tuple(shlex.split(text)),
        default=(),
        metavar="'...'",
        help="more arguments for llama-server, such as --peer-args='--flash-attn on'",
    )
    parser.add_argument("--quick", action="store_true", help="tiny sizes: only shows that it works")
    return parser


def writable(name: str) -> Callable[[str], Path]:
    """An argument type: a file that has the marks of this measurement's section."""

    def check(text: str) -> Path:
        path = Path(text)
        try:
            replaced_section(path.read_text(encoding="utf-8"), name, "")
        except (OSError, ValueError) as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return path

    return check


def finish(report: Report, options: argparse.Namespace) -> None:
    """Print the report, and write its section if that was asked for."""
    if options.json:
        print(report.json())
    elif sys.stdout.isatty():
        _show(report)
    else:
        print(report.markdown())
    if options.write is not None:
        text = options.write.read_text(encoding="utf-8")
        changed = replaced_section(text, report.name, report.markdown())
        options.write.write_text(changed, encoding="utf-8")


def replaced_section(text: str, name: str, body: str) -> str:
    """``text`` with ``body`` between the marks of ``name``; raises ``ValueError`` without them."""
    start, end = _marks(name)
    if text.count(start) != 1 or text.count(end) != 1 or text.index(start) > text.index(end):
        raise ValueError(f"the file needs one line {start} and after it one line {end}")
    pattern = re.compile(re.escape(start) + ".*?" + re.escape(end), re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n{body}\n{end}", text)


def conditions(module: str) -> str:
    """The command that was run, and on what."""
    command = shlex.join(["python", "-m", module, *_arguments_that_count()])
    return f"`{command}` on {os.cpu_count()} cores ({_processor()})."


def progress(text: str) -> None:
    """What is going on, on standard error; on a terminal the line is overwritten by the next."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K{text}")
        sys.stderr.flush()
    else:
        print(text, file=sys.stderr, flush=True)


def done() -> None:
    """The last progress line is over."""
    progress("")


def ratio(values: Sequence[float], others: Sequence[float]) -> float:
    """The median of the runs' ratios: what disturbed one run disturbed both of its sides."""
    return statistics.median([a / b for a, b in zip(values, others, strict=True)])


def _show(report: Report) -> None:
    console = Console(highlight=False)
    console.print("\n".join(report.lines), markup=False)
    for table in report.tables:
        ruled = RichTable(title=table.caption or None, title_justify="left")
        for number, column in enumerate(table.columns):
            ruled.add_column(column.heading, justify="left" if number == 0 else "right")
        for row in table.texts():
            ruled.add_row(*row)
        console.print(ruled)


def _marks(name: str) -> tuple[str, str]:
    return f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"


def _arguments_that_count() -> list[str]:
    """The command's arguments, without where the result goes."""
    kept, skip = [], False
    for argument in sys.argv[1:]:
        if not skip and argument != "--json" and not argument.startswith("--write"):
            kept.append(argument)
        skip = argument == "--write"
    return kept


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return "unknown processor"
    found = re.search(r"^model name\s*:\s*(.*)$", text, re.MULTILINE)
    return found[1] if found else "unknown processor"
